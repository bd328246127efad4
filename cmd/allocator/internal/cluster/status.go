package cluster

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/text"
)

// StatusCommand returns "allocator status".
func StatusCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the cluster: nodes, clocks, sids and windows",
		Long: `Status asks one node for the records of the space in etcd, its own state, and the clocks
of the other nodes. It exits with 1 if the node asked would refuse a request now.

WINDOW LEFT is for how long a node can issue without etcd. LAST HEARD is when the node
asked last had an answer from it by gossip. CLOCK VERDICT is what each node says of its
own clock, or "silent" if it has not answered for 10 s; CLOCK OFFSET is its clock minus
that of the node asked, ± the error of that measurement, and FALSE marks a clock that a
majority disagrees with. A sid that is "not released" was held by a process that was
killed, is paused, or cannot reach etcd.

If etcd does not answer, status shows the nodes as the one asked last listed them, with
what they report by gossip.`,
		Example: "  allocator status --addr 10.0.0.5:9000",
		Args:    cobra.NoArgs,
	}
	format := cli.FormatFlag(cmd)
	connect := remote.NodesFlags(a, cmd, remote.DefaultAddr)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		nodes, err := connect()
		if err != nil {
			return err
		}
		defer nodes.Close()
		var c *pb.GetClusterResponse
		err = nodes.Ask(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			c, err = pb.NewAdminServiceClient(conn).GetCluster(ctx, &pb.GetClusterRequest{})
			return err
		})
		if err != nil {
			return err
		}
		v := newClusterView(c)
		if format.Value == "json" {
			err = cli.PrintLine(a.Out, v)
		} else {
			err = v.print(a.Out)
		}
		if err == nil && !v.Self.Ready {
			return cli.ErrInvalid
		}
		return err
	}
	return cmd
}

// clusterView is the cluster as this command shows it.
type clusterView struct {
	Space    string `json:"space"`
	Pool     string `json:"pool"`
	Layout   string `json:"layout"`
	Epoch    string `json:"epoch"`
	Era      int64  `json:"era"`
	Known    bool   `json:"known"`               // etcd answered: nodes and sids are its
	Problem  string `json:"problem,omitempty"`   // why it did not, or what is wrong with its records
	PoolSize int32  `json:"pool_size"`           // how many sids the space has
	PoolSIDs string `json:"pool_sids,omitempty"` // which; empty while unknown
	PoolHeld int    `json:"pool_held"`
	// WorkerSIDs are those that are for workers alone; empty: none.
	WorkerSIDs string     `json:"worker_sids,omitempty"`
	Nodes      []nodeLine `json:"nodes"`
	SIDs       []sidLine  `json:"sids"` // those ever used
	Self       selfLine   `json:"self"`
	holders    int        // of the layout
}

type nodeLine struct {
	Name     string `json:"name"`
	Instance string `json:"instance"`
	Version  string `json:"version"`
	GRPC     string `json:"grpc"`
	HTTP     string `json:"http"`
	Console  string `json:"console,omitempty"`   // URL of its pages for operators
	SID      int32  `json:"sid"`                 // -1: a standby
	SIDRange string `json:"sid_range,omitempty"` // that it may take; empty: all
	// Clock is null where the node asked has no sample of it.
	Clock *peerLine `json:"clock"`
}

type sidLine struct {
	SID      int32   `json:"sid"`
	State    string  `json:"state"`
	Term     int64   `json:"term"`
	Node     string  `json:"node"`
	WindowMs int64   `json:"window_remaining_ms"` // by the clock of the node asked; negative: past
	Ceiling  *string `json:"ceiling"`
	Problem  string  `json:"problem,omitempty"`
	// Written is how long ago the record was last written, by two machines' clocks.
	WrittenMs  int64 `json:"written_ago_ms"`
	Unreleased bool  `json:"unreleased"` // no holder, and the last one did not release it
	// Worker: a generator outside of the nodes, which Owner acquired.
	Worker bool   `json:"worker,omitempty"`
	Owner  string `json:"owner,omitempty"`
}

type selfLine struct {
	Name   string `json:"name"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	Why    string `json:"message,omitempty"`
	SID    int32  `json:"sid"`
	// WindowMs is for how long it can issue without etcd; 0: it holds no sid.
	WindowMs int64 `json:"window_remaining_ms"`
	Issued   int64 `json:"ids_issued"`
	// Clock is null where the node has no verdict.
	Clock *clockLine `json:"clock"`
}

func newClusterView(c *pb.GetClusterResponse) clusterView {
	self := c.GetSelf()
	v := clusterView{
		Space: c.GetSpace(), Pool: c.GetPool(), Era: c.GetEra(),
		Epoch:   clock.Millis(c.GetEpochUnixMs()).Time().Format(time.RFC3339Nano),
		Known:   len(c.GetSids()) > 0 || c.GetProblem() == "" && len(c.GetNodes()) > 0, // at least the node asked is registered
		Problem: c.GetProblem(), PoolSize: c.GetPoolSize(), PoolSIDs: c.GetPoolSids(), WorkerSIDs: c.GetWorkerSids(),
		Nodes: []nodeLine{}, SIDs: []sidLine{},
		Self: selfLine{
			Name: self.GetName(), Ready: self.GetReady(), SID: self.GetSid(), Issued: self.GetIdsIssued(), Why: self.GetMessage(),
			Clock: newClockLine(self.GetClock()),
		},
	}
	if self.GetSid() >= 0 {
		v.Self.WindowMs = max(0, self.GetCeilUnixMs()-self.GetNowUnixMs())
	}
	if !v.Self.Ready {
		v.Self.Reason = node.Reason(self.GetRefusing()).String()
	}
	if layout, err := remote.LayoutOf(c.GetLayout(), c.GetLayoutBits()); err == nil {
		v.Layout, v.holders = layout.String(), layout.Holders()
	}
	for _, n := range c.GetNodes() {
		v.Nodes = append(v.Nodes, nodeLine{n.GetName(), n.GetInstance(), n.GetVersion(), n.GetGrpcAddress(), n.GetHttpAddress(), n.GetConsoleUrl(), n.GetSid(), n.GetSidRange(), newPeerLine(n.GetClock())})
	}
	for _, s := range c.GetSids() {
		if s.GetState() == "held" {
			v.PoolHeld++
		}
		ceil := clock.Millis(s.GetCeilUnixMs()).Time().Format("2006-01-02T15:04:05.000Z")
		v.SIDs = append(v.SIDs, sidLine{
			s.GetSid(), s.GetState(), s.GetTerm(), s.GetNode(), s.GetCeilUnixMs() - self.GetNowUnixMs(), &ceil, s.GetProblem(),
			self.GetNowUnixMs() - s.GetWrittenUnixMs(), s.GetUnreleased(), s.GetWorker(), s.GetOwner(),
		})
	}
	return v
}

func (v clusterView) print(w io.Writer) error {
	sids := ""
	if v.PoolSIDs != "" && int(v.PoolSize) < v.holders {
		sids = fmt.Sprintf(", sids %s of %d", v.PoolSIDs, v.holders)
	}
	fmt.Fprintf(w, "space %s: layout %s%s, epoch %s, era %d\n", v.Space, v.Layout, sids, v.Epoch, v.Era)
	switch {
	case v.Known:
		fmt.Fprintf(w, "%s; %d of %d sids held", text.Count(len(v.Nodes), "node"), v.PoolHeld, v.PoolSize)
		if v.WorkerSIDs != "" {
			fmt.Fprintf(w, ", sids %s are for workers", v.WorkerSIDs)
		}
		fmt.Fprintln(w)
	case v.Problem == "":
		fmt.Fprintln(w, "no node is registered, not even the one asked: it has only just started, or lost its lease")
	}
	if v.Problem != "" {
		fmt.Fprintln(w, v.Problem)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	v.printNodes(t)
	v.printWorkers(t)
	v.printSIDs(t)
	if err := t.Flush(); err != nil {
		return err
	}
	v.printNames(w)
	state := "ready"
	if !v.Self.Ready {
		state = fmt.Sprintf("not ready: %s: %s", v.Self.Reason, v.Self.Why)
	}
	if v.Self.SID >= 0 {
		state += fmt.Sprintf("; sid %d, window left %s", v.Self.SID, seconds(v.Self.WindowMs))
	}
	_, err := fmt.Fprintf(w, "\n%s: %s; %s issued\n", v.Self.Name, state, text.Count(int(v.Self.Issued), "ID"))
	if err != nil || v.Self.Clock == nil {
		return err
	}
	return v.Self.Clock.print(w)
}

func (v clusterView) printNodes(w io.Writer) {
	bySID := map[int32]sidLine{}
	for _, s := range v.SIDs {
		bySID[s.SID] = s
	}
	if len(v.Nodes) > 0 {
		fmt.Fprintln(w, "\nNODE\tSID\tTERM\tWINDOW LEFT\tLAST HEARD\tCLOCK VERDICT\tCLOCK OFFSET\tGRPC\tHTTP\tVERSION")
	}
	for _, n := range v.Nodes {
		sid, term, left := "standby", "-", "-"
		if n.SID >= 0 {
			sid = strconv.Itoa(int(n.SID))
		} else if !v.Known {
			sid = "unknown"
		}
		if s, ok := bySID[n.SID]; ok {
			term, left = fmt.Sprint(s.Term), seconds(s.WindowMs)
		} else if n.Clock != nil && n.Clock.Self && v.Self.SID >= 0 { // all that is known without etcd
			left = seconds(v.Self.WindowMs)
		}
		if n.SIDRange != "" {
			sid += " of " + n.SIDRange
		}
		heard, verdict, offset := n.Clock.columns()
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, sid, term, left, heard, verdict, offset, cli.OrDash(n.GRPC), cli.OrDash(n.HTTP), n.Version)
	}
}

// printWorkers prints the workers that hold sids.
func (v clusterView) printWorkers(w io.Writer) {
	header := false
	for _, s := range v.SIDs {
		if s.State != "held" || !s.Worker {
			continue
		}
		if !header {
			fmt.Fprintln(w, "\nWORKER\tSID\tTERM\tINTERVAL LEFT\tLAST EXTENDED\tOWNER")
			header = true
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s ago\t%s\n", s.Node, s.SID, s.Term, seconds(s.WindowMs), time.Duration(s.WrittenMs*1e6).Round(time.Second), cli.OrDash(s.Owner))
	}
}

// printSIDs prints the sids that nobody holds.
func (v clusterView) printSIDs(w io.Writer) {
	header := false
	for _, s := range v.SIDs {
		if s.State == "held" {
			continue
		}
		if !header {
			fmt.Fprintln(w, "\nSID\tSTATE\tTERM\tLAST HELD BY\tLAST WRITTEN\tUSABLE\tPROBLEM")
			header = true
		}
		usable, problem := "now", s.Problem
		if s.WindowMs > 0 {
			usable, problem = "in "+seconds(s.WindowMs), ""
		}
		if s.State == "quarantined" {
			usable, problem = "no", s.Problem
		}
		if s.Unreleased && problem == "" {
			problem = "not released"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s ago\t%s\t%s\n", s.SID, s.State, s.Term, s.Node, time.Duration(s.WrittenMs*1e6).Round(time.Second), usable, problem)
	}
}

// printNames points out the names that several processes have.
func (v clusterView) printNames(w io.Writer) {
	count := map[string]int{}
	for _, n := range v.Nodes {
		if count[n.Name]++; count[n.Name] == 2 {
			fmt.Fprintf(w, "\nSeveral processes are registered as %s. If that lasts for longer than a lease, set node.name on each.\n", n.Name)
		}
	}
}

func seconds(ms int64) string { return fmt.Sprintf("%.1fs", float64(ms)/1000) }
