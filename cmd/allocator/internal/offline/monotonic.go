package offline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
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
		s := series{ctx: cmd.Context(), now: func() int64 { return time.Now().UnixMilli() }}
		if cmd.Flags().Changed("at") {
			ms, err := parseTime(*at, time.Now())
			if err != nil {
				return cli.UsageError("--at: %w", err)
			}
			m.input = *at
			s.now, s.fixed = func() int64 { return ms }, true
		}
		// Also an empty one: a variable that was not set must not undo the order.
		if cmd.Flags().Changed("after") {
			if s.last, err = describe.Parse(*after, describe.Auto, m.space()); err != nil {
				return cli.UsageError("--after %s: %w", cli.Show(*after), err)
			}
			if s.last.IsWide() == (m.kind.Value == "flake") {
				return cli.UsageError("--after %s is no %s", cli.Show(*after), m.kind.Value)
			}
			s.continued = true
		}
		next, err := s.next(m)
		if err != nil {
			return err
		}
		return printIDs(a, cmd.Context(), m, n, next)
	}
	return cmd
}

// series is a rising series and where it begins.
type series struct {
	ctx       context.Context
	now       func() int64
	fixed     bool        // now never changes: waiting helps nothing
	last      describe.ID // --after gave it if continued is true; else it is zero.
	continued bool
}

func (s *series) next(m *making) (func() (describe.ID, error), error) {
	if m.kind.Value != "flake" {
		o := ulid.NewOffline(ulid.OfflineConfig{Now: s.now, Entropy: cli.Random()})
		last := s.last.Wide
		next := follow(o.Next, s.continued, func() (ulid.ID, bool, error) {
			if s.now() > last.UnixMilli() {
				return last, false, nil
			}
			id, err := last.Increment()
			if err == nil {
				last = id
			}
			return id, true, err
		})
		if s.fixed {
			return asWide(next), nil
		}
		return asWide(retrying(s.ctx, time.Millisecond, next, ulid.ErrMonotonicOverflow)), nil
	}

	o, err := m.flakes()
	if err != nil {
		return nil, err
	}
	f, sid, draw, last := m.space(), flake.SID(m.sid), cli.Random(), s.last.Flake
	next := follow(func() (flake.ID, error) { return o.NextAt(s.now()) }, s.continued, func() (flake.ID, bool, error) {
		now, err := f.Min(s.now())
		if err != nil {
			return 0, true, err
		}
		switch behind := f.UnixMilli(last) - f.UnixMilli(now); {
		case behind < 0:
			return last, false, nil
		case behind > 0:
			return 0, true, fmt.Errorf("%w: --after lies %d ms ahead of it", flake.ErrRegression, behind)
		}
		id, err := above(f, last, sid, m.size, draw)
		if err == nil {
			last = id
		}
		return id, true, err
	})
	if s.fixed {
		return asFlake(next), nil
	}
	return asFlake(retrying(s.ctx, unitOf(f), next, flake.ErrMonotonicOverflow, flake.ErrRegression)), nil
}

// above returns the flake of a sid that follows last, of any sid, in its
// unit of time.
func above(f flake.Format, last flake.ID, sid flake.SID, size int, draw io.Reader) (id flake.ID, err error) {
	entropy := f.Entropy(last) + 1
	switch of := f.SID(last); {
	case f.Layout.SIDFirst() && sid < of:
		return 0, fmt.Errorf("%w: sid %d of --after is above all of sid %d", flake.ErrMonotonicOverflow, of, sid)
	case f.Layout.SIDFirst() && sid > of:
		entropy = 0
	case size > 0:
		if id, err = f.Increment(last, size, draw); err != nil {
			return 0, err
		}
		entropy = f.Entropy(id)
	}
	if id, err = f.Make(f.UnixMilli(last), entropy, sid); errors.Is(err, flake.ErrEntropy) {
		err = flake.ErrMonotonicOverflow
	}
	return id, err
}

// follow returns next, behind what continues an older series while that has to
// stay in its millisecond.
func follow[ID any](next func() (ID, error), continued bool, stay func() (ID, bool, error)) func() (ID, error) {
	return func() (ID, error) {
		if continued {
			id, stays, err := stay()
			if stays || err != nil {
				return id, err
			}
			continued = false
		}
		return next()
	}
}
