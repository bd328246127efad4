package remote

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
)

// Nodes are the nodes that a client command asks.
type Nodes struct {
	Addrs   []string
	Conns   []*grpc.ClientConn
	first   int           // whom to ask first: whoever answered last, so that a dead one costs its delay once
	Timeout time.Duration // A command's request may take this long, retries included.
	dialer  Dialer
}

// NodesFlags adds --addr and --timeout, and the flags of DialFlags, to cmd and returns what connects.
func NodesFlags(a *cli.App, cmd *cobra.Command, def ...string) func() (*Nodes, error) {
	connect := nodesFlags(a, cmd, false, def...)
	return func() (*Nodes, error) { return first(connect()) }
}

// SpacesFlags is NodesFlags for a command that asks several spaces: each --addr has nodes of
// one. What it returns closes nothing.
func SpacesFlags(a *cli.App, cmd *cobra.Command, def string) func() ([]*Nodes, error) {
	return nodesFlags(a, cmd, true, def)
}

func nodesFlags(a *cli.App, cmd *cobra.Command, spaces bool, def ...string) func() ([]*Nodes, error) {
	addrs := addrFlag(a, cmd, spaces, def...)
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "how long to try")
	dialing := DialFlags(a, cmd)
	return func() (all []*Nodes, _ error) {
		if *timeout <= 0 {
			return nil, cli.UsageError("--timeout is %v: it has to be above 0", *timeout)
		}
		d, err := dialing()
		if err != nil {
			return nil, err
		}
		for _, list := range addrs() {
			if len(list) == 0 {
				return nil, cli.UsageError("--addr: no address is given")
			}
			n := &Nodes{Addrs: list, Timeout: *timeout, dialer: d}
			for _, addr := range list {
				c, err := d.Dial(addr)
				if err != nil {
					return nil, err // The command ends, and nothing is connected yet.
				}
				n.Conns = append(n.Conns, c)
			}
			all = append(all, n)
		}
		return all, nil
	}
}

// addrFlag adds --addr, and returns what gives the addresses, or those of each space where each --addr has
// nodes of one. Where the flag is not given they are those of the environment.
func addrFlag(a *cli.App, cmd *cobra.Command, spaces bool, def ...string) func() [][]string {
	usage, or := "gRPC `addresses` of nodes as host:port or unix:/path, comma-separated or given several times: the "+
		"first that answers is used", ""
	if spaces {
		usage, or = "gRPC `addresses` of nodes of a space, comma-separated: the first that answers is used; given "+
			"several times, one for each space", ", of one space"
	}
	if len(def) > 0 { // Else to ask a node at all is what the flag is for.
		usage += " (or $" + config.EnvAddr + or + ")"
	}
	flag := cmd.Flags().StringArray("addr", def, usage)
	return func() [][]string {
		given := *flag
		if env := a.Getenv(config.EnvAddr); env != "" && !cmd.Flags().Changed("addr") {
			given = []string{env}
		}
		if !spaces {
			given = []string{strings.Join(given, ",")}
		}
		var lists [][]string
		for _, list := range given {
			var addrs []string
			for _, addr := range strings.Split(list, ",") { // A path may have spaces.
				if addr = strings.TrimSpace(addr); addr != "" {
					addrs = append(addrs, addr)
				}
			}
			lists = append(lists, addrs)
		}
		return lists
	}
}

// DefaultAddr is where a node listens that is told nothing, and dev's first.
var DefaultAddr = config.Default().Listen.GRPC

// Close closes all connections.
func (n *Nodes) Close() {
	for _, c := range n.Conns {
		_ = c.Close()
	}
}

// Ask calls f for one node after the other until one answers. A node that is
// down, does not answer within its share of the time, or refuses for a reason of
// its own is passed over at once; a fault of the caller's ends it, since every
// node would say the same. Where a node named a time to retry at, all are asked
// again then, within n.timeout.
//
// The error names what each node said. Its exit code is 1 if any refused, and 3
// if none answered.
func (n *Nodes) Ask(ctx context.Context, f func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	refusals := make([]string, len(n.Conns)) // the last of each node
	for {
		var pause time.Duration
		answers, refused := make([]string, 0, len(n.Conns)), false
		for i := range n.Conns {
			at := (n.first + i) % len(n.Conns)
			share := time.Until(deadline) / time.Duration(len(n.Conns)-i)
			attempt, cancel := context.WithTimeout(ctx, share)
			err := f(attempt, n.Conns[at])
			cancel()
			if err == nil {
				n.first = at
				return nil
			}
			if errors.Is(ctx.Err(), context.Canceled) {
				return cli.ErrInterrupted
			}
			var retry time.Duration
			said := status.Convert(err).Message()
			switch r := client.RefusalOf(err, n.Addrs[at]); {
			case r != nil:
				retry, said = r.RetryAfter, " refused: "+string(r.Reason)+": "+r.Message
				refusals[at] = said
			case status.Code(err) == codes.DeadlineExceeded && refusals[at] != "":
				said = refusals[at] // our time is up: what it said before is why
			default:
				said = ": " + said
			}
			refused = refused || refusals[at] != ""
			answers = append(answers, fmt.Sprintf("node at %s%s", n.Addrs[at], said))
			if callersFault(status.Code(err), retry) {
				return cli.Exit(cli.ExitInvalid, errors.New(answers[len(answers)-1]))
			}
			if retry > 0 && (pause == 0 || retry < pause) {
				pause = retry
			}
		}
		if pause == 0 || time.Until(deadline) < pause {
			return n.failed(answers, refused)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return cli.ErrInterrupted
			}
			return n.failed(answers, refused) // The pause ended at the deadline, or was late.
		}
	}
}

// failed is the error of a request that no node carried out.
func (n *Nodes) failed(answers []string, refused bool) error {
	text := strings.Join(answers, "\n")
	switch {
	case refused && len(answers) == 1:
		return cli.Exit(cli.ExitInvalid, errors.New(text))
	case refused:
		return cli.Exit(cli.ExitInvalid, fmt.Errorf("none of %d nodes did it:\n%s", len(answers), text))
	}
	if hint := n.dialer.Hint(text); hint != "" { // something answers
		return cli.Exit(cli.ExitUnavailable, errors.New(hint+text))
	}
	return cli.Exit(cli.ExitUnavailable,
		fmt.Errorf("no node answers at %s: is one running? Give --addr host:port or $%s, or, to try it, %s\n%s",
			strings.Join(n.Addrs, ", "), config.EnvAddr, cli.TryDev, dialing.ReplaceAllString(text, "$1")))
}

// Cause returns the line of an error of Ask that says what a node answered, without the advice for people
// who run another command.
func Cause(err error) string {
	lines := strings.Split(err.Error(), "\n")
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "node at ") }); i >= 0 {
		return lines[i]
	}
	return lines[0]
}

// dialing is what gRPC puts around the cause of a connection that failed.
var dialing = regexp.MustCompile(`connection error: desc = "transport: Error while dialing: ([^"]*)"`)

// Unavailable is the error of a call that no node answered, the one at last.
func (n *Nodes) Unavailable(at int, err error) error {
	return n.failed([]string{fmt.Sprintf("node at %s: %s", n.Addrs[at], status.Convert(err).Message())}, false)
}

// callersFault reports whether every node would refuse alike: another one is not asked then.
func callersFault(code codes.Code, retry time.Duration) bool {
	switch code {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.NotFound:
		return true
	case codes.FailedPrecondition:
		return retry == 0
	}
	return false
}
