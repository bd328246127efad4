package offline

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/ulid"
)

// MonotonicCommand returns "allocator monotonic".
func MonotonicCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "monotonic [N]",
		Short: "Make N rising IDs here, without a node",
		Long: `Monotonic prints N IDs, one a line, each greater than the one before. N is 1 if not given.

In a millisecond a ULID is one more than the last, a flake a random step of --entropy bytes
more. If the clock goes back the series continues from its last ID. If a millisecond has no
room left, monotonic waits for the next; with --at it exits with 1.

` + notCoordinated,
		Example: `  allocator monotonic 1000
  allocator monotonic 3 --after 01ARZ3NDEKTSV4RRFFQ69G5FAV
  allocator monotonic 3 --at 2026-11-20T16:36:28.444Z --as uuid
  allocator monotonic 100 --kind flake --layout standalone --entropy 2`,
		Args: cobra.MaximumNArgs(1),
	}
	m := makingFlags(cmd, "ulid", "flake")
	cmd.Flags().IntVar(&m.size, "entropy", 1,
		"bytes of a flake's random steps: 1 to 3, 2 where there are sids; 0 is always +1")
	at := cmd.Flags().String("at", "", "a TIME as of from-time: all IDs are of this millisecond")
	after := cmd.Flags().String("after", "", "an ID of the same kind, in any form: all IDs are greater")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := m.check(); err != nil {
			return err
		}
		n, err := cli.CountOf(args, m.count)
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("at") {
			if m.ms, err = parseTime(*at, time.Now()); err != nil {
				return cli.UsageError("--at: %w", err)
			}
			m.input = *at
		}
		ulids := ulid.NewOffline(ulid.OfflineConfig{Entropy: cli.Random()})
		flakes, err := m.flakes()
		if err != nil {
			return err
		}
		// Also an empty one: a variable that was not set must not undo the order.
		if cmd.Flags().Changed("after") {
			last, err := describe.Parse(*after, describe.Auto, m.space())
			if err != nil {
				return cli.UsageError("--after %s: %w", cli.Show(*after), err)
			}
			if last.IsWide() == (m.kind.Value == "flake") {
				return cli.UsageError("--after %s is no %s", cli.Show(*after), m.kind.Value)
			}
			flakes.Observe(last.Flake)
			ulids.Observe(last.Wide)
		}
		return m.print(a, cmd.Context(), n, func(ms int64) (describe.ID, error) {
			if m.kind.Value == "flake" {
				return ofFlake(flakes.NextAt(ms))
			}
			return m.wide(ulids.NextAt(ms))
		})
	}
	return cmd
}
