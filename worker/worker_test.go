package worker_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/worker"
)

// open opens a worker in a bubble of synctest.
func open(t *testing.T, n *nodes, cfg worker.Config) *worker.Worker {
	t.Helper()
	cfg.Service = n
	w, err := worker.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func closed(t *testing.T, w *worker.Worker) {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func permit(t *testing.T, w *worker.Worker, ms int64, want error) {
	t.Helper()
	if err := w.Permit(ms); !errors.Is(err, want) {
		t.Errorf("Permit(%d) at %d: %v, want %v", ms, now(), err, want)
	}
}

func TestInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		w := open(t, n, worker.Config{Name: "orders"})
		from, to := w.Interval()
		if w.Number() != 17 || w.Term() != 1 || w.ID() != "17-1" || w.Name() != "orders" || to-from != window.Milliseconds() {
			t.Fatalf("worker %s, %d, term %d, named %s, of [%d, %d)", w.ID(), w.Number(), w.Term(), w.Name(), from, to)
		}
		if c := n.calls[0]; c.ClockUnixMs != now() || len(c.Secret) < 26 {
			t.Errorf("acquired with clock %d and a secret of %d characters", c.ClockUnixMs, len(c.Secret))
		}
		permit(t, w, from, nil)
		permit(t, w, to-1, nil)
		permit(t, w, to, worker.ErrExpired)
		permit(t, w, from-1, worker.ErrNotYet)
		for _, ms := range []int64{math.MinInt64, -1, 0} {
			permit(t, w, ms, worker.ErrNotYet)
		}
		permit(t, w, math.MaxInt64, worker.ErrExpired)
		permit(t, w, math.MaxInt64-1, worker.ErrExpired)
		closed(t, w)
		if want := []int64{to}; !slices.Equal(n.released, want) { // what was refused does not count
			t.Errorf("released with used_until %v, want %v", n.released, want)
		}
		permit(t, w, from, worker.ErrClosed)
		closed(t, w) // nothing more
		if !errors.Is(w.Err(), worker.ErrClosed) {
			t.Errorf("Err %v", w.Err())
		}
	})
}

// Of a unit that is cut by an end of the interval, neither this worker nor its
// neighbor in time has any part.
func TestUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		w := open(t, n, worker.Config{Unit: 10 * time.Millisecond})
		from, to := w.Interval()
		permit(t, w, from-1, worker.ErrNotYet)
		permit(t, w, from, nil)
		permit(t, w, to-10, nil)
		permit(t, w, to-9, worker.ErrExpired)
		closed(t, w)
		if n.released[0] != to {
			t.Errorf("used until %d, want %d", n.released[0], to)
		}
		w = open(t, n, worker.Config{Unit: 10 * time.Millisecond})
		from, _ = w.Interval()
		permit(t, w, from+3, nil)
		closed(t, w)
		if n.released[1] != from+13 {
			t.Errorf("used until %d, want the end of the unit from %d on", n.released[1], from+3)
		}
	})
}

func TestStaysExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		w := open(t, n, worker.Config{})
		for range 3600 {
			time.Sleep(time.Second)
			permit(t, w, now(), nil)
		}
		synctest.Wait() // An extension may be made in this very moment.
		if n.extended < 170 || n.extended > 190 {
			t.Errorf("extended %d times in an hour", n.extended)
		}
		closed(t, w)
	})
}

// While nodes do not answer, the worker goes on to the end of what it has; afterwards it
// permits again, by itself or when it is asked.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		w := open(t, n, worker.Config{})
		n.set(func(n *nodes) { n.refuse = &client.Refusal{Reason: client.EtcdUnavailable, Message: "etcd is away"} })
		time.Sleep(window - time.Millisecond)
		permit(t, w, now(), nil)
		if !errors.Is(w.Err(), &client.Refusal{Reason: client.EtcdUnavailable}) {
			t.Errorf("Err %v", w.Err())
		}
		time.Sleep(time.Millisecond)
		permit(t, w, now(), worker.ErrExpired)
		time.Sleep(time.Hour)
		permit(t, w, now(), worker.ErrExpired)
		n.set(func(n *nodes) { n.refuse, n.lose = nil, true }) // the record moves on, and nobody says so
		time.Sleep(10 * time.Second)
		permit(t, w, now(), worker.ErrExpired)
		n.set(func(n *nodes) { n.lose = false })
		time.Sleep(3 * time.Second)
		permit(t, w, now(), nil)
		if err := w.Err(); err != nil {
			t.Error(err)
		}
		closed(t, w)
	})
}

func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		w := open(t, n, worker.Config{})
		n.set(func(n *nodes) { n.worker = nil })
		select {
		case <-w.Lost():
			t.Fatal("lost before anybody noticed")
		default:
		}
		<-w.Lost()
		permit(t, w, now(), worker.ErrLost)
		if err := w.Err(); !errors.Is(err, worker.ErrLost) || !errors.Is(err, &client.Refusal{Reason: client.UnknownWorker}) {
			t.Errorf("Err %v", err)
		}
		if from, to := w.Interval(); from == 0 || to != 0 {
			t.Errorf("interval [%d, %d)", from, to)
		}
		closed(t, w)
		if len(n.released) != 0 {
			t.Error("a lost worker was released: its number may be somebody else's")
		}
		permit(t, w, now(), worker.ErrLost)
	})
}

// An acquisition whose answer was lost is found again by its secret.
func TestAcquireAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{lose: true}
		go func() {
			time.Sleep(5 * time.Second)
			n.set(func(n *nodes) { n.lose = false })
		}()
		w := open(t, n, worker.Config{})
		if n.acquired != 1 || len(n.calls) < 3 || w.ID() != "17-1" {
			t.Errorf("acquired %d workers by %d calls: %s", n.acquired, len(n.calls), w.ID())
		}
		closed(t, w)
	})
}

// Once the acquisition whose answer was lost was extended by a repetition, whose answer was lost
// too, its secret is of no use any more. Open draws another one, and waits where the quota is used
// up by its own first worker.
func TestOpenAfterLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{lose: true}
		go func() {
			time.Sleep(5 * time.Second)
			n.set(func(n *nodes) { n.lose, n.aged = false, true })
		}()
		began := time.Now()
		w := open(t, n, worker.Config{})
		last := n.calls[len(n.calls)-1]
		if n.acquired != 2 || w.ID() != "17-2" || last.Secret == n.calls[0].Secret {
			t.Errorf("acquired %d workers by %d calls: %s", n.acquired, len(n.calls), w.ID())
		}
		if took := time.Since(began); took < window || took > window+2*time.Second {
			t.Errorf("the number of the first worker is free after %v, and was acquired after %v", window, took)
		}
		closed(t, w)

		// A refusal of the first call is not about an earlier one.
		n = &nodes{refuse: &client.Refusal{Reason: client.InvalidFormat}}
		if _, err := worker.Open(t.Context(), worker.Config{Service: n}); !errors.Is(err, n.refuse) || len(n.calls) != 1 {
			t.Errorf("%v after %d calls", err, len(n.calls))
		}
	})
}

func TestOpenWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{ahead: 40 * time.Second}
		began := time.Now()
		w := open(t, n, worker.Config{})
		if took := time.Since(began); took != 40*time.Second {
			t.Errorf("open after %v", took)
		}
		permit(t, w, now(), nil)
		closed(t, w)

		n = &nodes{ahead: time.Hour}
		if w, err := worker.Open(t.Context(), worker.Config{Service: n}); !errors.Is(err, worker.ErrNotYet) || !errors.Is(err, context.DeadlineExceeded) || w != nil {
			t.Errorf("%v, %v", w, err)
		}
		if len(n.released) != 1 || n.worker != nil {
			t.Error("a worker that was not opened is held")
		}
	})
}

func TestOpenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, r := range []client.Reason{client.WorkersOff, client.WorkerQuota, client.CallerClock, client.PermissionDenied, client.Unauthenticated} {
			began := time.Now()
			_, err := worker.Open(t.Context(), worker.Config{Service: &nodes{refuse: &client.Refusal{Reason: r}}})
			if !errors.Is(err, &client.Refusal{Reason: r}) || time.Since(began) > 0 {
				t.Errorf("%s: %v after %v", r, err, time.Since(began))
			}
		}
		began := time.Now()
		_, err := worker.Open(t.Context(), worker.Config{Service: &nodes{refuse: &client.Refusal{Reason: client.NoWorker, Message: "17 by another"}}, OpenTimeout: 10 * time.Second})
		if !errors.Is(err, &client.Refusal{Reason: client.NoWorker}) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Second || !strings.Contains(err.Error(), "17 by another") {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		began = time.Now()
		_, err = worker.Open(t.Context(), worker.Config{
			Service:     &nodes{refuse: &client.Refusal{Reason: client.WorkerQuota, RetryAfter: time.Second}},
			OpenTimeout: 10 * time.Second,
		})
		if !errors.Is(err, &client.Refusal{Reason: client.WorkerQuota}) || time.Since(began) != 10*time.Second {
			t.Errorf("a quota that is soon free again: %v after %v", err, time.Since(began))
		}
	})
}

// TestSlowWay: the time that a request takes is no error of the caller's clock, however often
// it takes as long. A clock that is off by more than that explains is still refused.
func TestSlowWay(t *testing.T) {
	for _, tc := range []struct {
		delay, clock time.Duration
		refused      bool
	}{
		{0, 0, false},
		{300 * time.Millisecond, 0, false},
		{5 * time.Second, 0, false},
		{0, 251 * time.Millisecond, true},
		{300 * time.Millisecond, 251 * time.Millisecond, true}, // 551 ms behind, of which 300 are explained
		{300 * time.Millisecond, -551 * time.Millisecond, true},
		{300 * time.Millisecond, 250 * time.Millisecond, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := &nodes{delay: tc.delay, clock: tc.clock}
			w, err := worker.Open(t.Context(), worker.Config{Service: n})
			if refused := errors.Is(err, &client.Refusal{Reason: client.CallerClock}); refused != tc.refused || !refused && err != nil || len(n.calls) > 2 {
				t.Errorf("delay %v, clock %v: %v after %d calls", tc.delay, tc.clock, err, len(n.calls))
			}
			if w != nil {
				closed(t, w)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	to := client.Options{Targets: []string{"127.0.0.1:1"}}
	for want, cfg := range map[string]worker.Config{
		"Client.Targets: is empty": {},
		"set one of them":          {Client: to, Service: &nodes{}},
		"Unit: 1.5ms":              {Service: &nodes{}, Unit: 1500 * time.Microsecond},
		"Unit: -1ms":               {Service: &nodes{}, Unit: -time.Millisecond},
		"Unit: 1m0.001s":           {Service: &nodes{}, Unit: time.Minute + time.Millisecond},
		"Name: 65 characters":      {Service: &nodes{}, Name: strings.Repeat("n", 65)},
		"OpenTimeout: -1s":         {Service: &nodes{}, OpenTimeout: -time.Second},
	} {
		if _, err := worker.Open(t.Context(), cfg); !errors.Is(err, worker.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := worker.Open(t.Context(), worker.Config{Client: client.Options{Targets: []string{"nowhere"}}}); err == nil || !strings.Contains(err.Error(), "not host:port") {
		t.Errorf("a wrong target: %v", err)
	}
	_, err := worker.Open(t.Context(), worker.Config{Client: to, OpenTimeout: 100 * time.Millisecond})
	if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody there: %v", err)
	}
}

// From the moment that a node is told a floor nothing below it is permitted, whatever becomes of the call.
func TestWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		w := open(t, n, worker.Config{Watermark: true, Unit: 10 * time.Millisecond})
		from, _ := w.Interval()
		var told atomic.Int64 // the latest
		told.Store(from)
		n.set(func(n *nodes) {
			n.told = func(floor int64) {
				if floor < told.Load() || floor > now()-1010 {
					t.Errorf("told the floor %d at %d, after %d", floor, now(), told.Load())
				}
				told.Store(floor)
				permit(t, w, floor-1, worker.ErrBehind)
				permit(t, w, floor, nil)
			}
		})
		for range 600 {
			time.Sleep(time.Second)
			permit(t, w, max(from, now()-1010), nil)
		}
		if begin, _ := w.Interval(); begin != from || told.Load() < now()-30_000 || !n.calls[0].TellsFloor {
			t.Errorf("the interval begins at %d after %d; told %d at %d", begin, from, told.Load(), now())
		}
		permit(t, w, from-1, worker.ErrNotYet)
		n.set(func(n *nodes) { n.lose = true })
		before := told.Load()
		time.Sleep(window / 2)
		if told.Load() == before {
			t.Error("no call was lost")
		}
		permit(t, w, told.Load()-1, worker.ErrBehind)
		// It had vanished: the watermark is above what it told.
		mark := now() + 50_000
		n.set(func(n *nodes) { n.lose, n.floor, n.told = false, mark, nil })
		time.Sleep(window)
		permit(t, w, mark-1, worker.ErrBehind)
		permit(t, w, mark, nil)
		closed(t, w)
	})
}

// What Floor says is told, and nothing below it is permitted.
func TestFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		var floor, told atomic.Int64
		n.told = func(f int64) { told.Store(f) }
		w := open(t, n, worker.Config{Floor: floor.Load})
		floor.Store(now() - 7000)
		time.Sleep(window)
		synctest.Wait()
		if told.Load() != max(floor.Load(), n.worker.NotBeforeUnixMs) || !n.calls[0].TellsFloor {
			t.Errorf("told %d, want %d", told.Load(), floor.Load())
		}
		floor.Store(now() - 20)
		time.Sleep(window)
		permit(t, w, floor.Load()-1, worker.ErrBehind)
		permit(t, w, floor.Load(), nil)
		closed(t, w)
	})
}

// A clock that was ahead, and is set back, does not stop the generator for long.
func TestWatermarkOfAClockAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		w := open(t, n, worker.Config{Watermark: true})
		n.set(func(n *nodes) { n.clock = -25 * time.Second })
		time.Sleep(window) // extended by nodes whose clock is behind this one
		permit(t, w, now()-25_000-500, nil)
		closed(t, w)
	})
}

// Without it nothing is told, and nothing is refused.
func TestWatermarkOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{told: func(floor int64) {
			if floor != 0 {
				t.Errorf("told %d", floor)
			}
		}}
		w := open(t, n, worker.Config{})
		from, _ := w.Interval()
		time.Sleep(10 * window)
		synctest.Wait()
		permit(t, w, from, nil)
		if n.extended == 0 || n.calls[0].TellsFloor {
			t.Errorf("extended %d times, %v", n.extended, n.calls[0])
		}
		closed(t, w)
	})
}

// While a worker is extended, no Permit that began after a floor was told allows what is below it.
func TestWatermarkRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		n := &nodes{told: func(floor int64) { told.Store(floor) }}
		w := open(t, n, worker.Config{Watermark: true})
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for at := int64(0); ctx.Err() == nil; at++ {
					floor, ms := told.Load(), now()-900-(at+int64(i))%200
					if err := w.Permit(ms); err == nil && ms < floor {
						t.Errorf("permitted %d, and the floor was %d", ms, floor)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(10 * window)
		stop()
		all.Wait()
		if told.Load() == 0 {
			t.Error("nothing was told")
		}
		closed(t, w)
	})
}

// A number that could not be given back is an error, and the worker is closed all the
// same.
func TestCloseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{}
		w := open(t, n, worker.Config{Unit: time.Minute}) // the longest
		n.set(func(n *nodes) { n.refuse = &client.Refusal{Reason: client.EtcdUnavailable} })
		if err := w.Close(); !errors.Is(err, &client.Refusal{Reason: client.EtcdUnavailable}) || !strings.Contains(err.Error(), "release 17-1") {
			t.Errorf("Close: %v", err)
		}
		permit(t, w, now(), worker.ErrClosed)
		closed(t, w)
	})
}

// No generator gets a permission that the release does not count as used.
func TestCloseRaces(t *testing.T) {
	for range 200 {
		n := &nodes{}
		w := open(t, n, worker.Config{})
		from, _ := w.Interval()
		var most atomic.Int64
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for ms := from + int64(i); ; ms += 4 {
					if w.Permit(ms) != nil {
						return
					}
					for was := most.Load(); ms > was && !most.CompareAndSwap(was, ms); was = most.Load() {
					}
				}
			})
		}
		closed(t, w)
		all.Wait()
		if until := n.released[0]; most.Load() >= until {
			t.Fatalf("permitted %d, and released as used until %d", most.Load(), until)
		}
	}
}

func TestPermitAllocatesNothing(t *testing.T) {
	w := open(t, &nodes{}, worker.Config{})
	defer closed(t, w)
	ms, _ := w.Interval()
	if n := testing.AllocsPerRun(1000, func() { ms++; _ = w.Permit(ms) }); n != 0 {
		t.Errorf("%v allocations when permitted", n)
	}
	if n := testing.AllocsPerRun(1000, func() { _ = w.Permit(math.MaxInt64) }); n != 0 {
		t.Errorf("%v allocations when refused", n)
	}
}

func BenchmarkPermit(b *testing.B) {
	w, err := worker.Open(b.Context(), worker.Config{Service: &nodes{}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	from, _ := w.Interval()
	b.Run("same ms", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := w.Permit(from); err != nil {
				b.Fatal(err)
			}
		}
	})
	// 4,096 IDs a millisecond are the most that a generator of Twitter's layout makes.
	b.Run("full rate", func(b *testing.B) {
		b.ReportAllocs()
		for i := int64(0); b.Loop(); i++ {
			if err := w.Permit(from + i>>12%100); err != nil {
				b.Fatal(err)
			}
		}
	})
}
