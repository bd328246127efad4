package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

// prefetching returns a prefetcher that fetches nothing by itself, in the time of a bubble. Its blocks
// have at most 1,000 IDs, which may be given for a second.
func prefetching() *prefetcher {
	c := &Client{o: Options{MaxAge: time.Second}, uptime: newUptime(func() time.Duration { return 0 })}
	p := newPrefetcher(c)
	p.limit, p.fetching = 1000, true
	return p
}

// block returns a segment of n IDs from first on that was requested now.
func (p *prefetcher) block(first flake.ID, n int) *segment {
	now := p.c.uptime.now()
	return &segment{block: Block{First: first, Count: n, Stride: 1}, fresh: now + p.c.o.MaxAge, used: now, half: int64(n) / 2}
}

// TestAgeInACopiedMemory: the memory of a machine that was saved, or copied, goes on with the clocks of that time,
// until the wall clock is set. What was fetched before counts as older by that; a clock that is set back, or by
// what is read between two clocks, changes nothing.
func TestAgeInACopiedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := prefetching()
		var ahead time.Duration
		p.c.uptime.wall = func() time.Duration { return ahead }
		for i, set := range []struct {
			by   time.Duration
			kept bool
		}{{0, true}, {3 * time.Hour, false}, {-3 * time.Hour, true}, {time.Hour, false}, {5 * time.Millisecond, true}} {
			time.Sleep(2 * suspendCheck)
			p.cur.Store(p.block(flake.ID(1+1000*i), 400))
			time.Sleep(2 * suspendCheck)
			ahead += set.by
			if id, kept := p.takeOne(); kept != set.kept {
				t.Errorf("the clock was set by %v: it gave %d: %v", set.by, id, kept)
			}
		}
		if leapt := time.Duration(p.c.uptime.leapt.Load()); leapt != 4*time.Hour {
			t.Errorf("%v count as age, want the two steps forward", leapt)
		}
	})
}

// TestAgeIsCheckedLast: an ID that is given was not too old when it was taken, though the process pauses between a
// read of the clock and the taking.
func TestAgeIsCheckedLast(t *testing.T) {
	for name, take := range map[string]func(*prefetcher) bool{
		"one":       func(p *prefetcher) bool { _, ok := p.takeOne(); return ok },
		"some":      func(p *prefetcher) bool { _, ok := p.takeFrom(p.cur.Load(), 2); return ok },
		"who waits": func(p *prefetcher) bool { _, ok := p.next(2); return ok },
		"the spare, for who waits": func(p *prefetcher) bool {
			p.cur.Load().cursor.Store(400)
			_, ok := p.next(2)
			return ok
		},
		"the spare": func(p *prefetcher) bool { _, ok := p.takeSpare(2, 400); return ok },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			p.cur.Store(p.block(1, 400))
			p.spare = p.block(401, 400)
			cur, spare := p.cur.Load(), p.spare
			time.Sleep(2 * suspendCheck) // so that the clock of boots is read too
			paused := false
			p.c.uptime.boot = func() time.Duration {
				if !paused && cur.cursor.Load()%400 == 0 && spare.cursor.Load() == 0 {
					paused = true
					time.Sleep(2 * p.c.o.MaxAge)
				}
				return 0
			}
			if began := time.Now(); take(p) && time.Since(began) >= p.c.o.MaxAge {
				t.Errorf("%s: an ID was given %v after it was requested", name, time.Since(began))
			}
		})
	}
}

// TestHalf: taking the ID in the middle of a block fetches the next block, once, for any number of IDs taken at a time.
// A block that is there is not fetched again.
func TestHalf(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 8, 200, 300, 400} {
		synctest.Test(t, func(t *testing.T) {
			p, fetches := prefetching(), 0
			s := p.block(1, 400)
			for _, fetch, ok := p.cut(s, n); ok; _, fetch, ok = p.cut(s, n) {
				if fetch {
					fetches++
				}
			}
			if fetches != 1 {
				t.Errorf("%d at a time: %d fetches", n, fetches)
			}
			p.cur.Store(p.block(1, 400))
			p.spare, p.fetching = p.block(401, 400), false
			if p.next(400); p.fetches != 0 {
				t.Errorf("%d fetches beside the next block", p.fetches)
			}
		})
	}
}

// TestSizes: a block that is used up quickly is followed by a larger one, and one that lasts by a
// smaller one; of one that became too old, no more are fetched than were taken twice over.
func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		size, taken int // of 400 IDs
		after       time.Duration
		want        int
		dropped     int64
		stale       int64
	}{
		{400, 400, busy - 1, 800, 0, 0},
		{800, 400, busy - 1, 1000, 0, 0},
		{400, 400, busy, 400, 0, 0},
		{400, 399, busy - 1, 400, 1, 0},
		{400, 400, calm, 400, 0, 0},
		{400, 400, calm + 1, 200, 0, 0},
		{100, 400, calm + 1, 64, 0, 0},
		{400, 0, calm + 1, 200, 400, 0},
		{400, 100, time.Second - 1, 200, 300, 0},
		{400, 100, time.Second, 200, 0, 300},
		{400, 50, time.Second, 100, 0, 350},
		{400, 0, time.Second, 64, 0, 400},
		{400, 400, time.Second, 400, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			time.Sleep(time.Minute)
			p.size = tc.size
			p.cur.Store(p.block(1, 400))
			for range tc.taken {
				if _, ok := p.takeOne(); !ok {
					t.Fatal("no ID is left")
				}
			}
			time.Sleep(tc.after)
			for range 2 { // The second time changes nothing.
				p.seal(1)
				if p.size != tc.want || p.c.stats.dropped.Load() != tc.dropped || p.c.stats.stale.Load() != tc.stale ||
					p.taken() != int64(tc.taken) {
					t.Errorf("%+v: size %d, %d dropped, %d stale, %d taken", tc, p.size, p.c.stats.dropped.Load(), p.c.stats.stale.Load(),
						p.taken())
				}
			}
			if _, ok := p.takeOne(); ok {
				t.Error("an ID of a sealed block")
			}
		})
	}
}

// TestNextBlock: calls are served from the block in use while it has as many IDs, then from the next one,
// and from none that is too old or too small.
func TestNextBlock(t *testing.T) {
	for _, tc := range []struct {
		name           string
		n              int
		after          time.Duration // of the block in use; the next one is half a second younger
		spare          int           // IDs of the next block; 0: there is none
		first          flake.ID      // 0: no block
		used           bool          // the next block is in use
		dropped, stale int64
	}{
		{"enough", 10, 0, 10, 1, false, 0, 0},
		{"one more", 11, 0, 11, 101, true, 10, 0},
		{"no next one", 11, 0, 0, 0, false, 0, 0},
		{"the next is too small", 11, 0, 10, 0, false, 10, 0},
		{"old", 10, time.Second, 10, 101, true, 0, 10},
		{"just not old", 10, time.Second - 1, 10, 1, false, 0, 0},
		{"both are old", 10, 3 * time.Second / 2, 10, 0, false, 0, 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			p.cur.Store(p.block(1, 10))
			if tc.spare > 0 {
				p.spare = p.block(101, tc.spare)
				p.spare.fresh += time.Second / 2
			}
			spare := p.spare
			time.Sleep(tc.after)
			b, ok := p.next(tc.n)
			if ok != (tc.first != 0) || ok && (b.First != tc.first || b.Count != tc.n) {
				t.Errorf("%s: %v, %v", tc.name, b, ok)
			}
			if used := spare != nil && p.cur.Load() == spare; used != tc.used || (used || !ok) && p.spare != nil ||
				used && spare.used != p.c.uptime.now() {
				t.Errorf("%s: the next one is in use: %v", tc.name, used)
			}
			if p.c.stats.dropped.Load() != tc.dropped || p.c.stats.stale.Load() != tc.stale {
				t.Errorf("%s: %d dropped, %d stale", tc.name, p.c.stats.dropped.Load(), p.c.stats.stale.Load())
			}
		})
	}
}

// TestPrefetchedIsNext: what is there without a wait is what is left of the block in use, or the next block
// where that has not enough, or none above after. Else nothing changes.
func TestPrefetchedIsNext(t *testing.T) {
	for _, tc := range []struct {
		name       string
		n          int
		above      flake.ID
		spare      int           // IDs of the next block, from 101 on; 0: there is none
		after      time.Duration // of the block in use; the next one is half a second younger
		before     func(*prefetcher)
		first      flake.ID // 0: no block
		left, size int      // of the block in use, which had 3 of 10 left, and of the next request
	}{
		{"enough", 3, 0, 10, 0, nil, 8, 0, 400},
		{"one more", 4, 0, 10, 0, nil, 101, 6, 800},
		{"one more, after a while", 4, 0, 10, busy, nil, 101, 6, 400},
		{"no next one", 4, 0, 0, 0, nil, 0, 3, 400},
		{"the next is too small", 11, 0, 10, 0, nil, 0, 3, 400},
		{"the next as a whole", 10, 0, 10, 0, nil, 101, 0, 800},
		{"another call", 4, 0, 10, 0, func(p *prefetcher) { p.mu.Lock() }, 0, 3, 400},
		{"closed", 4, 0, 10, 0, func(p *prefetcher) { p.closed = true }, 0, 3, 400},
		{"both are old", 4, 0, 10, 3 * time.Second / 2, nil, 0, 3, 400},
		{"above the last that was given", 1, 7, 10, 0, nil, 8, 2, 400},
		{"above the one that is next", 1, 8, 10, 0, nil, 101, 9, 400},
		{"above the block", 1, 100, 10, 0, nil, 101, 9, 400},
		{"above the first of the next", 1, 101, 10, 0, nil, 0, 3, 400},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			p.size, p.c.prefetch = 400, p
			p.cur.Store(p.block(1, 10))
			if tc.spare > 0 {
				p.spare = p.block(101, tc.spare)
				p.spare.fresh += time.Second / 2
			}
			if b, ok := p.c.Prefetched(7); !ok || b.First != 1 {
				t.Fatalf("%s: %v, %v", tc.name, b, ok)
			}
			spare := p.spare
			time.Sleep(tc.after)
			if tc.before != nil {
				tc.before(p)
			}
			for range 2 {
				var b Block
				var ok bool
				if tc.above == 0 {
					b, ok = p.c.Prefetched(tc.n)
				} else {
					b, ok = p.c.PrefetchedAfter(tc.n, tc.above)
				}
				if ok != (tc.first != 0) || ok && (b.First != tc.first || b.Count != tc.n) {
					t.Errorf("%s: %v, %v", tc.name, b, ok)
				}
				if ok {
					break
				}
			}
			s := p.cur.Load()
			if used := spare != nil && s == spare; used != (tc.first > 100) || !used && p.spare != spare {
				t.Errorf("%s: the next one is in use: %v", tc.name, used)
			}
			if left := s.block.Count - int(s.cursor.Load()); left != tc.left || p.size != tc.size {
				t.Errorf("%s: %d are left, and the size is %d", tc.name, left, p.size)
			}
		})
	}
}

// TestFloor: once a greater ID was given, none below it is, in the order that it was requested in.
func TestFloor(t *testing.T) {
	for _, tc := range []struct {
		name      string
		taken     int
		id, order int64
		unordered bool
		cur       bool // The block in use, IDs 1 to 10, is used on.
		spare     bool // so is the next one, from 101 on
	}{
		{"below", 0, 0, 0, false, true, true},
		{"at the first", 0, 1, 0, false, false, true},
		{"given already", 5, 5, 0, false, true, true},
		{"the next to be given", 5, 6, 0, false, false, true},
		{"above the block", 5, 100, 0, false, false, true},
		{"at the next block", 5, 101, 0, false, false, false},
		{"of an order that ended", 5, 101, 1, false, true, true},
		{"without order", 5, 101, 0, true, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			p.c.o.Unordered = tc.unordered
			p.cur.Store(p.block(1, 10))
			p.spare = p.block(101, 10)
			for range tc.taken {
				p.takeOne()
			}
			p.raiseFloor(tc.id, tc.order)
			dropped := int64(0)
			if !tc.cur {
				dropped += 10 - int64(tc.taken)
			}
			if !tc.spare {
				dropped += 10
			}
			if n := p.c.stats.dropped.Load(); n != dropped {
				t.Errorf("%s: %d dropped, want %d", tc.name, n, dropped)
			}
			if _, ok := p.takeOne(); ok != tc.cur || (p.spare != nil) != tc.spare {
				t.Errorf("%s: the block is used on: %v, the next one: %v", tc.name, ok, p.spare != nil)
			}
			if changes := !tc.unordered && tc.order == 0; changes != (p.floor == tc.id) && tc.id != 0 {
				t.Errorf("%s: the floor is %d", tc.name, p.floor)
			}
			p.last.Store(new(error))
			p.reset(7)
			if _, ok := p.takeOne(); ok || p.spare != nil || p.floor != 7 || p.last.Load() != nil {
				t.Errorf("%s: after a reset: an ID %v, the next block %v, floor %d", tc.name, ok, p.spare != nil, p.floor)
			}
			if n := p.c.stats.dropped.Load(); n+p.taken() != 20 {
				t.Errorf("%s: after a reset: %d dropped, %d taken, of 20", tc.name, n, p.taken())
			}
		})
	}
}

// served is a prefetcher whose requests a function answers, in the time of a bubble.
type served struct {
	*prefetcher
	counts []int32 // of its requests
}

// serving returns a prefetcher, whose blocks have at most limit IDs. do takes its time, and returns an error
// instead of IDs if it likes.
func serving(t *testing.T, limit int, o Options, do func(context.Context, *pb.AllocateResponse) error) *served {
	t.Helper()
	b, began, s := newBench(t, 0), time.Now(), &served{}
	b.pool.since = func() time.Duration { return time.Hour + time.Since(began) }
	last := int64(0)
	b.o.DialOptions = []grpc.DialOption{grpc.WithUnaryInterceptor(func(ctx context.Context, _ string, req, reply any,
		_ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		r, res := req.(*pb.AllocateRequest), reply.(*pb.AllocateResponse)
		s.counts = append(s.counts, r.Count)
		res.First, res.Count, res.Stride = max(last, r.After)+1, r.Count, flake.Scalable.Stride()
		res.Layout = pb.Layout(flake.Scalable.Number())
		last = res.First + int64(r.Count)*res.Stride
		if do == nil {
			return nil
		}
		return do(ctx, res)
	})}
	b.add(t, "10.0.0.1:9000")
	c := &Client{o: o, pool: b.pool, begun: began, uptime: newUptime(func() time.Duration { return 0 })}
	s.prefetcher = newPrefetcher(c)
	s.limit, s.size = limit, min(limit, firstPrefetch)
	c.prefetch = s.prefetcher
	t.Cleanup(s.close)
	return s
}

// refuse returns a refusal as a node sends it.
func refuse(reason Reason, metadata map[string]string) error {
	st, err := status.New(codes.Unavailable, "by script").WithDetails(&errdetails.ErrorInfo{Reason: string(reason), Metadata: metadata})
	if err != nil {
		return err
	}
	return st.Err()
}

// TestFetchedAhead: the next block is requested when half of one is taken, and no earlier.
func TestFetchedAhead(t *testing.T) {
	for _, tc := range []struct{ largest, n, calls, requests int }{
		{64, 1, 32, 1}, {64, 1, 33, 2}, {64, 1, 64, 2}, {64, 1, 96, 2}, {64, 1, 97, 3}, {64, 8, 4, 1}, {64, 8, 5, 2}, {64, 10, 3, 1},
		{64, 10, 4, 2}, {64, 16, 2, 1}, {64, 16, 3, 2}, {64, 32, 1, 1}, {64, 33, 1, 2}, {64, 64, 1, 2}, {1, 1, 1, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := serving(t, tc.largest, Options{MaxAge: time.Hour, Timeout: time.Minute}, nil)
			for range tc.calls {
				var err error
				if tc.n == 1 {
					_, err = p.c.Next(t.Context())
				} else {
					_, err = p.c.take(t.Context(), tc.n)
				}
				fatal.If(t, err)
				synctest.Wait()
			}
			if len(p.counts) != tc.requests || p.taken() != int64(tc.n*tc.calls) || p.wanted != 0 {
				t.Errorf("%+v: requests of %v, %d taken, %d wanted", tc, p.counts, p.taken(), p.wanted)
			}
		})
	}
}

// TestFetchNext: a block is requested once, for the one in use, and not by a client that is closed.
func TestFetchNext(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*served)
		fetches int
	}{
		"in use":       {func(*served) {}, 1},
		"under way":    {func(p *served) { p.fetching = true }, 0},
		"there is one": {func(p *served) { p.spare = p.block(101, 1) }, 0},
		"replaced":     {func(p *served) { p.cur.Store(p.block(101, 1)) }, 0},
		"closed":       {func(p *served) { p.closed = true }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := serving(t, 64, Options{MaxAge: time.Hour, Timeout: time.Minute}, nil)
			s := p.block(1, 10)
			p.cur.Store(s)
			tc.prepare(p)
			if p.fetchNext(s); p.fetches != tc.fetches {
				t.Errorf("%s: %d fetches", name, p.fetches)
			}
		})
	}
}

// TestTooOld: an ID is taken up to its age, and the one of that age is counted and not given.
func TestTooOld(t *testing.T) {
	for _, age := range []time.Duration{0, time.Second - 1, time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			p := prefetching()
			s := p.block(1, 10)
			p.cur.Store(s)
			time.Sleep(age)
			fresh, stale := age < time.Second, int64(0)
			if !fresh {
				stale = 4
			}
			_, one := p.takeOne()
			_, three := p.takeFrom(s, 3)
			if n := p.c.stats.stale.Load(); one != fresh || three != fresh || n != stale {
				t.Errorf("after %v: one %v, three %v, %d stale", age, one, three, n)
			}
		})
	}
}

// TestCallersThatWait: they ask for twice what they need, together, and for no more than a node grants.
func TestCallersThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serving(t, 1000, Options{MaxAge: time.Hour, Timeout: time.Minute}, nil)
		for range 2 {
			if _, err := p.take(t.Context(), 100); err != nil {
				t.Fatal(err)
			}
		}
		if synctest.Wait(); !slices.Equal(p.counts, []int32{200, 200}) {
			t.Errorf("two of 100: requests of %v", p.counts)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := serving(t, 1000, Options{MaxAge: time.Hour, Timeout: time.Minute},
			func(context.Context, *pb.AllocateResponse) error { time.Sleep(time.Second / 2); return nil })
		var all sync.WaitGroup
		for range 300 {
			all.Go(func() {
				if _, err := p.c.Next(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if len(p.counts) < 2 || p.counts[0] != 64 || p.counts[1] < 300-64 || p.wanted != 0 {
			t.Errorf("300 callers: requests of %v, %d wanted", p.counts, p.wanted)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := serving(t, 50, Options{MaxAge: time.Hour, Timeout: time.Minute}, nil)
		p.cur.Store(p.block(1, 10))
		b, err := p.take(t.Context(), 51)
		if _, ok := p.takeOne(); err != nil || ok || p.floor != int64(b.Last()) || p.c.stats.ids.Load() != 51 || p.fetches != 0 {
			t.Errorf("a block of its own: %v, %v, floor %d, %d taken, %d fetches, IDs below it %v", b, err, p.floor, p.c.stats.ids.Load(), p.fetches, ok)
		}
	})
	for _, tc := range []struct {
		limit string
		left  int
	}{{"20", 20}, {"", 1000}, {"-1", 1000}, {"64", 1000}} {
		synctest.Test(t, func(t *testing.T) {
			p := serving(t, 1000, Options{MaxAge: time.Hour, Timeout: time.Minute}, func(_ context.Context, r *pb.AllocateResponse) error {
				if r.Count > 20 {
					return refuse(InvalidCount, map[string]string{"limit": tc.limit})
				}
				return nil
			})
			_, err := p.c.Next(t.Context())
			if synctest.Wait(); p.limit != tc.left || (err == nil) != (tc.left == 20) ||
				err != nil && !errors.Is(err, &Refusal{Reason: InvalidCount}) {
				t.Errorf("limit %q: %v, the limit is %d", tc.limit, err, p.limit)
			}
		})
	}
}

// TestWaitsEnd: a caller has its own time, whenever the fetch began that it waits for, and reads why no IDs
// came.
func TestWaitsEnd(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name    string
		timeout time.Duration
		do      func(context.Context, *pb.AllocateResponse) error
		is      error
		says    string
	}{
		{"refused", 2 * s, func(context.Context, *pb.AllocateResponse) error { return refuse(NoSID, nil) },
			&Refusal{Reason: NoSID}, "within 2s"},
		{"old", 2 * s, func(context.Context, *pb.AllocateResponse) error { time.Sleep(s * 7 / 10); return nil },
			errOld, "within 2s"},
		{"no answer", s * 9 / 10, func(ctx context.Context, _ *pb.AllocateResponse) error { <-ctx.Done(); return ctx.Err() },
			ErrUnavailable, "within 900ms: none is connected"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := serving(t, 64, Options{MaxAge: s / 2, Timeout: tc.timeout}, tc.do)
			var all sync.WaitGroup
			for i := range 2 {
				all.Go(func() {
					time.Sleep(time.Duration(i) * tc.timeout / 2)
					began := time.Now()
					_, err := p.c.Next(t.Context())
					if took := time.Since(began); took != tc.timeout || !errors.Is(err, tc.is) || i == 0 && !strings.Contains(err.Error(), tc.says) ||
						errors.Is(err, errOld) != (tc.is == errOld) {
						t.Errorf("%s, call %d: %v after %v", tc.name, i, err, took)
					}
				})
			}
			all.Wait()
		})
	}
}

// TestRenewEarly: with the option, calls that come seldom wait for no node but the first one; without it each
// of them waits that finds its block too old.
func TestRenewEarly(t *testing.T) {
	const ms = time.Millisecond
	for early, want := range map[bool]int{true: 1, false: 4} {
		synctest.Test(t, func(t *testing.T) {
			p := serving(t, 64, Options{MaxAge: 400 * ms, Timeout: time.Minute, RenewEarly: early},
				func(context.Context, *pb.AllocateResponse) error { time.Sleep(60 * ms); return nil })
			waited := 0
			for range 8 {
				began := time.Now()
				if _, err := p.c.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
				if time.Since(began) > 0 {
					waited++
				}
				time.Sleep(300 * ms)
			}
			if waited != want {
				t.Errorf("early %v: %d of 8 calls waited, want %d", early, waited, want)
			}
		})
	}
}

// TestFetched: what a fetch brings is used unless it is not above what was given meanwhile, and then there
// is no error any more.
func TestFetched(t *testing.T) {
	for _, tc := range []struct {
		above     int64 // the floor is so far above the first
		unordered bool
		used      bool
	}{{-1, false, true}, {0, false, false}, {1, false, false}, {1, true, true}} {
		synctest.Test(t, func(t *testing.T) {
			var p *served
			p = serving(t, 64, Options{MaxAge: time.Hour, Timeout: time.Minute, Unordered: tc.unordered},
				func(_ context.Context, r *pb.AllocateResponse) error {
					if len(p.counts) == 1 {
						return status.Error(codes.Unavailable, "the first fails")
					}
					if p.last.Load() == nil {
						t.Error("the first is not noted")
					}
					p.mu.Lock()
					defer p.mu.Unlock()
					p.floor = r.First + tc.above
					return nil
				})
			p.mu.Lock()
			p.fetch()
			p.mu.Unlock()
			time.Sleep(time.Second / 2)
			synctest.Wait()
			if (p.spare != nil) != tc.used || (p.c.stats.dropped.Load() == 64) == tc.used || p.last.Load() != nil || len(p.counts) != 2 {
				t.Errorf("%+v: used %v, %d dropped, %v", tc, p.spare != nil, p.c.stats.dropped.Load(), p.last.Load())
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		p := serving(t, 64, Options{MaxAge: time.Hour}, nil)
		away := error(io.EOF)
		p.c.pool.nodes.Nodes[0].fail(io.ErrNoProgress)
		if err := p.fetchError(); err != io.ErrNoProgress {
			t.Errorf("why a node is not asked: %v", err)
		}
		if p.last.Store(&away); p.fetchError() != away {
			t.Errorf("why the last attempt failed: %v", p.fetchError())
		}
	})
}

// TestPrefetcherCloses: at once, with the fetch that is under way, and counts what nobody took.
func TestPrefetcherCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serving(t, 64, Options{MaxAge: time.Hour, Timeout: time.Minute},
			func(ctx context.Context, _ *pb.AllocateResponse) error { <-ctx.Done(); return ctx.Err() })
		began, s := time.Now(), p.block(1, 10)
		p.cur.Store(s)
		p.fetchNext(s)
		for range 3 {
			p.takeOne()
		}
		p.c.closed = true
		p.close()
		if _, ok := p.takeOne(); ok || time.Since(began) != 0 || p.fetching || p.taken() != 3 || p.c.stats.dropped.Load() != 7 {
			t.Errorf("after %v: an ID %v, fetching %v, %d taken, %d dropped", time.Since(began), ok, p.fetching, p.taken(), p.c.stats.dropped.Load())
		}
		if _, err := p.c.take(t.Context(), 1); err != ErrClosed {
			t.Error(err)
		}
	})
}
