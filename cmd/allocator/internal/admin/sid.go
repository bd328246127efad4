package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

func sidOf(arg string) (flake.SID, error) {
	n, err := strconv.ParseUint(arg, 10, 22)
	if err != nil {
		return 0, cli.UsageError("%q is not a sid, which is a number such as 7", arg)
	}
	return flake.SID(n), nil
}

// quarantineCommand returns "allocator admin quarantine".
func quarantineCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quarantine SID",
		Short: "Take a sid out of use",
		Long: `Quarantine marks a sid's record so that no node takes it, until "allocator admin
release-sid" gives it back. Its ceiling is kept.

A sid that a node holds is refused. With --force its holder loses it: it uses what was
confirmed to it, and then takes another sid.`,
		Example: "  allocator admin quarantine 7 --reason 'node-b had a bad clock' --etcd.endpoints http://10.0.0.1:2379",
		Args:    cobra.ExactArgs(1),
	}
	reason := cmd.Flags().String("reason", "", "why; shown by status and doctor")
	force := cmd.Flags().Bool("force", false, "also if a node holds it")
	timeout := cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for etcd")
	format := cli.FormatFlag(cmd)
	load := a.Settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sid, err := sidOf(args[0])
		if err != nil {
			return err
		}
		if strings.ContainsFunc(*reason, func(r rune) bool { return r < ' ' }) {
			return cli.UsageError("--reason has a line break or another control character")
		}
		s, err := deployment.OpenSpace(a, "admin quarantine", load)
		if err != nil {
			return err
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		v, ledger, err := s.Store.Survey(ctx, sid)
		if err != nil {
			return repairError(err, false)
		}
		w, err := repair.Quarantine(v, len(ledger) > 0, sid, *reason, *force, author())
		if err != nil {
			return repairError(err, false)
		}
		if err := s.Store.Repair(ctx, w); err != nil {
			return repairError(err, true)
		}
		return printSID(a, w, format.Value == "json", func() string {
			text := fmt.Sprintf("sid %d is quarantined: no node acquires it.", sid)
			if w.Seen.Holder.Exists() {
				text += fmt.Sprintf(" %s loses it within lease.extend-every, and issues IDs only within its confirmed window, until %s.",
					w.Seen.Holder.Value.Node, repair.At(w.Window.Ceil))
			}
			return text + fmt.Sprintf("\n\"allocator admin release-sid %d\" returns it to the pool.", sid)
		})
	}
	return cmd
}

// releaseCommand returns "allocator admin release-sid".
func releaseCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release-sid SID",
		Short: "Repair a sid's record and give the sid back to the pool",
		Long: `Release-sid writes a new record for a sid that is quarantined, whose record is
unreadable or missing, or whose ceiling a wrong clock has set far in the future. The next
holder begins at its ceiling: the old one where it can be read, else a bound on what
can have been granted, computed from the ledger, other windows and the clock.

--above asserts that no ID of this sid carries that time or a later one, and none will.
Only then is a readable ceiling lowered. If the assertion is wrong, IDs are issued twice.`,
		Example: "  allocator admin release-sid 7 --etcd.endpoints http://10.0.0.1:2379\n" +
			"  allocator admin release-sid 7 --above 2026-02-01T12:00:00Z --etcd.endpoints http://10.0.0.1:2379",
		Args: cobra.ExactArgs(1),
	}
	var above timeFlag
	cmd.Flags().Var(&above, "above", "no ID of the sid carries this time or a later one")
	yes := cmd.Flags().Bool("yes", false, "do not ask for confirmation")
	timeout := cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for etcd")
	format := cli.FormatFlag(cmd)
	load := a.Settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sid, err := sidOf(args[0])
		if err != nil {
			return err
		}
		s, err := deployment.OpenSpace(a, "admin release-sid", load)
		if err != nil {
			return err
		}
		defer s.Close()
		v, ledger, err := survey(cmd.Context(), s, sid, *timeout)
		if err != nil {
			return repairError(err, false)
		}
		r, err := repair.ReleaseSID(v, ledger, sid, clock.Millis(above), s.Cfg.Slack(), author())
		if err != nil {
			return repairError(err, false)
		}
		showRelease(a, sid, r)
		if err := confirm(a, *yes, fmt.Sprintf("Return sid %d to the pool?", sid)); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		if err := s.Store.Repair(ctx, r.Write); err != nil {
			return repairError(err, true)
		}
		w := r.Write.Window
		return printSID(a, r.Write, format.Value == "json", func() string {
			text := fmt.Sprintf("sid %d is free, with term %d and ceiling %s", sid, w.Term, repair.At(w.Ceil))
			if wait := w.Ceil - w.Wall; wait > 0 {
				text += fmt.Sprintf(": it can be acquired in %v", wait.Duration().Round(time.Second))
			}
			return text + "."
		})
	}
	return cmd
}

// survey reads a sid with a timeout of its own: a person may take minutes to
// confirm what follows.
func survey(ctx context.Context, s *deployment.Space, sid flake.SID, timeout time.Duration) (lease.View, []repair.Line, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.Store.Survey(ctx, sid)
}

func showRelease(a *cli.App, sid flake.SID, r repair.Release) {
	w := r.Write.Window
	if r.Problem != "" {
		fmt.Fprintf(a.Err, "sid %d: %s\n", sid, r.Problem)
	}
	fmt.Fprintf(a.Err, "new record: term %d, released, ceiling %s\n  computed from: %s\n", w.Term, repair.At(w.Ceil), r.Bound)
	for _, text := range r.Warnings {
		fmt.Fprintf(a.Err, "warning: %s\n", text)
	}
}

// printSID prints what was written.
func printSID(a *cli.App, w repair.Write, asJSON bool, text func() string) error {
	if !asJSON {
		_, err := fmt.Fprintln(a.Out, text())
		return err
	}
	return cli.PrintLine(a.Out, struct {
		SID    int    `json:"sid"`
		State  string `json:"state"`
		Term   int64  `json:"term"`
		Ceil   int64  `json:"ceil_unix_ms"`
		Reason string `json:"reason,omitempty"`
		Taken  string `json:"taken_from,omitempty"` // node that held it
	}{int(w.SID), string(w.Window.State), w.Window.Term, int64(w.Window.Ceil), w.Window.Reason, w.Seen.Holder.Value.Node})
}
