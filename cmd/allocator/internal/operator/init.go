package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/records"
	"github.com/flakelease/allocator/internal/text"
)

// warnYears is for how many years a new space should have IDs.
const warnYears = 5

// InitCommand returns "allocator init".
func InitCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Initialize a space in etcd",
		Long: `Init writes the layout and epoch of a space to etcd. Nodes wait until that was done once.
Running it again changes nothing.

IDs begin later, with the defaults about 61 s: the longer of lease.window and worker.window,
plus issue.max-lead and twice issue.max-skew. Every window that nodes or workers of a lost etcd
may still use has passed then. Give --fresh for a space that never issued an ID. A job that
might run again gives --fresh-until, so that a wiped etcd is noticed.

"allocator adopt" finds the layout of existing IDs, and the greatest for --above.

Generators outside of the cluster keep their sids with --reserve: no node ever takes one.

Regions with an etcd each issue IDs that never meet if each has --sids of its own. They never
change, and nodes learn them from etcd.`,
		Example: `  allocator init --etcd.endpoints http://10.0.0.1:2379
  allocator init --etcd.endpoints http://10.0.0.1:2379 --fresh --layout twitter --above 1541815603606036480
  allocator init --etcd.endpoints http://10.0.0.1:2379 --layout twitter --sids 0-255`,
		Args: cobra.NoArgs,
	}
	fresh := cmd.Flags().Bool("fresh", false, "IDs may begin at once: none was ever issued for this space")
	until := cmd.Flags().String("fresh-until", "",
		"as --fresh until this time, such as 2026-11-20T17:00:00Z, and after it create no space")
	cmd.MarkFlagsMutuallyExclusive("fresh", "fresh-until")
	above := cmd.Flags().String("above", "",
		"the greatest ID that exists already, in decimal: no ID is issued at or below it")
	sids := cmd.Flags().String("sids", "",
		fmt.Sprintf("sids of this space, as first-last, where others belong to other regions; at most %d. "+
			"Default: all, or the first %[1]d", lease.MaxSIDs))
	reserve := cmd.Flags().String("reserve", "",
		"sids that generators outside of the cluster have, such as 0-7,12: no node takes them")
	timeout := cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for etcd")
	format := cli.FormatFlag(cmd)
	load := a.Settings(cmd)
	cli.ListSettings(cmd, "etcd", "space", "root", "layout", "epoch", "log", "lease.window", "worker.window",
		"issue.max-skew", "issue.max-lead")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, err := cli.WithEtcd("init", load)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		begin := daemon.Beginning{Fresh: *fresh}
		if cmd.Flags().Changed("above") {
			id, err := cli.ParseWhole(*above)
			if err != nil || id < 0 {
				return cli.UsageError("--above %s is not an ID: write it in decimal, as at most 63 bits",
					cli.Show(*above))
			}
			begin.Above = flake.ID(id)
		}
		if cmd.Flags().Changed("sids") {
			if begin.SIDs, err = lease.ParsePart(*sids, c.Layout); err != nil {
				return cli.UsageError("--sids %s: %w", cli.Show(*sids), err)
			}
		}
		if cmd.Flags().Changed("reserve") {
			if begin.Reserved, err = lease.ParseSIDSet(*reserve); err != nil {
				return cli.UsageError("--reserve %s: %w", cli.Show(*reserve), err)
			}
		}
		if cmd.Flags().Changed("fresh-until") {
			t, err := time.Parse(time.RFC3339, *until)
			if err != nil {
				return cli.UsageError("--fresh-until %s is not a time: write it as 2026-11-20T17:00:00Z",
					cli.Show(*until))
			}
			begin.Fresh = deployment.WallNow().Time().Before(t)
		}
		var created bool
		var now lease.View
		if begin.Fresh || *until == "" {
			created, now, err = daemon.Init(ctx, c, begin, cli.Logger(c.Log, a.Err))
		} else {
			now, err = daemon.FindSpace(ctx, c, begin, cli.Logger(c.Log, a.Err))
		}
		var outside *lease.RangeError
		switch {
		case errors.Is(err, daemon.ErrNoSpace):
			return cli.Exit(cli.ExitInvalid,
				fmt.Errorf("space %q is not initialized, and --fresh-until %s has passed: was etcd wiped? "+
					"If it never issued an ID, run \"allocator init --fresh\"; else see docs/how-to/restore-etcd.md",
					c.Space, *until))
		case errors.Is(err, daemon.ErrDiffers), errors.As(err, &outside), errors.Is(err, records.ErrRemains):
			return cli.Exit(cli.ExitInvalid, err)
		case errors.Is(err, daemon.ErrClock), errors.Is(err, daemon.ErrAbove):
			return cli.Exit(cli.ExitUsage, err)
		case err != nil:
			return cli.Exit(cli.ExitUnavailable,
				fmt.Errorf("etcd at %s does not answer: %w; check that it runs and that --etcd.endpoints is right",
					strings.Join(c.Etcd.Addresses(), ", "), err))
		}
		space, era := now.Config.Value, now.Era.Value
		return format.Print(a.Out, struct {
			Space   string `json:"space"`
			Created bool   `json:"created"`
			Layout  string `json:"layout"`
			SIDs    string `json:"sids"`
			Epoch   string `json:"epoch"`
			Pool    string `json:"pool"`
			Era     int64  `json:"era"`
			Floor   string `json:"floor"`
		}{c.Space, created, space.Layout.String(), space.SIDs().String(),
			space.Epoch.Time().Format(time.RFC3339Nano), space.Pool, era.Number,
			era.Floor.Time().Format(time.RFC3339Nano)}, initialized(c.Space, created, begin, now))
	}
	return cmd
}

// initialized says what a space is, for people.
func initialized(name string, created bool, begin daemon.Beginning, now lease.View) string {
	space, era := now.Config.Value, now.Era.Value
	what := "initialized"
	if !created {
		what = "was already initialized, with the same values"
	}
	holders := fmt.Sprintf("%d holders", space.Layout.Holders())
	if sids := space.SIDs(); sids.Len() < space.Layout.Holders() {
		holders = "sids " + sids.Of(space.Layout)
	}
	warning, left := "", time.Until(space.Last().Time())
	if left < warnYears*365*24*time.Hour {
		warning = ": plan now for a space with a later epoch or another layout"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "space %q %s: layout %s (%s), epoch %s, pool %s\nIDs of this layout end at %s, in %s%s\n", name,
		what, space.Layout, holders, space.Epoch.Time().Format(time.RFC3339Nano), space.Pool,
		space.Last().Time().UTC().Format(time.RFC3339), text.Span(left), warning)
	if begin.Above > 0 {
		fmt.Fprintf(&b, "every ID is above %d\n", begin.Above)
	}
	if begin.Reserved.Len() > 0 {
		fmt.Fprintf(&b, "sids %v are reserved: no node takes them\n", begin.Reserved)
	}
	if floor := era.Floor.Time(); time.Until(floor) > 0 {
		also := ""
		if begin.Reserved.Len() > 0 {
			also = ", also those of reserved sids: nodes of a lost etcd may have had them"
		}
		fmt.Fprintf(&b, "IDs begin %s%s\n", cli.Relative(floor, time.Now()), also)
	}
	return b.String()
}
