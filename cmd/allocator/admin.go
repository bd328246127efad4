package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/lease/repair"
)

func (a *app) adminCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Repair a space, and take nodes out of service",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.drainCommand(), a.recoverCommand(), a.quarantineCommand(), a.releaseCommand())
	return cmd
}

// drainWithin is how long «admin drain» waits: the node itself gives up after 15 s.
const drainWithin = 20 * time.Second

func (a *app) drainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Take one node out of service, and leave it running",
		Long: `Drain makes a node refuse with DRAINING, turns its readiness off and gives its sid
back, so that another node can use it at once. The process stays until it is stopped;
only a restart makes it serve again. To stop a node, SIGTERM does all of this.`,
		Example: "  allocator admin drain --addr 10.0.0.5:9000",
		Args:    cobra.NoArgs,
	}
	format := formatFlag(cmd)
	connect := a.nodesFlags(cmd, defaultAddr)
	timeout := cmd.Flags().Lookup("timeout")
	timeout.DefValue = drainWithin.String()
	_ = timeout.Value.Set(timeout.DefValue)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		nodes, err := connect()
		if err != nil {
			return err
		}
		defer nodes.close()
		if len(nodes.addrs) != 1 {
			return usage("drain takes one node: --addr names %d", len(nodes.addrs))
		}
		var r *pb.DrainResponse
		err = nodes.ask(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			r, err = pb.NewAdminServiceClient(conn).Drain(ctx, &pb.DrainRequest{})
			return err
		})
		if err != nil {
			return err
		}
		if err := a.printDrained(r, format.value == "json"); err != nil {
			return err
		}
		if r.GetSid() >= 0 && !r.GetReleased() {
			return errInvalid
		}
		return nil
	}
	return cmd
}

func (a *app) printDrained(r *pb.DrainResponse, asJSON bool) error {
	if asJSON {
		return printLine(a.out, struct {
			Node       string `json:"node"`
			Instance   string `json:"instance"`
			SID        int32  `json:"sid"` // that it held; -1: none
			Term       int64  `json:"term"`
			Released   bool   `json:"released"`
			CeilUnixMs int64  `json:"ceil_unix_ms"`
			Issued     int64  `json:"ids_issued"`
		}{r.GetNode(), r.GetInstance(), r.GetSid(), r.GetTerm(), r.GetReleased(), r.GetCeilUnixMs(), r.GetIdsIssued()})
	}
	what := "it held no sid"
	switch {
	case r.GetReleased() && r.GetCeilUnixMs() > 0:
		what = fmt.Sprintf("sid %d (term %d) was given back, usable from %s", r.GetSid(), r.GetTerm(), repair.At(clock.Millis(r.GetCeilUnixMs())))
	case r.GetReleased():
		what = fmt.Sprintf("sid %d (term %d) was given back, and another node has it now", r.GetSid(), r.GetTerm())
	case r.GetSid() >= 0:
		what = fmt.Sprintf("sid %d (term %d) was NOT given back: it is free when the node's lease ends, and usable when its window has passed", r.GetSid(), r.GetTerm())
	}
	_, err := fmt.Fprintf(a.out, "%s is drained: %s; %s issued.\nIt refuses with DRAINING until it is stopped or restarted.\n",
		r.GetNode(), what, count(int(r.GetIdsIssued()), "ID"))
	return err
}

// space is the connection of a command that works on etcd itself.
type space struct {
	cfg   config.Config
	store *etcdstore.Store
	close func()
}

// openSpace connects with the settings that load gives. It contacts nobody yet,
// unless there is a password.
func (a *app) openSpace(command string, load func() (config.Config, []config.Setting, error)) (*space, error) {
	c, _, err := load()
	if err != nil {
		return nil, err
	}
	if len(c.Etcd.Endpoints) == 0 {
		return nil, noEndpoints(command)
	}
	if err := c.Validate(); err != nil {
		return nil, invalidSettings(err)
	}
	dial, err := daemon.DialConfig(c.Etcd, logger(config.Log{Level: "error", Format: c.Log.Format}, a.err))
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	client, err := etcdstore.Dial(dial)
	if err != nil {
		return nil, &exitError{exitUnavailable, err}
	}
	store, err := etcdstore.New(client, c.Root, c.Space)
	if err != nil {
		_ = client.Close()
		return nil, &exitError{exitUsage, err}
	}
	return &space{cfg: c, store: store, close: func() { _ = client.Close() }}, nil
}

func (s *space) slack() repair.Slack {
	return repair.Slack{Window: s.cfg.Lease.Window, MaxSkew: s.cfg.Issue.MaxSkew, MaxLead: s.cfg.Issue.MaxLead}
}

// author signs one write of this run.
func author() repair.Author {
	return repair.Author{Instance: lease.Instance(uuid.NewString()), Nonce: rand.Text(), Now: wallNow()}
}

func wallNow() clock.Millis { return clock.NewSystem(clock.SystemConfig{}).Now().Wall }

// repairError gives an error of a repair its exit code and, for a write whose
// outcome nobody knows, says how to learn it.
func repairError(err error, wrote bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, repair.ErrRefused), errors.Is(err, repair.ErrNotInitialized):
		return &exitError{exitInvalid, err}
	case errors.Is(err, etcdstore.ErrChanged):
		return &exitError{exitInvalid, fmt.Errorf("%w; nothing was written. Run the command again", err)}
	case wrote:
		return &exitError{exitUnavailable, fmt.Errorf("%w\nWhether that was written is unknown. Run the command again: it shows what is there now", err)}
	}
	return &exitError{exitUnavailable, fmt.Errorf("%w\nIs etcd running, and --etcd.endpoints right? «allocator doctor» says more", err)}
}

// confirm asks a person to say yes. Without a terminal, and without --yes, there
// is nobody to ask.
func (a *app) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if f, ok := a.in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return a.ask(question)
		}
	}
	return usage("nothing was written: there is no terminal to ask at. Say --yes if this is what you want")
}

func (a *app) ask(question string) error {
	fmt.Fprintf(a.err, "%s Type yes: ", question)
	answer, err := bufio.NewReader(a.in).ReadString('\n')
	if err != nil {
		fmt.Fprintln(a.err)
		return usage("nothing was written: nobody answered. Say --yes if this is what you want")
	}
	if strings.TrimSpace(answer) != "yes" {
		return &exitError{exitInvalid, errors.New("nothing was written")}
	}
	return nil
}

// timeFlag is a flag whose value is a point in time; 0: not given.
type timeFlag clock.Millis

func (f *timeFlag) Type() string { return "TIME" }
func (f *timeFlag) String() string {
	if *f == 0 {
		return ""
	}
	return repair.At(clock.Millis(*f))
}

func (f *timeFlag) Set(s string) error {
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02"} {
		if t, err := time.Parse(form, s); err == nil {
			if t.UnixMilli() <= 0 {
				return errors.New("the time has to lie after 1970")
			}
			// Up: a bound that loses its microseconds is no bound.
			*f = timeFlag(t.Add(time.Millisecond - 1).UnixMilli())
			return nil
		}
	}
	return fmt.Errorf("%q is not a time such as 2026-02-01T12:00:00Z", s)
}

// witness is what one node answered when asked about the cluster.
type witness struct {
	addr, name string // name: as registered or as it says; "" unknown
	took       time.Duration
	at         time.Time // when it was asked, by this machine
	cluster    *pb.GetClusterResponse
	err        error
}

// askTimeout is how long one node may take to say what it knows.
const askTimeout = 3 * time.Second

// askNodes asks every address at the same time, and returns the answers in the
// order of addrs.
func askNodes(ctx context.Context, d dialer, addrs []string) []witness {
	out := make([]witness, len(addrs))
	done := make(chan int)
	for i, addr := range addrs {
		go func() {
			out[i] = askNode(ctx, d, addr)
			done <- i
		}()
	}
	for range addrs {
		<-done
	}
	return out
}

func askNode(ctx context.Context, d dialer, addr string) witness {
	w := witness{addr: addr}
	conn, err := d.dial(addr)
	if err != nil {
		w.err = err
		return w
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	admin := pb.NewAdminServiceClient(conn)
	// The first call opens the connection; the second tells the clock without it.
	if _, w.err = admin.GetCluster(ctx, &pb.GetClusterRequest{}); w.err != nil {
		return w
	}
	w.at = time.Now()
	w.cluster, w.err = admin.GetCluster(ctx, &pb.GetClusterRequest{})
	w.took = time.Since(w.at)
	w.name = w.cluster.GetSelf().GetName()
	return w
}

// nodeAddrs returns the gRPC addresses of registered nodes and of a
// comma-separated list, each once.
func nodeAddrs(registered []lease.Registration, list string) []string {
	var out []string
	seen := map[string]bool{}
	add := func(addr string) {
		if addr = strings.TrimSpace(addr); addr != "" && !seen[addr] {
			seen[addr] = true
			out = append(out, addr)
		}
	}
	for _, r := range registered {
		add(r.GRPC)
	}
	for addr := range strings.SplitSeq(list, ",") {
		add(addr)
	}
	return out
}
