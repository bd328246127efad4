package etcdpod

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/text"
)

const (
	again      = time.Second      // A cluster that is not there yet is asked after this time.
	fetchLimit = 10 * time.Minute // It bounds the download of a snapshot.
)

// settings are the flags of "allocator etcd-pod run".
type settings struct {
	name, listen, dir, token, cluster string
	members                           []string
	tls, rootTLS                      string
	user, prefix                      string
	quota                             int64
	snapshot, offer                   string
}

func runCommand(a *cli.App) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "run --name NAME --members NAME=ADDRESS,…",
		Short: "Run etcd as one of the named members, and replace a member whose data are lost",
		Long: `Run decides whether etcd goes on from its data, begins a new cluster, or takes the place of
a member whose data are lost, and starts it. It answers other members on port 2382, and the
kubelet there: /livez and /readyz. A member is ready when it votes and etcd knows its users.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&s.name, "name", "", "name of this member")
	f.StringSliceVar(&s.members, "members", nil, "all members, as NAME=ADDRESS")
	f.StringVar(&s.listen, "listen", "0.0.0.0", "address to listen on; 0.0.0.0: all, also those of IPv6")
	f.StringVar(&s.dir, "dir", "/var/lib/etcd", "the member's volume")
	f.StringVar(&s.token, "token", "initial", "which cluster this is: a restored one has another token")
	f.StringVar(&s.cluster, "cluster", "allocator", "first part of etcd's initial cluster token")
	f.StringVar(&s.tls, "tls", "/etc/etcd/server", "directory with the member's certificate")
	f.StringVar(&s.rootTLS, "root-tls", "/etc/etcd/root", "directory with the certificate of the user root")
	f.StringVar(&s.user, "user", "", "user of the nodes, as in their certificate")
	f.StringVar(&s.prefix, "prefix", "", "prefix of the keys that this user may read and write")
	f.Int64Var(&s.quota, "quota", 2<<30, "maximum size of the database in bytes")
	f.StringVar(&s.snapshot, "snapshot", "", "snapshot that a new cluster begins with")
	f.StringVar(&s.offer, "snapshot-url", "", "where snapshots are offered")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := newRunner(s, logger(a))
		if err != nil {
			return err
		}
		return r.run(cmd.Context())
	}
	return cmd
}

var tokenFormat = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// runner runs one member.
type runner struct {
	inside.Site // Its directory is named after the token, so that a restored cluster begins beside the one before.
	s           settings
	addresses   map[string]string // by name
	state       *state
	server      inside.Server
	log         *slog.Logger
}

func newRunner(s settings, log *slog.Logger) (*runner, error) {
	all, err := hosts(s.members)
	if err != nil {
		return nil, err
	}
	switch {
	case all[s.name] == "":
		return nil, cli.UsageError("--name is %q: it is not one of --members", s.name)
	case !tokenFormat.MatchString(s.token):
		return nil, cli.UsageError("--token is %q: use a-z, 0-9 and dashes, at most 63 characters", s.token)
	case s.snapshot != "" && (filepath.Base(s.snapshot) != s.snapshot || s.snapshot[0] == '.'):
		return nil, cli.UsageError("--snapshot is %q: give the name of a file without a directory", s.snapshot)
	case s.user == "" || s.prefix == "":
		return nil, cli.UsageError("--user or --prefix is empty: give the user of the nodes and their prefix")
	}
	r := &runner{Site: siteOf(s, all, log), s: s, addresses: all, log: log, server: etcdserver.Run}
	local := s.listen
	if ip := net.ParseIP(local); ip != nil && ip.IsUnspecified() {
		local = "127.0.0.1"
	}
	r.state = &state{
		metrics: "http://" + net.JoinHostPort(local, metricsPort),
		report:  member.Report{Name: s.name, Token: s.token, Snapshot: s.snapshot},
		waiting: "starting",
	}
	_, _, err = r.holds() // Others begin a cluster because of the first answer that they get.
	return r, err
}

func url(address, port string) string { return "https://" + address + ":" + port }

// siteOf returns the member of the settings, which is one of all.
func siteOf(s settings, all map[string]string, log *slog.Logger) inside.Site {
	ca, cert, key := files(s.tls)
	site := inside.Site{
		Dir: inside.Dir(filepath.Join(s.dir, s.token)),
		Own: member.Own{Host: s.name, Node: s.name, Process: s.name, Join: slices.Sorted(maps.Keys(all)),
			Peer: url(all[s.name], peerPort), Replaces: true},
		Etcd: member.Run{PeerName: memberName, IP: s.listen, Metrics: metricsPort, Quota: s.quota,
			TLS: member.TLS{CA: ca, Cert: cert, Key: key}, Log: logFormat},
		Token:  s.cluster + "-" + s.token,
		Peer:   func(name string) string { return url(all[name], peerPort) },
		Client: func(name string) string { return url(all[name], clientPort) },
		TLS:    func() (*tls.Config, error) { return clientTLS(s.tls, log) },
		Root: func() (c etcdstore.Config, err error) {
			c.TLS, err = clientTLS(s.rootTLS, log)
			return c, err
		},
	}
	// Members that restored different snapshots are of different clusters, which do not connect. No token of ours has
	// a plus.
	if s.snapshot != "" {
		site.Token += "+" + s.snapshot
	}
	return site
}

// run runs the member until ctx ends or etcd does.
func (r *runner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel(nil)
	served.Go(func() {
		err := serve(ctx, net.JoinHostPort(r.s.listen, reportPort), r.s.tls, r.state.handler(r.log), r.log)
		if err != nil {
			cancel(fmt.Errorf("listen for other members: %w", err))
		}
	})
	step, data, err := r.decide(ctx)
	if err == nil {
		err = r.etcd(ctx, step, data)
	}
	return ended(ctx, err)
}

// ended is the error of a process that was asked to stop, or could not go on.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// holds returns who decides with what the volume holds, which others are told from then on.
func (r *runner) holds() (own member.Own, data *member.Data, err error) {
	if data, err = r.Dir.Own(); err != nil {
		return own, nil, err
	}
	// Versions before 0.1.0 had them in data.
	for _, dir := range []string{r.Dir.Data(), filepath.Join(string(r.Dir), "data")} {
		if has, err := meet.HasLog(dir); data == nil && (err != nil || has) {
			return own, nil, cmp.Or(err, fmt.Errorf("%s has the data of an etcd, and no member.json beside it says "+
				"whose: use the version that wrote them, or restore a snapshot", dir))
		}
	}
	own, err = r.Owner(data)
	r.state.set(func(s *state) {
		switch {
		case data != nil:
			s.report.Holds = member.HoldsData
		case own.Intends:
			s.report.Holds = member.HoldsIntent
		default:
			s.report.Holds = member.HoldsNothing
		}
	})
	return own, data, err
}

// decide carries out steps until etcd can start, and returns the last one with the data that are then there.
func (r *runner) decide(ctx context.Context) (step member.Step, data *member.Data, err error) {
	if err := errors.Join(os.MkdirAll(string(r.Dir), 0o700), durable.SyncDir(r.s.dir)); err != nil {
		return step, nil, fmt.Errorf("write to the volume: %w", err)
	}
	own, data, err := r.holds()
	if err != nil {
		return step, nil, err
	}
	return r.Start(ctx, own, data, &starting{runner: r}, again)
}

// starting carries out the steps of a start.
type starting struct {
	*runner
	said text.Said
}

// Say logs each kind of step once a minute, and tells the kubelet.
func (s *starting) Say(step member.Step) {
	if step.Action == member.Ask {
		return
	}
	doing, level := string(step.Action)+": "+step.Why, slog.LevelInfo
	if step.Err != nil {
		level = slog.LevelWarn
	}
	if s.said.New(doing, time.Now()) {
		s.log.Log(context.Background(), level, "start of the member", "step", step.Action, "why", step.Why)
	}
	s.state.set(func(st *state) { st.waiting = doing })
}

// Write tells the others what the volume holds then.
func (s *starting) Write(step member.Step) error {
	err := s.Site.Write(step)
	if err == nil {
		_, _, err = s.holds()
	}
	return err
}

// Ask asks the others what their volumes hold, and for the list that a majority of those with data has.
func (s *starting) Ask(ctx context.Context) (member.Heard, error) {
	asking, err := s.Caller()
	if err != nil {
		return nil, err
	}
	heard := member.Heard{}
	var endpoints []string
	for _, name := range s.Own.Join {
		if name == s.Own.Host {
			continue
		}
		report, err := ask(ctx, asking, name, url(s.addresses[name], reportPort)+"/report")
		if err != nil {
			heard[name] = member.Answer{Err: err}
		} else if heard[name] = report.Answer(s.state.report, s.Own.Join); report.Knows(s.s.token) {
			endpoints = append(endpoints, s.Client(name))
		}
	}
	if len(endpoints) == 0 {
		return heard, nil
	}
	admin, err := s.Dial(endpoints)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	var majority member.Answer
	if err := meet.Limited(ctx, 2*meet.Timeout, func(ctx context.Context) (err error) {
		majority.Cluster, majority.Members, err = admin.List(ctx)
		return err
	}); err != nil {
		s.log.Debug("no quorum answers", "error", err)
		return heard, nil
	}
	return member.Heard{"a majority": majority}, nil
}

// etcd runs etcd for the last step of a start until ctx ends or it does.
func (r *runner) etcd(ctx context.Context, step member.Step, data *member.Data) error {
	data, err := r.Take(step, data)
	if err != nil {
		return err
	}
	data.Version = etcdstore.ServerVersion()
	if err := r.Dir.Note(data); err != nil {
		return err
	}
	if step.Action == member.Begin && r.s.snapshot != "" {
		if err := r.restore(ctx, *data); err != nil {
			return err
		}
	}
	r.state.set(func(s *state) { s.waiting, s.report.Holds = "", member.HoldsData })
	ctx, stop := context.WithCancel(ctx)
	var tended sync.WaitGroup
	defer tended.Wait()
	defer stop()
	tended.Go(func() { r.tend(ctx) })
	return r.server(ctx, r.Runs(*data), r.Dir.Data(), func() {})
}

// restore makes the data of a new cluster from the snapshot, which is complete or not there.
func (r *runner) restore(ctx context.Context, data member.Data) error {
	file, dir := filepath.Join(string(r.Dir), "fetched"), filepath.Join(string(r.Dir), "restoring")
	err := os.RemoveAll(dir)
	if err == nil {
		err = r.fetch(ctx, file)
	}
	if err != nil {
		return fmt.Errorf("fetch snapshot %s: %w", r.s.snapshot, err)
	}
	if err := etcdserver.Restore(file, true, data, dir); err != nil {
		return fmt.Errorf("restore snapshot %s: %w", r.s.snapshot, err)
	}
	r.log.Info("restored", "snapshot", r.s.snapshot)
	return errors.Join(os.Rename(dir, r.Dir.Data()), durable.SyncDir(string(r.Dir)), os.Remove(file))
}

// fetch writes the snapshot that is offered into a file.
func (r *runner) fetch(ctx context.Context, file string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	c, err := r.Caller()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.s.offer+"/snapshots/"+r.s.snapshot, nil)
	if err != nil {
		return err
	}
	answer, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text)))
	}
	return durable.Replace(file, 0o600, durable.From(answer.Body))
}

// tend does what a member needs once it runs: its identity is written, a learner is promoted,
// and etcd knows its users.
func (r *runner) tend(ctx context.Context) {
	var said text.Said
	for {
		done, err := r.settle(ctx)
		if done {
			r.state.set(func(s *state) { s.member = true })
			r.log.Info("the member votes, and etcd knows its users")
			return
		}
		if pause(ctx, again) != nil {
			return
		}
		if err != nil && said.New(err.Error(), time.Now()) {
			r.log.Info("the member is not ready yet", "error", err)
		}
	}
}

// settle says that the member votes at its address, and that etcd knows its users, or takes a step to that.
func (r *runner) settle(ctx context.Context) (done bool, err error) {
	m, list, _, err := r.Look(ctx)
	if m.ID != 0 { // It answered, if a majority did not.
		if _, _, failed := r.Settle(ctx, m, list); failed != nil {
			return false, failed
		}
	}
	if err != nil || m.Learner || member.OtherAddress(list, m.ID, r.Own.Peer) != "" {
		return false, err
	}
	own := []string{r.Client(r.Own.Host)}
	err = r.Call(ctx, own, func(ctx context.Context, g *etcdstore.Group) error {
		return g.Grant(ctx, r.s.user, r.s.prefix)
	})
	return err == nil, err
}
