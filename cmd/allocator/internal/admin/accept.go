package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// acceptCommand returns "allocator admin accept-time".
func acceptCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept-time",
		Short: "Let nodes follow clocks that are further ahead than they follow by themselves",
		Long: `Accept-time states that clocks are right which nodes do not follow: every clock was set
ahead by more than clock.step-limit, or the space was switched off for longer than
clock.downtime-limit. Nodes then follow, within a minute, clocks that read at most the
accepted time: an hour from now by this machine's clock, or --until.

Run it on a machine whose clock you trust. Time that was used in IDs cannot be taken
back: if the clocks are wrong, repair the time source instead. Nodes keep their own time
meanwhile and go on to serve.

The acceptance counts in the present era. Of several commands that run at once one
writes; a second one finds the time accepted and writes nothing.`,
		Example: "  allocator admin accept-time --etcd.endpoints http://10.0.0.1:2379 --dry-run\n" +
			"  allocator admin accept-time --etcd.endpoints http://10.0.0.1:2379",
		Args: cobra.NoArgs,
	}
	var until timeFlag
	cmd.Flags().Var(&until, "until", "accept clocks up to this time, and not up to an hour from now")
	dryRun := cmd.Flags().Bool("dry-run", false, "show what would be compared and written, and write nothing")
	yes := cmd.Flags().Bool("yes", false, "do not ask for confirmation")
	timeout := cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for etcd")
	format := cli.FormatFlag(cmd)
	load := a.Settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := deployment.OpenSpace(a, "admin accept-time", load)
		if err != nil {
			return err
		}
		defer s.Close()
		v, err := loadSpace(cmd.Context(), s, *timeout)
		if err != nil {
			return repairError(err, false)
		}
		plan, err := repair.AcceptTime(v, clock.Millis(until), s.Cfg.Clock.StepLimit, operatorName(), author())
		if err != nil {
			return repairError(err, false)
		}
		asJSON := format.Value == "json"
		if plan.Done {
			return printAccepted(a, plan, false, asJSON)
		}
		showAcceptance(a, plan)
		if *dryRun {
			return printDryRun(a, s, v, plan, asJSON)
		}
		if err := confirm(a, *yes, fmt.Sprintf("Accept clocks up to %s?", repair.At(plan.Accepted.Until))); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		if err := s.Store.AcceptTime(ctx, v, plan.Accepted); err != nil {
			return acceptError(ctx, s, v, err)
		}
		return printAccepted(a, plan, true, asJSON)
	}
	return cmd
}

// operatorName returns who runs the command, and where, as well as it is known.
func operatorName() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	return strings.ToValidUTF8(name+"@"+cmp.Or(host, "unknown"), "?")
}

// acceptError names the acceptance that another command wrote in between.
func acceptError(ctx context.Context, s *deployment.Space, seen lease.View, err error) error {
	if errors.Is(err, repair.ErrChanged) {
		if now, loadErr := s.Store.Load(ctx); loadErr == nil && now.Accepted.Exists() && !now.Accepted.Same(seen.Accepted) {
			other := now.Accepted.Value
			err = fmt.Errorf("%q accepted times up to %s meanwhile: %w", other.By, repair.At(other.Until), err)
		}
	}
	return repairError(err, true)
}

func showAcceptance(a *cli.App, plan repair.Acceptance) {
	fmt.Fprintf(a.Err, "latest record: %s, of %s\nthis machine's clock: %s, %v later\n", repair.At(plan.Latest), plan.LatestOf,
		repair.At(plan.Accepted.At), (plan.Accepted.At - plan.Latest).Duration().Round(time.Second))
	if plan.Before.Until != 0 {
		fmt.Fprintf(a.Err, "accepted before: up to %s, by %q at %s\n", repair.At(plan.Before.Until), plan.Before.By, repair.At(plan.Before.At))
	}
	for _, text := range plan.Warnings {
		fmt.Fprintf(a.Err, "warning: %s\n", text)
	}
}

// acceptedLine is an acceptance as JSON.
type acceptedLine struct {
	Written     bool   `json:"written"`
	Era         int64  `json:"era"`
	Until       string `json:"until"`
	UntilUnixMs int64  `json:"until_unix_ms"`
	By          string `json:"by"`
	AtUnixMs    int64  `json:"at_unix_ms"`
	Latest      int64  `json:"latest_record_unix_ms"`
}

func lineOf(t lease.AcceptedTime, plan repair.Acceptance, written bool) acceptedLine {
	return acceptedLine{written, t.Era, repair.At(t.Until), int64(t.Until), t.By, int64(t.At), int64(plan.Latest)}
}

func printAccepted(a *cli.App, plan repair.Acceptance, written, asJSON bool) error {
	t := plan.Accepted
	if !written {
		t = plan.Before
	}
	if asJSON {
		return cli.PrintLine(a.Out, lineOf(t, plan, written))
	}
	if !written {
		_, err := fmt.Fprintf(a.Out, "nothing was written: %q accepted clocks up to %s already, at %s\n", t.By, repair.At(t.Until), repair.At(t.At))
		return err
	}
	_, err := fmt.Fprintf(a.Out, `clocks up to %s are accepted, in era %d
Nodes whose clocks read no later follow them within a minute; "allocator status" shows it.
`, repair.At(t.Until), t.Era)
	return err
}

// printDryRun prints what would be compared and written.
func printDryRun(a *cli.App, s *deployment.Space, v lease.View, plan repair.Acceptance, asJSON bool) error {
	if asJSON {
		return cli.PrintLine(a.Out, lineOf(plan.Accepted, plan, false))
	}
	accepted := "absent"
	if v.Accepted.Exists() {
		accepted = fmt.Sprintf("at revision %d", v.Accepted.Rev)
	}
	_, err := fmt.Fprintf(a.Out, `if under /%s/%s/ unchanged:
  config         at revision %d
  era            at revision %d
  accepted-time  %s
then put:
  accepted-time  %s
nothing was written (--dry-run)
`, s.Cfg.Root, s.Cfg.Space, v.Config.Rev, v.Era.Rev, accepted, lease.Encode(plan.Accepted))
	return err
}
