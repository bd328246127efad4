package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/operate"
)

// change is a command that changes records in etcd. It shows its plan, asks, and carries it
// out.
type change struct {
	a       *cli.App
	cmd     *cobra.Command
	dryRun  *bool
	yes     *bool // nil: the command does not ask.
	timeout *time.Duration
	format  *cli.Choice
	reason  *string
	load    cli.Loader
	ask     func(context.Context, *deployment.Space, lease.View) operate.Answers // nil: nodes are not asked.
}

// changeFlags adds the flags of a change to cmd, one of them for a reason.
func changeFlags(a *cli.App, cmd *cobra.Command, asks bool, reason string) *change {
	c := &change{a: a, cmd: cmd}
	c.dryRun = cmd.Flags().Bool("dry-run", false, "show what would be compared and written, and write nothing")
	if asks {
		c.yes = cmd.Flags().Bool("yes", false, "do not ask for confirmation")
	}
	c.timeout = cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for etcd")
	c.format = cli.FormatFlag(cmd)
	c.reason = cmd.Flags().String("reason", "", reason)
	c.load = a.Settings(cmd)
	return c
}

// do makes a plan for the space, and carries it out as run does.
func (c *change) do(plan func(*operate.Operator) (operate.Plan, error)) (p operate.Plan, done bool, err error) {
	s, err := deployment.OpenSpace(c.a, "admin "+c.cmd.Name(), c.load)
	if err != nil {
		return p, false, err
	}
	defer s.Close()
	s.Store.Timeout = *c.timeout
	o := operate.New(operate.Config{
		Store:  s.Store,
		Ask:    func(ctx context.Context, v lease.View) operate.Answers { return c.ask(ctx, s, v) },
		Author: author,
		Bounds: s.Cfg.Bounds(),
		Etcd:   strings.Join(s.Cfg.Etcd.Addresses(), ","),
	})
	p, err = plan(o)
	return c.run(o, p, err)
}

// author signs one write of this run.
func author() repair.Author {
	return repair.Author{
		Who:      cli.OperatorName(),
		Instance: lease.Instance(uuid.NewString()),
		Nonce:    rand.Text(),
		Now:      deployment.WallNow(),
	}
}

// run shows a plan, asks, carries the plan out, and returns it as it was done. done is
// false if there was nothing to do, or if nothing should be.
func (c *change) run(o *operate.Operator, p operate.Plan, err error) (_ operate.Plan, done bool, _ error) {
	if err != nil {
		return p, false, failed(err)
	}
	if p.Refused == nil && len(p.Writes) == 0 {
		return p, false, nil
	}
	if *c.dryRun && c.format.JSON() {
		return p, false, errors.Join(cli.PrintLine(c.a.Out, p), failed(p.Refused))
	}
	c.show(p)
	switch {
	case p.Refused != nil:
		return p, false, failed(p.Refused)
	case *c.dryRun:
		_, err := fmt.Fprintln(c.a.Out, "nothing was written (--dry-run)")
		return p, false, err
	case c.yes != nil:
		if err := cli.Confirm(c.a, *c.yes, strings.ToUpper(p.Title[:1])+p.Title[1:]+"?"); err != nil {
			return p, false, err
		}
	}
	p.Accepted, p.Act = p.Obstacles, cli.Act(p.Title, *c.reason) // The operator was shown the obstacles.
	p, err = o.Do(c.cmd.Context(), p)
	return p, err == nil, failed(err)
}

// show prints a plan for the person who confirms it.
func (c *change) show(p operate.Plan) {
	w := c.a.Err
	for _, text := range p.Found {
		fmt.Fprintln(w, text)
	}
	if len(p.Nodes) > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\nNODE\tGRPC\tERA SEEN\tREVISION SEEN\tHIGHEST CEILING\tSTATE")
		for _, n := range p.Nodes {
			era, revision := "?", "?"
			if n.Answered {
				era, revision = fmt.Sprint(n.Era), fmt.Sprint(n.Revision)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n",
				cli.OrDash(n.Name), cli.OrDash(n.GRPC), era, revision, n.Ceiling(), n.State)
		}
		_ = t.Flush()
	}
	for _, text := range p.Warnings {
		fmt.Fprintf(w, "warning: %s\n", text)
	}
	for _, o := range p.Obstacles {
		fmt.Fprintf(w, "warning: %s\n", o)
	}
	if len(p.Writes) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s. Nothing is written unless all of these hold:\n", p.Title)
	for _, text := range p.Compares {
		fmt.Fprintf(w, "  %s\n", text)
	}
	fmt.Fprintln(w, "then:")
	for _, text := range p.Writes {
		fmt.Fprintf(w, "  %s\n", text)
	}
}

// failed gives an error of a change its exit code, and says what to do.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, operate.ErrOtherSpace):
		return cli.Exit(cli.ExitUsage, err)
	case errors.Is(err, operate.ErrPartly):
		return cli.Exit(cli.ExitInvalid, fmt.Errorf("%w: run the command again; it goes on with the others", err))
	case errors.Is(err, repair.ErrRefused), errors.Is(err, repair.ErrNotInitialized):
		return cli.Exit(cli.ExitInvalid, err)
	case errors.Is(err, repair.ErrChanged):
		return cli.Exit(cli.ExitInvalid, fmt.Errorf("%w: nothing was written; run the command again", err))
	case errors.Is(err, operate.ErrUnknown):
		return cli.Exit(cli.ExitUnavailable, fmt.Errorf("%w: run the command again; it shows the current state", err))
	}
	return cli.Exit(cli.ExitUnavailable,
		fmt.Errorf("%w\nCheck that etcd runs and that --etcd.endpoints is right; \"allocator doctor\" shows more", err))
}

// timeFlag adds a flag whose value is a point in time; 0: not given.
func timeFlag(cmd *cobra.Command, name, usage string) *clock.Millis {
	var at clock.Millis
	cmd.Flags().Func(name, usage, func(s string) (err error) {
		at, err = operate.ParseTime(s)
		return err
	})
	return &at
}
