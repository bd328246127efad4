// Package etcd holds the commands for the etcd that nodes run inside: its members, databases, snapshots
// and certificates. What changes members shows its plan, with the question whether the quorum survives
// it, and asks.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Command returns "allocator etcd".
func Command(a *cli.App) *cobra.Command {
	return cli.Parent("etcd", "The etcd that nodes run inside: members, databases, snapshots, certificates",
		certsCommand(a), statusCommand(a), removeCommand(a), replaceCommand(a),
		defragmentCommand(a), snapshotCommand(a), verifyCommand(a), restoreCommand(a), runCommand(a))
}

// runCommand returns "allocator etcd run", which a node starts.
func runCommand(*cli.App) *cobra.Command {
	return &cobra.Command{
		Use:    "run DIRECTORY",
		Short:  "Run the member of a directory that \"allocator serve --etcd.inside\" prepared",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return inside.Serve(cmd.Context(), inside.Dir(args[0]), etcdserver.Run)
		},
	}
}

// call is a command that asks the members.
type call struct {
	a       *cli.App
	cmd     *cobra.Command
	format  *cli.Choice
	timeout *time.Duration
	load    func() (config.Config, []config.Setting, error)
	dryRun  *bool // nil: the command changes nothing
	yes     *bool // nil: the command does not ask
	reason  *string
}

func newCall(a *cli.App, cmd *cobra.Command, changes bool) *call {
	c := &call{a: a, cmd: cmd, format: cli.FormatFlag(cmd)}
	if changes {
		c.dryRun = cmd.Flags().Bool("dry-run", false, "show the plan, and change nothing")
		c.yes = cmd.Flags().Bool("yes", false, "do not ask for confirmation")
		c.reason = cmd.Flags().String("reason", "", cli.WhyDone)
	}
	c.timeout = cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for etcd")
	c.load = a.Settings(cmd)
	cli.ListSettings(cmd, "etcd", "log")
	return c
}

// do calls f with the members, as those of any etcd that has a space, for as long as --timeout says.
func (c *call) do(f func(ctx context.Context, s *deployment.Space, g *etcdstore.Group) error) error {
	open := deployment.OpenSpace
	if c.yes == nil {
		open = deployment.ViewSpace
	}
	s, err := open(c.a, "etcd "+c.cmd.Name(), c.load)
	if err != nil {
		return err
	}
	defer s.Close()
	g, err := s.Store.Group()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.cmd.Context(), *c.timeout)
	defer cancel()
	return f(ctx, s, g)
}

// record has nodes log what is done to their etcd. Without it that is done all the same: etcd may be ill.
func (c *call) record(title string) {
	if err := c.do(func(ctx context.Context, s *deployment.Space, _ *etcdstore.Group) error {
		return s.Store.Record(ctx, cli.Act(title, *c.reason))
	}); err != nil {
		fmt.Fprintf(c.a.Err, "warning: nodes do not log who did this: %v\n", err)
	}
}

// with returns what runs f with the members.
func (c *call) with(f func(ctx context.Context, s config.Config, g *etcdstore.Group, args []string) error) func(
	*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		return c.do(func(ctx context.Context, s *deployment.Space, g *etcdstore.Group) error {
			return f(ctx, s.Cfg, g, args)
		})
	}
}

// seen is what the members say.
type seen struct {
	list    []member.Status
	cluster uint64
	problem error // A majority does not answer.
}

// errLeaderless is why no list of members is waited for.
var errLeaderless = errors.New("none of them has a leader")

// leaderTimeout is how long status waits for a leader: an election on a busy machine takes seconds. A command that
// changes something waits until --timeout, since what it does is right only if no majority can answer.
const leaderTimeout = 5 * time.Second

// look asks the members for their list, and those in the settings each by itself. If none of these gets a leader within
// a time, which may be 0 forever, the list is not waited for: they are returned then, with the problem.
func (c *call) look(ctx context.Context, s config.Config, g *etcdstore.Group, leaderless time.Duration) seen {
	var known []member.Member
	for _, url := range s.Etcd.Addresses() {
		known = append(known, member.Member{Name: member.HostOf(url), Clients: []string{url}})
	}
	listing, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	asked := make(chan []member.Status, 1)
	go func() {
		var list []member.Status
		for end := time.Now().Add(leaderless); ; time.Sleep(100 * time.Millisecond) {
			list = g.Status(context.WithoutCancel(ctx), known) // Each answer has a limit of its own.
			if slices.ContainsFunc(list, func(m member.Status) bool { return m.Leader }) || listing.Err() != nil {
				break
			} else if leaderless > 0 && time.Now().After(end) {
				stop(errLeaderless)
				break
			}
		}
		asked <- list
	}()
	out := seen{}
	var list []member.Member
	if out.cluster, list, out.problem = g.List(listing); out.problem == nil {
		out.list = g.Status(ctx, list)
	} else if out.list = <-asked; context.Cause(listing) == errLeaderless {
		out.problem = errLeaderless
	}
	for _, m := range out.list {
		if out.cluster == 0 {
			out.cluster = m.Cluster
		}
	}
	return out
}

// ask asks the members for a command that does its work without them too.
func (c *call) ask() (in seen) {
	if err := c.do(func(ctx context.Context, s *deployment.Space, g *etcdstore.Group) error {
		in = c.look(ctx, s.Cfg, g, 0)
		return nil
	}); err != nil {
		in.problem = err
	}
	return in
}

// unavailable is the error of a cluster without a quorum.
func unavailable(s config.Config, err error) error {
	return cli.Exit(cli.ExitUnavailable, fmt.Errorf("no majority of %s answers: %w; \"allocator etcd status\" shows "+
		"which do", strings.Join(s.Etcd.Addresses(), ", "), err))
}

// plan is what a change would do.
type plan struct {
	Title    string   `json:"plan"`
	Found    []string `json:"found,omitempty"`
	Quorum   string   `json:"quorum,omitempty"` // whether it survives
	Does     []string `json:"does"`
	Then     []string `json:"then,omitempty"`
	question string
}

// run shows a plan, asks, and reports whether to carry it out.
func (c *call) run(p plan, refused error) (bool, error) {
	if *c.dryRun && c.format.Value == "json" {
		return false, errors.Join(cli.PrintLine(c.a.Out, p), refusal(refused))
	}
	w := c.a.Err
	for _, text := range p.Found {
		fmt.Fprintln(w, text)
	}
	if p.Quorum != "" {
		fmt.Fprintf(w, "does the quorum survive this? %s\n", p.Quorum)
	}
	if refused != nil {
		return false, refusal(refused)
	}
	fmt.Fprintf(w, "\n%s:\n", p.Title)
	for _, text := range p.Does {
		fmt.Fprintf(w, "  %s\n", text)
	}
	if len(p.Then) > 0 {
		fmt.Fprintln(w, "then it is for you to:")
		for _, text := range p.Then {
			fmt.Fprintf(w, "  %s\n", text)
		}
	}
	if *c.dryRun {
		_, err := fmt.Fprintln(c.a.Out, "nothing was changed (--dry-run)")
		return false, err
	}
	return true, cli.Confirm(c.a, *c.yes, p.question)
}

func refusal(err error) error {
	if err == nil {
		return nil
	}
	return cli.Exit(cli.ExitInvalid, fmt.Errorf("%w; nothing was changed", err))
}
