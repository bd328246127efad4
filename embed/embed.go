package embed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/ulid"
)

// Allocator issues IDs from a sid that this process holds. Make one for a program:
// each takes a sid. All methods are safe for concurrent use.
//
//  1. No ID is given twice, in the whole space.
//  2. A call that begins after another returned gets a greater ID.
//  3. A call that fails gives no ID.
//
// Calls wait while IDs would run too far ahead of the clock, for 100 ms
// (100 ms) at most and never beyond their context. Their error is a
// *client.Refusal without a Node, or ErrClosed.
type Allocator struct {
	node     *node.Node
	daemon   *daemon.Daemon
	name     string
	format   flake.Format
	maxBlock int

	closing atomic.Bool
	close   func() error
	ended   chan struct{}
	err     error // what ended it; set before ended is closed
}

// Pauses of Open.
const (
	reservePoll = 500 * time.Millisecond
	lookTimeout = 2 * time.Second // to read the holders for a PoolError
)

// Open leases a sid and returns once IDs can be issued. It needs a space that
// `allocator init` made. The errors are
//
//   - ErrConfig, at once;
//   - a *PoolError where no sid was free in time;
//   - a *client.Refusal, with the reason why nothing can be issued yet, where
//     etcd, the space or clocks were not ready in time;
//   - whatever no waiting helps against: a space of another layout or epoch, or
//     without those sids, or a gossip port that is taken.
//
// The second and third wrap the error of ctx too, or context.DeadlineExceeded for
// Config.OpenTimeout. After an error nothing is left running or held; to give back
// what was already taken can keep Open for some seconds after ctx has ended.
func Open(ctx context.Context, cfg Config) (_ *Allocator, err error) {
	number := 0 // none
	defer func() {
		if err != nil {
			living.giveBack(number)
		}
	}()
	c, err := cfg.node(func() int { number = living.take(); return number })
	if err != nil {
		return nil, err
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	opening, cancel := context.WithTimeout(ctx, cmp.Or(cfg.OpenTimeout, DefaultOpenTimeout))
	defer cancel()
	if err := leaveReserve(opening, c, cfg.Reserve, log); err != nil {
		return nil, err
	}
	d, err := daemon.New(daemon.Config{Settings: c, Version: version(), Logger: log})
	if err != nil {
		return nil, fmt.Errorf("embed: %w", err)
	}
	a := &Allocator{
		node: d.Node(), daemon: d, name: c.Node.Name, format: c.Format(), maxBlock: c.Gen().MaxBlock(),
		ended: make(chan struct{}),
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(a.ended)
		a.err = d.Run(running)
	}()
	a.close = sync.OnceValue(func() error {
		a.closing.Store(true)
		stop()
		<-a.ended // bounded: see Close
		living.giveBack(number)
		return a.err
	})
	if err := a.untilReady(opening, c); err != nil {
		stop()
		<-a.ended
		return nil, err
	}
	warnOfOverlaps(d, log)
	return a, nil
}

// untilReady waits for the first window.
func (a *Allocator) untilReady(ctx context.Context, c config.Config) error {
	for {
		r, changed := a.node.Watch()
		if r == nil {
			return nil
		}
		select {
		case <-a.ended:
			if a.err != nil {
				return fmt.Errorf("embed: %w", a.err)
			}
			return errors.New("embed: the node ended by itself")
		case <-ctx.Done():
			return a.notReady(ctx, r)
		case <-changed:
		}
	}
}

// notReady returns the error of Open without a window in time.
func (a *Allocator) notReady(ctx context.Context, r *node.Refusal) error {
	st := a.node.Stats().Lease
	if st.Phase != lease.Standby {
		return fmt.Errorf("embed: not ready in time: %w: %w", ctx.Err(), a.refusal(r))
	}
	e := &PoolError{
		SIDs:        st.SIDs.String(),
		Size:        st.Pool.Size,
		Quarantined: st.Pool.Quarantined,
		Reserved:    st.Pool.Reserved,
		cause:       ctx.Err(),
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	if v, err := a.daemon.Space(look); err == nil {
		e.fill(v, st.SIDs)
	}
	return e
}

// leaveReserve waits until more than the reserve is free.
func leaveReserve(ctx context.Context, c config.Config, reserve int, log *slog.Logger) error {
	if reserve == 0 {
		return nil
	}
	if n := c.SIDRange.Len(); n > 0 && reserve >= n {
		return noneToTake(reserve, c.SIDRange)
	}
	var full *PoolError // by the last look that etcd answered: time may end within the next
	for {
		look, cancel := context.WithTimeout(ctx, lookTimeout)
		v, err := daemon.FindSpace(look, c, daemon.Beginning{}, log)
		cancel()
		var other *lease.FormatError
		var outside *lease.RangeError
		if errors.As(err, &other) || errors.As(err, &outside) {
			return fmt.Errorf("embed: %w", err)
		}
		switch {
		case err == nil:
			within, _ := v.Config.Value.SIDsOf(c.SIDRange) // FindSpace has checked it
			if reserve >= within.Len() {
				return noneToTake(reserve, within)
			}
			before := full
			full = &PoolError{SIDs: within.String(), Size: within.Len(), Reserve: reserve}
			if full.fill(v, within); full.free() > reserve {
				return nil
			}
			if before == nil {
				log.Info("no sid is free but the reserve: waiting", "sids", within.String(), "reserve", reserve)
			}
		case ctx.Err() == nil:
			full = nil
		}
		select {
		case <-ctx.Done():
			if full == nil {
				return fmt.Errorf("embed: not ready in time: %w: %w", ctx.Err(),
					&client.Refusal{Reason: client.Starting, Message: "etcd: " + err.Error()})
			}
			full.cause = ctx.Err()
			return full
		case <-time.After(reservePoll):
		}
	}
}

func noneToTake(reserve int, within lease.SIDRange) error {
	return fmt.Errorf("%w: Reserve %d leaves none of the %d sids %v to take", ErrConfig, reserve, within.Len(), within)
}

// warnOfOverlaps logs a server that may take sids of the program's range.
func warnOfOverlaps(d *daemon.Daemon, log *slog.Logger) {
	st := d.Node().Stats().Lease
	within := st.SIDs
	for _, r := range st.Nodes {
		theirs, err := lease.ParseSIDRange(r.SIDRange)
		if theirs = cmp.Or(theirs, st.Space.SIDs()); r.GRPC != "" && err == nil &&
			max(theirs.From, within.From) < min(theirs.To, within.To) {
			log.Warn("a server may take sids of this program's range: set sid-range on the server",
				"server", r.Node, "its_range", theirs.String(), "range", within.String())
			return
		}
	}
}

// Next returns one ID.
func (a *Allocator) Next(ctx context.Context) (flake.ID, error) { return a.NextAfter(ctx, 0) }

// NextAfter returns one ID that is greater than after, which any node of the space may have issued. It is refused with
// AFTER_TOO_FAR where after lies more than issue.max-lead ahead of this clock.
func (a *Allocator) NextAfter(ctx context.Context, after flake.ID) (flake.ID, error) {
	b, err := a.node.Next(ctx, 1, after)
	if err != nil {
		return 0, a.refusal(err)
	}
	return b.First, nil
}

// NextN fills dst with IDs in rising order. Up to 1,000,000 are next to each other;
// more take several blocks, and the time that so many need. After an error dst
// holds nothing of use.
func (a *Allocator) NextN(ctx context.Context, dst []flake.ID) error {
	for len(dst) > 0 {
		b, err := a.node.Next(ctx, min(len(dst), a.maxBlock), 0)
		if err != nil {
			return a.refusal(err)
		}
		dst = dst[b.Fill(dst):]
	}
	return nil
}

// Block returns n IDs that are next to each other, as a range: at most 1,000,000,
// or less where issue.max-lead is short or the layout has less in a unit of time.
// Above that, and below 1, it is refused with INVALID_COUNT.
func (a *Allocator) Block(ctx context.Context, n int) (client.Block, error) {
	return a.BlockAfter(ctx, n, 0)
}

// BlockAfter is Block with IDs that are all greater than after, as in NextAfter.
func (a *Allocator) BlockAfter(ctx context.Context, n int, after flake.ID) (client.Block, error) {
	b, err := a.node.Next(ctx, n, after)
	if err != nil {
		return client.Block{}, a.refusal(err)
	}
	block := client.Block{First: b.First, Count: b.Count, Stride: b.Stride, SID: b.SID, Format: a.format, Node: a.name}
	block.SpaceID = a.node.Space()
	return block, nil
}

// NextULID returns one ID in its wide form: a ULID that is a UUIDv7 as well. Its
// UUID method gives the other text.
func (a *Allocator) NextULID(ctx context.Context) (ulid.ID, error) {
	b, err := a.Block(ctx, 1)
	if err != nil {
		return ulid.ID{}, err
	}
	return b.ULID(0)
}

// NextULIDs is NextN for wide IDs.
func (a *Allocator) NextULIDs(ctx context.Context, dst []ulid.ID) error {
	for chunk := range slices.Chunk(dst, a.maxBlock) {
		b, err := a.Block(ctx, len(chunk))
		if err != nil {
			return err
		}
		for i := range chunk {
			if chunk[i], err = b.ULID(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// Format returns what the bits of the IDs mean.
func (a *Allocator) Format() flake.Format { return a.format }

// Ready returns nil if Next would not be refused now, and else with what.
func (a *Allocator) Ready() error {
	if r := a.node.Ready(); r != nil {
		return a.refusal(r)
	}
	return nil
}

// Handler answers /metrics, /livez and /readyz as a server's admin port does, for
// a port of the program's own. /readyz is about this allocator alone.
func (a *Allocator) Handler() http.Handler { return a.daemon.AdminHandler() }

// Done returns a channel that is closed when nothing is issued any more: after
// Close, and after a failure that no waiting helps against, which Close returns.
func (a *Allocator) Done() <-chan struct{} { return a.ended }

// Close ends issuing, gives the sid back up to the last ID issued, so that another
// can have it at once, and leaves the cluster. It returns nil once nothing is left
// running, to every caller, but for timers of the gossip library, which end within
// seconds. Where etcd does not answer it gives up after
// 5 s and some 3 s more; the sid is free when its lease has run out.
func (a *Allocator) Close() error { return a.close() }

// version is what registrations and metrics show.
func version() string {
	const path = "github.com/flakelease/allocator"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "embed"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == path {
			return "embed " + m.Version
		}
	}
	return "embed"
}
