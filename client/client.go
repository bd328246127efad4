package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// Client gets IDs from a cluster. All methods are safe for concurrent use.
//
//  1. No ID is returned twice.
//  2. A call that begins after another returned gets a greater ID, unless
//     Options.Unordered.
//  3. A call that fails returns no ID.
type Client struct {
	o     Options
	begun time.Time
	pool  *pool
	stats counters

	uptime *uptime // for the age of prefetched IDs

	last  atomic.Int64 // the greatest ID received in this order
	order atomic.Int64 // calls of Reset
	limit atomic.Int64 // IDs that the cluster grants at a time, as far as known

	mark atomic.Pointer[Watermark] // the highest that the client has seen; nil: none

	coalesce *coalescer  // nil: another mode
	prefetch *prefetcher // nil: another mode

	mu     sync.Mutex     // guards closed, and calls.Add against calls.Wait
	closed bool           // calls are refused
	calls  sync.WaitGroup // under way; those of Coalesce, and of Prefetch that find IDs, do not count

	closing sync.Once
	done    chan struct{} // closed when Close has ended
}

// New returns a client. It connects in the background; calls wait for that. The
// errors name the option that is wrong.
func New(o Options) (*Client, error) { return newClient(o, net.DefaultResolver.LookupHost) }

// newClient is New with a function that looks up the addresses of a host.
func newClient(o Options, lookup func(context.Context, string) ([]string, error)) (*Client, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{o: o, begun: time.Now(), uptime: newUptime(bootClock), done: make(chan struct{})}
	c.last.Store(int64(o.After))
	c.limit.Store(maxBlock)
	c.pool = newPool(o, c.since, lookup)
	switch o.Mode {
	case Coalesce:
		c.coalesce = newCoalescer(c)
	case Prefetch:
		c.prefetch = newPrefetcher(c)
	}
	if err := c.pool.start(); err != nil {
		return nil, err
	}
	return c, nil
}

// since returns the time since the client began, which does not step. It does not count
// time that the machine was suspended, as timers do not.
func (c *Client) since() time.Duration { return time.Since(c.begun) }

// Next returns one ID.
func (c *Client) Next(ctx context.Context) (flake.ID, error) {
	if c.prefetch != nil && ctx.Err() == nil {
		if id, ok := c.prefetch.takeOne(); ok {
			return id, nil
		}
	}
	b, err := c.take(ctx, 1)
	return b.First, err
}

// NextAfter is Next with an ID that is greater than after too, which any client may have
// been given. If after is too far ahead, this call alone fails with AFTER_TOO_FAR: unlike
// for Observe, nobody has to have checked after.
func (c *Client) NextAfter(ctx context.Context, after flake.ID) (flake.ID, error) {
	order := c.order.Load()
	if after <= c.after() {
		c.passOver(after, order)
		return c.Next(ctx)
	}
	b, err := c.above(ctx, 1, after, order)
	return b.First, err
}

// BlockAfter is Block with IDs that are greater than after too, as those of NextAfter are.
func (c *Client) BlockAfter(ctx context.Context, n int, after flake.ID) (Block, error) {
	if err := checkCount(n); err != nil {
		return Block{}, err
	}
	order := c.order.Load()
	if after <= c.after() {
		c.passOver(after, order)
		return c.take(ctx, n)
	}
	return c.above(ctx, n, after, order)
}

// Prefetched is Block without a wait: it returns false where the client does not hold n IDs that are
// next to each other, and in the other modes always. It may also return false while another call
// begins with the next block.
func (c *Client) Prefetched(n int) (Block, bool) { return c.PrefetchedAfter(n, 0) }

// PrefetchedAfter is Prefetched with IDs above after: those that are next, or the next block. Else it
// changes nothing and returns false, and BlockAfter is to be called.
func (c *Client) PrefetchedAfter(n int, after flake.ID) (Block, bool) {
	if c.prefetch == nil || n < 1 {
		return Block{}, false
	}
	if s := c.prefetch.cur.Load(); s.isAbove(int64(after)) {
		if b, ok := c.prefetch.takeFrom(s, n); ok {
			return b, true
		}
	}
	return c.prefetch.takeSpare(n, int64(after))
}

// passOver drops prefetched IDs that are not above after: a block was received as a whole, and its
// first IDs may be below an ID that the client was given.
func (c *Client) passOver(after flake.ID, order int64) {
	if c.prefetch != nil && !c.prefetch.isAbove(int64(after)) {
		c.prefetch.raiseFloor(int64(after), order)
	}
}

// above requests n IDs by a request of their own: above after, which is above all that the client has
// received, or with after 0 above the client's last ID.
func (c *Client) above(ctx context.Context, n int, after flake.ID, order int64) (Block, error) {
	if err := ctx.Err(); err != nil {
		return Block{}, err
	}
	if !c.enter() {
		return Block{}, ErrClosed
	}
	defer c.calls.Done()
	return c.alone(ctx, n, after, order)
}

// alone is above of a call that Close waits for. IDs that were prefetched and are below these are dropped.
func (c *Client) alone(ctx context.Context, n int, after flake.ID, order int64) (Block, error) {
	b, _, err := c.request(ctx, n, after, order, nil)
	if err != nil {
		return Block{}, err
	}
	if c.prefetch != nil {
		c.prefetch.raiseFloor(int64(b.Last()), order)
	}
	c.stats.ids.Add(int64(n))
	return b, nil
}

// NextN fills dst with IDs in rising order. Up to 1,000,000, or what the cluster
// grants at a time if that is less, come from one node and are next to each other.
// After an error dst holds nothing of use.
func (c *Client) NextN(ctx context.Context, dst []flake.ID) error {
	for len(dst) > 0 {
		b, err := c.upTo(ctx, len(dst))
		if err != nil {
			return err
		}
		dst = dst[b.Fill(dst):]
	}
	return nil
}

// Block returns n IDs that are next to each other, as a range. A cluster grants
// up to 1,000,000 at a time, or less where its layout or settings allow less; above
// that, and below 1, the error is a *Refusal with InvalidCount.
func (c *Client) Block(ctx context.Context, n int) (Block, error) {
	if err := checkCount(n); err != nil {
		return Block{}, err
	}
	return c.take(ctx, n)
}

// checkCount returns the refusal of a count that no node grants, or nil.
func checkCount(n int) error {
	if n >= 1 && n <= maxBlock {
		return nil
	}
	return &Refusal{Reason: InvalidCount, Message: fmt.Sprintf("count is %d: ask for 1 to %d", n, maxBlock)}
}

// NextULID returns one ID in its wide form: a ULID that is a UUIDv7 as well, made
// here of a flake and 54 random bits. Its UUID method gives the other text.
func (c *Client) NextULID(ctx context.Context) (ulid.ID, error) {
	b, err := c.take(ctx, 1)
	if err != nil {
		return ulid.ID{}, err
	}
	return b.ULID(0)
}

// NextULIDs is NextN for wide IDs.
func (c *Client) NextULIDs(ctx context.Context, dst []ulid.ID) error {
	for len(dst) > 0 {
		b, err := c.upTo(ctx, len(dst))
		if err != nil {
			return err
		}
		for i := range b.Count {
			if dst[i], err = b.ULID(i); err != nil {
				return err
			}
		}
		dst = dst[b.Count:]
	}
	return nil
}

// upTo returns n IDs, or as many as the cluster grants at a time.
func (c *Client) upTo(ctx context.Context, n int) (Block, error) {
	for {
		known := c.limit.Load()
		count := min(n, int(known))
		b, err := c.take(ctx, count)
		r := (*Refusal)(nil)
		if !errors.As(err, &r) || r.Reason != InvalidCount {
			return b, err
		}
		limit := limitOf(r)
		if limit < 1 || limit >= count {
			return b, err
		}
		c.limit.CompareAndSwap(known, int64(limit)) // it only falls: the loop ends
	}
}

// take returns n IDs by the client's mode.
func (c *Client) take(ctx context.Context, n int) (Block, error) {
	switch err := ctx.Err(); {
	case err != nil:
		return Block{}, err
	case c.prefetch != nil:
		return c.prefetch.take(ctx, n)
	case c.coalesce != nil && n <= maxShared:
		return c.coalesce.take(ctx, n)
	}
	return c.above(ctx, n, 0, c.order.Load())
}

// maxShared is the largest share of a request that others wait for as well: a node
// may hold a large block back until its clock has caught up.
const maxShared = 10_000

// enter counts a call in, unless the client is closed.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.calls.Add(1)
	return true
}

// Last returns the greatest ID that the client has received; with Observe, another
// client's order goes on from it.
func (c *Client) Last() flake.ID { return flake.ID(c.last.Load()) }

// Observe makes every ID of later calls greater than id, which some other client
// was given. An id that is not of this space can make all calls fail with
// AFTER_TOO_FAR, until Reset.
func (c *Client) Observe(id flake.ID) {
	order := c.order.Load()
	c.raise(id, order)
	if c.prefetch != nil {
		c.prefetch.raiseFloor(int64(id), order)
	}
}

// Reset begins a new order: IDs of calls that begin after it are greater than after,
// and not necessarily greater than those of calls before it. It is for a client that
// was given an ID from the future, by Options.After, by Observe or by a node whose clock
// was wrong, and whose calls therefore fail with AFTER_TOO_FAR. With after 0 there is no
// condition. IDs stay unique. What calls under way still get does not count for the new
// order.
func (c *Client) Reset(after flake.ID) {
	c.order.Add(1) // before last changes: see raise
	c.last.Store(int64(after))
	if c.prefetch != nil {
		c.prefetch.reset(int64(after))
	}
	c.pool.forgive()
}

// after returns what the next request must exceed.
func (c *Client) after() flake.ID {
	if c.o.Unordered {
		return 0
	}
	return flake.ID(c.last.Load())
}

// raise makes every later request exceed id, unless the order that id was requested in
// has ended.
func (c *Client) raise(id flake.ID, order int64) {
	for {
		last := c.last.Load()
		if int64(id) <= last || c.order.Load() != order || c.last.CompareAndSwap(last, int64(id)) {
			return
		}
	}
}

// Close refuses later calls with ErrClosed, lets those under way finish, within
// their own time, and closes all connections. It returns nil once nothing is left
// running, to every caller.
func (c *Client) Close() error {
	c.closing.Do(func() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.calls.Wait()
		if c.coalesce != nil {
			c.coalesce.close()
		}
		if c.prefetch != nil {
			c.prefetch.close()
		}
		c.pool.close()
		close(c.done)
	})
	<-c.done
	return nil
}
