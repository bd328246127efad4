package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/text"
)

// ErrDiffers says that a space exists and is not as asked for.
var ErrDiffers = errors.New("the space is not as asked for")

// Beginning says which IDs a new space starts with, and of which sids.
type Beginning struct {
	// SIDs is the part of the sids that the space is created for; zero: all, and a space
	// that exists may have any.
	SIDs lease.SIDRange
	// Reserved are the sids that generators outside of the cluster have: nodes never take them.
	Reserved lease.SIDSet
	// Fresh says that no allocator ever issued IDs for the space: then IDs may begin at
	// once. Otherwise they begin after all IDs that nodes may still issue whose etcd was
	// lost, and that workers may make with numbers from them: lease.Bounds.Slack, which
	// is 60.75 s with the defaults.
	Fresh bool
	// Above is the greatest ID that exists already: none is issued at or below it; 0: there is none.
	Above flake.ID
	// Unnamed says that programs which run now may go on with the space, whatever they know an earlier one by.
	Unnamed bool
}

// named reports whether clients may refuse other spaces beside the new one. They must not where it may go on from
// one that was lost, which they know by another name; and where it has a part of the sids, its IDs
// stand beside those of the other regions.
func (b Beginning) named() bool { return b.Fresh && !b.Unnamed && b.SIDs == lease.SIDRange{} }

// ErrAbove says that a space cannot begin above an ID.
var ErrAbove = errors.New("daemon: IDs cannot begin above that ID")

// pastAbove returns the first unit of time whose IDs are all above b.Above; 0 if there is none
// to be above.
func (b Beginning) pastAbove(f flake.Format) (clock.Millis, error) {
	if b.Above == 0 {
		return 0, nil
	}
	if err := f.Holds(b.Above); err != nil {
		return 0, fmt.Errorf("%w: %w; is it an ID of this layout?", ErrAbove, err)
	}
	if f.Layout.Timestamp(b.Above) == f.Layout.MaxTimestamp() {
		return 0, fmt.Errorf("%w: %d has the last time of layout %v and epoch %s",
			ErrAbove, b.Above, f.Layout, at(clock.Millis(f.Epoch)))
	}
	return clock.Millis(f.UnixMilli(b.Above) + f.Layout.Unit()), nil
}

// floor returns the time at which the IDs of a new space begin. An ID that is up to
// limit ahead of the clock is waited for; one that is further ahead is an ErrAbove.
func (b Beginning) floor(f flake.Format, now, slack clock.Millis, limit time.Duration) (clock.Millis, error) {
	past, err := b.pastAbove(f)
	if err != nil {
		return 0, err
	}
	if ahead := (past - now).Duration(); ahead > limit {
		return 0, fmt.Errorf("%w: %d has the time %s, %s ahead of the clock, and at most %v is waited for: use the "+
			"greatest ID of the past, check layout and epoch with \"allocator adopt\", or correct the clock",
			ErrAbove, b.Above, at(clock.Millis(f.UnixMilli(b.Above))), text.Span(ahead), limit)
	}
	floor := now
	if !b.Fresh {
		floor += slack
	}
	return max(floor, past), nil
}

func at(t clock.Millis) string { return t.Time().Format(time.RFC3339Nano) }

// Init creates the space of cfg, or finds it with the same layout and epoch, and with IDs
// that are all above begin.Above. It reports which, and returns the records of the space.
//
// It returns ErrClock, ErrAbove and *lease.RangeError before it connects, these or ErrDiffers for a space that differs,
// which is a *lease.FormatError too if its IDs do, and the store's errors.
func Init(ctx context.Context, cfg config.Config, begin Beginning,
	log *slog.Logger) (created bool, now lease.View, err error) {
	src := clock.NewSystem(nil)
	if err := checkClock(src.Read().WallMillis(), cfg.Epoch, cfg.Layout, buildTime()); err != nil {
		return false, lease.View{}, err
	}
	format := flake.Format{Layout: cfg.Layout, Epoch: int64(cfg.Epoch)}
	floor, err := begin.floor(format, src.Now().Wall, cfg.Bounds().Slack(), clock.StepLimit)
	if err != nil {
		return false, lease.View{}, err
	}
	space := lease.Space{
		Layout: cfg.Layout, Epoch: cfg.Epoch, Pool: uuid.NewString(), Part: begin.SIDs, Named: begin.named(),
	}
	if _, err := space.SIDsOf(cfg.SIDRange); err != nil {
		return false, lease.View{}, err
	}
	reserved, err := begin.reservations(space, floor, src.Now().Wall)
	if err != nil {
		return false, lease.View{}, err
	}
	err = onSpace(cfg, log, func(store *etcdstore.Store) error {
		created, now, err = store.Init(ctx, space, floor, reserved...)
		return err
	})
	if err == nil {
		err = sameSpace(cfg, begin, now)
	}
	return created && err == nil, now, err
}

// reservations returns the records of b.Reserved in a new space.
//
// It returns a *lease.RangeError for a sid that the space does not have.
func (b Beginning) reservations(space lease.Space, floor, now clock.Millis) (out []lease.Reservation, err error) {
	for _, r := range b.Reserved {
		if of := space.SIDs(); r.From < of.From || r.To > of.To {
			return nil, &lease.RangeError{Setting: "--reserve", Range: r, SIDs: of, Layout: space.Layout}
		}
	}
	by := repair.Author{Instance: lease.Instance(uuid.NewString()), Now: now}
	for sid := range b.Reserved.Each {
		by.Nonce = rand.Text()
		w := repair.Reserved(lease.Era{Number: 1, Floor: floor}, "", by)
		out = append(out, lease.Reservation{SID: sid, Window: w})
	}
	return out, nil
}

// ErrNoSpace says that a space is not initialized.
var ErrNoSpace = errors.New("daemon: the space is not initialized: run \"allocator init\"")

// FindSpace returns the records of the space of cfg.
//
// It returns ErrNoSpace if there is none, the errors of Init for a space that differs,
// and the store's errors.
func FindSpace(ctx context.Context, cfg config.Config, begin Beginning, log *slog.Logger) (now lease.View, err error) {
	err = onSpace(cfg, log, func(store *etcdstore.Store) error {
		now, err = store.Load(ctx)
		return err
	})
	switch {
	case err != nil:
		return now, err
	case !now.Config.Exists():
		return now, ErrNoSpace
	}
	return now, sameSpace(cfg, begin, now)
}

// onSpace calls f with the store of cfg's space.
func onSpace(cfg config.Config, log *slog.Logger, f func(*etcdstore.Store) error) error {
	dial, _, err := DialConfig(cfg.Etcd, log)
	if err != nil {
		return err
	}
	client, err := etcdstore.Dial(dial)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	store, err := etcdstore.New(client, cfg.Root, cfg.Space)
	if err != nil {
		return err
	}
	return f(store)
}

// sameSpace compares the space with cfg, and its sids and floor with begin.
func sameSpace(cfg config.Config, begin Beginning, now lease.View) error {
	if now.Config.Err != nil {
		return fmt.Errorf("config of space %q: %w", cfg.Space, now.Config.Err)
	}
	asked := flake.Format{Layout: cfg.Layout, Epoch: int64(cfg.Epoch)}
	if have := now.Config.Value.Format(); have != asked {
		return fmt.Errorf("%w: space %q: %w", ErrDiffers, cfg.Space, &lease.FormatError{Space: have, Node: asked})
	}
	if have := now.Config.Value; !begin.SIDs.All() && have.SIDs() != begin.SIDs {
		return fmt.Errorf("%w: space %q has the sids %v, and not %v: the sids of a space never change; "+
			"ask for these, or create another space", ErrDiffers, cfg.Space, have.SIDs().Of(have.Layout), begin.SIDs)
	}
	if _, err := now.Config.Value.SIDsOf(cfg.SIDRange); err != nil {
		return err
	}
	var not lease.SIDSet
	for sid := range begin.Reserved.Each {
		if now.SIDs[sid].Window.Value.State != lease.Reserved {
			not.Add(sid)
		}
	}
	if not.Len() > 0 {
		return fmt.Errorf("%w: space %q exists, and its sids %v are not reserved: nodes may have issued IDs with "+
			"them; run \"allocator admin reserve %v\"", ErrDiffers, cfg.Space, not, not)
	}
	past, err := begin.pastAbove(asked)
	if err == nil && now.Era.Value.Floor < past {
		err = fmt.Errorf("%w: space %q exists, and its IDs begin at %s, before %s, the end of the time of %d: nodes "+
			"may have issued IDs at or below it. Look for duplicates with \"allocator audit\"; "+
			"\"allocator admin recover\" begins a new era, above the clock",
			ErrDiffers, cfg.Space, at(now.Era.Value.Floor), at(past), begin.Above)
	}
	return err
}
