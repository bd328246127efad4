package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
)

// StatusCommand returns "allocator status".
func StatusCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Aliases: []string{"top"},
		Short:   "Show the cluster: nodes, clocks, sids and windows",
		Long: `Status asks one node for the records of the space in etcd, its own state, and the clocks
of the other nodes. It exits with 1 if the node asked would refuse a request now.

The third line says whether all is well, or what is wrong most.

STATE           serving, standby, silent, unknown (without gossip), or the reason why it refuses
WINDOW LEFT     how long the node can issue without etcd
LAST HEARD      when it last answered the node asked, by gossip
CLOCK VERDICT   what it says of its own clock; "silent" if it does not answer
CLOCK OFFSET    its clock minus that of the node asked, ± the error of the measurement;
                FALSE: a majority disagrees with it

A sid that is "not released" was held by a process that was killed, is paused, or cannot
reach etcd. If etcd does not answer, status shows the last list and what gossip reports.

With --watch it shows all of it again each second on a terminal, with IDs a second, requests
refused a second and the latest events, until it is interrupted. "allocator top" is the same.`,
		Example: "  allocator status --addr 10.0.0.5:9000\n  allocator status --watch",
		Args:    cobra.NoArgs,
	}
	format := cli.FormatFlag(cmd)
	again := cmd.Flags().Bool("watch", false, "show it again each second, on a terminal")
	connect := remote.NodesFlags(a, cmd, remote.DefaultAddr)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		terminal := a.OutTerminal()
		watch := *again || cmd.CalledAs() == "top"
		switch {
		case watch && format.JSON():
			return cli.UsageError("--watch is for people: leave it out with --format json")
		case watch && terminal == nil:
			return cli.UsageError("stdout is no terminal: \"allocator status\" prints one view")
		}
		nodes, err := connect()
		if err != nil {
			return err
		}
		defer nodes.Close()
		if watch {
			return (&watcher{nodes: nodes}).run(cmd.Context(), terminal)
		}
		var c status.Cluster
		err = nodes.Ask(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			c, err = status.Ask(ctx, conn)
			return err
		})
		if err != nil {
			return err
		}
		if format.JSON() {
			err = cli.PrintLine(a.Out, c)
		} else {
			err = view{c, false}.print(a.Out)
		}
		if err == nil && !c.Self.Ready {
			return cli.ErrInvalid
		}
		return err
	}
	return cmd
}

// view is a picture of the cluster as this command prints it.
type view struct {
	status.Cluster
	rates bool // It shows how much nodes issue and refuse, which a second look knows, and to whom.
}

// left returns the time until t by the clock of the node asked, in ms; negative: it is past.
func (v view) left(t int64) int64 { return t - v.Self.Now }

// ago writes how long ago t was, by the clocks of two machines.
func (v view) ago(t int64) string {
	return clock.Millis(v.Self.Now-t).Duration().Round(time.Second).String() + " ago"
}

func (v view) print(w io.Writer) error {
	sids := ""
	layout, err := flake.ParseLayout(v.Layout)
	if err == nil && v.PoolSIDs != "" && v.PoolSize < layout.Holders() {
		sids = fmt.Sprintf(", sids %s of %d", v.PoolSIDs, layout.Holders())
	}
	epoch := clock.Millis(v.EpochUnixMs).Time().Format(time.RFC3339Nano)
	fmt.Fprintf(w, "space %s: layout %s%s, epoch %s, era %d\n", v.Space, v.Layout, sids, epoch, v.Era)
	switch {
	case v.Read != 0 && len(v.Nodes) > 0:
		fmt.Fprintf(w, "%s; %d of %d sids held", text.Count(len(v.Nodes), "node"), v.held(), v.PoolSize)
		if v.WorkerSIDs != "" {
			fmt.Fprintf(w, ", sids %s are for workers", v.WorkerSIDs)
		}
		fmt.Fprintln(w)
	case v.Read != 0:
		fmt.Fprintln(w, "no node is registered, not even the one asked: it has only just started, or lost its lease")
	case v.Problem != "":
		fmt.Fprintln(w, v.Problem)
	}
	fmt.Fprintln(w, v.Summary.Text)
	for _, p := range v.Problems[min(len(v.Problems), 1):] {
		fmt.Fprintln(w, p.Text)
	}
	if line := v.WatermarkLine(); line != "" {
		fmt.Fprintln(w, line)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	v.printNodes(t)
	v.printWorkers(t)
	v.printSIDs(t)
	if v.rates {
		v.printCallers(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	state := "ready"
	if !v.Self.Ready {
		state = fmt.Sprintf("not ready: %s: %s", v.Self.Refusing, v.Self.Message)
	}
	if v.Self.SID >= 0 {
		state += fmt.Sprintf("; sid %d, window left %s", v.Self.SID, text.Seconds(v.Self.Left()))
	}
	if total := v.Total(); v.rates {
		fmt.Fprintf(w, "\n%s a second by all nodes; refused: %s\n", text.Count(int(total.Rate), "ID"),
			total.Work.Refusals())
	}
	_, err = fmt.Fprintf(w, "\n%s: %s; %s issued\n", v.Self.Name, state, text.Count(int(v.Self.Issued), "ID"))
	if err != nil || v.Self.Clock == nil {
		return err
	}
	return printClock(w, v.Self.Clock)
}

func (v view) held() (n int) {
	for _, s := range v.SIDs {
		if s.State == "held" {
			n++
		}
	}
	return n
}

func (v view) printNodes(w io.Writer) {
	bySID := map[int]status.SID{}
	for _, s := range v.SIDs {
		bySID[s.SID] = s
	}
	if len(v.Nodes) > 0 {
		fmt.Fprintln(w, "\nNODE\tSTATE\tSID\tTERM\tWINDOW LEFT\tLAST HEARD\tCLOCK VERDICT\tCLOCK OFFSET\t"+
			v.rate("IDS/S\tLEAD\t", nil)+"GRPC\tHTTP\tVERSION")
	}
	for _, n := range v.Nodes {
		sid, term, left := "standby", "-", "-"
		if n.SID >= 0 {
			sid = strconv.Itoa(n.SID)
		} else if v.Read == 0 {
			sid = "unknown"
		}
		if s, ok := bySID[n.SID]; ok {
			term = strconv.FormatInt(s.Term, 10)
		}
		if n.Ceil != 0 {
			left = text.Seconds(v.left(n.Ceil))
		}
		if n.SIDRange != "" {
			sid += " of " + n.SIDRange
		}
		heard, verdict, offset := columns(n.Clock)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s%s\t%s\t%s\n",
			n.Name, n.What(), sid, term, left, heard, verdict, offset, v.rate("-\t-\t", n.Report), cli.OrDash(n.GRPC),
			cli.OrDash(n.HTTP), n.Version)
	}
}

// rate returns the columns of a node's rate, if they are shown; without a report those given.
func (v view) rate(without string, r *status.Report) string {
	switch {
	case !v.rates:
		return ""
	case r == nil:
		return without
	}
	return fmt.Sprintf("%d\t%dms\t", r.Rate, r.Lead)
}

// printWorkers prints the workers that hold sids, and how many each owner has if there are several.
func (v view) printWorkers(w io.Writer) {
	header, owned := false, map[string]int{}
	for _, s := range v.SIDs {
		if s.State != "held" || !s.Worker {
			continue
		}
		if !header {
			fmt.Fprintln(w, "\nWORKER\tSID\tTERM\tINTERVAL LEFT\tLAST EXTENDED\tOWNER")
			header = true
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\n", s.Node, s.SID, s.Term, text.Seconds(v.left(s.Ceil)),
			v.ago(s.Written), cli.OrDash(s.Owner))
		owned[cli.OrDash(s.Owner)]++
	}
	if len(owned) < 2 {
		return
	}
	fmt.Fprintln(w, "\nOWNER\tWORKERS")
	for _, owner := range slices.SortedFunc(maps.Keys(owned), func(a, b string) int {
		return cmp.Or(owned[b]-owned[a], strings.Compare(a, b))
	}) {
		fmt.Fprintf(w, "%s\t%d\n", owner, owned[owner])
	}
}

// printCallers prints who holds most of the node asked.
func (v view) printCallers(w io.Writer) {
	if len(v.Callers) > 0 {
		fmt.Fprintf(w, "\nCALLER OF %s\tCONNECTIONS\tSTREAMS\tWAITING CALLS\tKIB\n", strings.ToUpper(v.Self.Name))
	}
	for _, c := range v.Callers {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", c.Source, c.Connections, c.Streams, c.Waiting, c.Bytes>>10)
	}
}

// printSIDs prints the sids that nobody holds.
func (v view) printSIDs(w io.Writer) {
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
		if left := v.left(s.Ceil); left > 0 {
			usable, problem = "in "+text.Seconds(left), ""
		}
		if s.State == status.Quarantined || s.State == status.Reserved {
			usable, problem = "no", s.Problem
		}
		if s.Unreleased && problem == "" {
			problem = "not released"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%s\t%s\n",
			s.SID, s.State, s.Term, s.Node, v.ago(s.Written), usable, problem)
	}
}
