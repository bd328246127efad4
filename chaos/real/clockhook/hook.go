package clockhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Errors of the package.
var (
	// ErrUnsupported: this machine or this program cannot be hooked; the text states
	// why. Nothing was started, or it has been killed.
	ErrUnsupported = errors.New("clockhook: not supported")
	// ErrClosed answers calls after Close.
	ErrClosed = errors.New("clockhook: closed")
)

// Offsets are what is added to the machine's clocks.
type Offsets struct {
	Wall time.Duration // CLOCK_REALTIME, its coarse and alarm forms, CLOCK_TAI
	Mono time.Duration // CLOCK_MONOTONIC and its coarse form
	Raw  time.Duration // CLOCK_MONOTONIC_RAW
	Boot time.Duration // CLOCK_BOOTTIME and its alarm form
}

// All returns the same offset for each clock.
func All(d time.Duration) Offsets { return Offsets{d, d, d, d} }

// Add returns o and p together.
func (o Offsets) Add(p Offsets) Offsets {
	return Offsets{o.Wall + p.Wall, o.Mono + p.Mono, o.Raw + p.Raw, o.Boot + p.Boot}
}

// Rates are by how much clocks gain on the machine's, in parts per million:
// 50 is 50 µs in a second, 1e6 twice as fast.
type Rates struct{ Wall, Mono, Raw, Boot float64 }

// Crystal returns the rates of a machine whose oscillator is off: all clocks.
func Crystal(ppm float64) Rates { return Rates{ppm, ppm, ppm, ppm} }

// Slewed returns the rates of a machine whose clock discipline is off: all
// clocks but the raw one, which no discipline touches.
func Slewed(ppm float64) Rates { return Rates{Wall: ppm, Mono: ppm, Boot: ppm} }

// Clocks is a set of clocks.
type Clocks struct{ Wall, Mono, Raw, Boot bool }

// Clocks that stop while a machine is suspended or paused.
var (
	// Asleep: a suspended laptop. Monotonic clocks stopped; the wall clock
	// and the boot clock ran on.
	Asleep = Clocks{Mono: true, Raw: true}
	// Paused: a virtual machine that was paused, or moved to another host. All its
	// clocks stopped, and no program in it can notice.
	Paused = Clocks{Wall: true, Mono: true, Raw: true, Boot: true}
)

func (c Clocks) back(d time.Duration) (o Offsets) {
	if c.Wall {
		o.Wall = -d
	}
	if c.Mono {
		o.Mono = -d
	}
	if c.Raw {
		o.Raw = -d
	}
	if c.Boot {
		o.Boot = -d
	}
	return o
}

// Discipline is what adjtimex answers besides the time.
type Discipline struct {
	State    int           // the return value: 0 TIME_OK … 5 TIME_ERROR
	Status   int           // STA_ bits
	MaxError time.Duration // a multiple of a microsecond
	EstError time.Duration
}

// Counts say how often the program went through the hook since its start. They
// rise, and may miss some where threads collide; zero is exact.
type Counts struct {
	VDSO      uint64 // clock readings of the runtime: time.Now, timers
	Plain     uint64 // clock readings by system call
	Adjtime   uint64 // answers of adjtimex that were replaced
	Syncs     uint64 // fsync and fdatasync
	Slowed    uint64 // Syncs that were delayed
	Failed    uint64 // Syncs that were answered with an error
	Unwritten uint64 // writes to files that were answered with an error
}

// A Hook changes what one process sees. It is safe for concurrent use.
type Hook struct {
	pid  int
	page *page

	suspend sync.Mutex // held while the process is stopped; taken before mu

	mu      sync.Mutex // guards the fields below, and is held for each change of the page
	offsets Offsets    // at since; they include the drift before it
	rates   Rates
	since   readings
	closed  bool
}

// Pid returns the process's number.
func (h *Hook) Pid() int { return h.pid }

// Set makes the clocks differ from the machine's by o from now on, plus the
// drift that goes on.
func (h *Hook) Set(o Offsets) error {
	return h.change(func() { h.offsets = o })
}

// Step moves the clocks by o from where they are.
func (h *Hook) Step(o Offsets) error {
	return h.change(func() { h.offsets = h.offsets.Add(o) })
}

// Drift makes the clocks gain or lose from now on. They do not jump.
//
// A rate at which a clock would stop or run backwards is an error, and so
// is one of more than twice the machine's.
func (h *Hook) Drift(r Rates) error {
	for _, ppm := range []float64{r.Wall, r.Mono, r.Raw, r.Boot} {
		if !(ppm > -1e6 && ppm <= 1e6) {
			return fmt.Errorf("clockhook: a drift of %v ppm", ppm)
		}
	}
	return h.change(func() { h.rates = r })
}

// Offsets returns by how much the clocks differ from the machine's now.
func (h *Hook) Offsets() Offsets {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now(readClocks())
}

// Strobe moves the clocks by o and back again, every half period, until ctx is
// done; then they are where they were. It returns how often they moved forth.
func (h *Hook) Strobe(ctx context.Context, o Offsets, period time.Duration) (moves int, err error) {
	tick := time.NewTicker(max(period/2, 50*time.Microsecond))
	defer tick.Stop()
	back := Offsets{-o.Wall, -o.Mono, -o.Raw, -o.Boot}
	for {
		if err := h.Step(o); err != nil {
			return moves, err
		}
		moves++
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if err := h.Step(back); err != nil {
			return moves, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return moves, nil
		}
	}
}

// Suspend stops the process for d, or until ctx is done, and lets it go on with
// the clocks of c at the same readings. It returns for how long it held them.
//
// All threads of the process are stopped when the clocks are set back, so none of them
// sees a clock go back. Suspends of one process wait for one another.
func (h *Hook) Suspend(ctx context.Context, d time.Duration, c Clocks) (held time.Duration, err error) {
	h.suspend.Lock()
	defer h.suspend.Unlock()
	if err := stop(ctx, h.pid); err != nil {
		return 0, err
	}
	began := readClocks()
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
	held = time.Duration(readClocks().raw - began.raw)
	err = h.Step(c.back(held))
	return held, errors.Join(err, resume(h.pid))
}

// SlowSync makes each fsync and fdatasync that begins from now on take longer by
// d; 0 ends it. Those that wait already do so to their end.
func (h *Hook) SlowSync(d time.Duration) error {
	return h.change(func() { h.page.word(wordSyncDelay).Store(int64(max(d, 0))) })
}

// FailSync answers each fsync and fdatasync with the error, without doing it, as
// a broken disk would; 0 ends it.
func (h *Hook) FailSync(errno syscall.Errno) error {
	return h.change(func() { h.page.word(wordSyncErrno).Store(int64(errno)) })
}

// FailWrite answers each write, pwrite64 and fallocate on a file with the error,
// without doing it, as a full disk would; 0 ends it. A real one may still take what
// overwrites blocks that a file has. Sockets, pipes and standard output work on.
func (h *Hook) FailWrite(errno syscall.Errno) error {
	return h.change(func() { h.page.word(wordWriteErrno).Store(int64(errno)) })
}

// SetDiscipline makes adjtimex answer with d; nil: with the answer of the kernel.
// The time in the answer stays the machine's.
func (h *Hook) SetDiscipline(d *Discipline) error {
	return h.change(func() {
		h.page.word(wordAdjOn).Store(0)
		if d != nil {
			h.page.word(wordAdjState).Store(int64(d.State))
			h.page.word(wordAdjStatus).Store(int64(d.Status))
			h.page.word(wordAdjMaxError).Store(d.MaxError.Microseconds())
			h.page.word(wordAdjEstError).Store(d.EstError.Microseconds())
			h.page.word(wordAdjOn).Store(1)
		}
	})
}

// Counts returns how often the program went through the hook: proof that it did.
func (h *Hook) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return Counts{}
	}
	count := func(w int) uint64 { return uint64(h.page.word(w).Load()) }
	return Counts{
		VDSO:      count(wordVDSO),
		Plain:     count(wordPlain),
		Adjtime:   count(wordAdjtime),
		Syncs:     count(wordSyncs),
		Slowed:    count(wordSlowed),
		Failed:    count(wordFailed),
		Unwritten: count(wordUnwritten),
	}
}

// Close lets go of the shared page. The process, should it still run, goes on
// seeing the clocks as they were set last. Close may be called again.
func (h *Hook) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	return h.page.close()
}

// change folds the drift until now into the offsets, applies f, and shows it.
func (h *Hook) change(f func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	// The process reads no clock between our reading and what is made of it, so
	// that a change of rate is no step.
	h.page.word(wordSeq).Add(1)
	defer h.page.word(wordSeq).Add(1)
	now := readClocks()
	h.offsets, h.since = h.now(now), now
	f()
	h.page.write(h.offsets, h.rates, h.since)
	return nil
}

// now returns the offsets at a time of the machine's clocks.
func (h *Hook) now(r readings) Offsets {
	gained := func(ppm float64, ns int64) time.Duration {
		return time.Duration(scaled(ns, slope(ppm)))
	}
	return h.offsets.Add(Offsets{
		gained(h.rates.Wall, r.wall-h.since.wall), gained(h.rates.Mono, r.mono-h.since.mono),
		gained(h.rates.Raw, r.raw-h.since.raw), gained(h.rates.Boot, r.boot-h.since.boot)})
}

// readings are the machine's clocks in nanoseconds.
type readings struct{ wall, mono, raw, boot int64 }

// words of the shared page, of 8 bytes each. Those that the process writes are
// on cache lines of their own: it reads the others with each reading of a clock.
const (
	wordSeq   = 0 // even; odd while the clocks below are being changed
	wordClock = 8 // wordsPerClock for each clock number below clockNumbers

	wordSyncDelay   = 128 // ns
	wordSyncErrno   = 129
	wordWriteErrno  = 130
	wordAdjOn       = 136
	wordAdjState    = 137
	wordAdjStatus   = 138
	wordAdjMaxError = 139 // µs
	wordAdjEstError = 140 // µs

	wordVDSO      = 256
	wordPlain     = 264
	wordAdjtime   = 272
	wordSyncs     = 280
	wordSlowed    = 281
	wordFailed    = 282
	wordUnwritten = 283

	clockNumbers  = 16
	wordsPerClock = 4 // seconds to add, nanoseconds to add, slope, reading that the slope counts from
	pageWords     = 512
)

// page is the memory that the process shares with us.
type page struct {
	words *[pageWords]atomic.Int64
	unmap func() error
}

func (p *page) word(i int) *atomic.Int64 { return &p.words[i] }

func (p *page) close() error { return p.unmap() }

// write shows offsets as of a time, and rates from then on. While the process
// runs, wordSeq has to be odd.
func (p *page) write(o Offsets, r Rates, since readings) {
	clock := func(offset time.Duration, ppm float64, base int64, numbers ...int) {
		for _, n := range numbers {
			w := wordClock + n*wordsPerClock
			// Seconds apart: a sum in nanoseconds would end in the year 2262.
			p.word(w).Store(int64(offset / time.Second))
			p.word(w + 1).Store(int64(offset % time.Second))
			p.word(w + 2).Store(slope(ppm))
			p.word(w + 3).Store(base)
		}
	}
	clock(o.Wall, r.Wall, since.wall, 0, 5, 8, 11)
	clock(o.Mono, r.Mono, since.mono, 1, 6)
	clock(o.Raw, r.Raw, since.raw, 4)
	clock(o.Boot, r.Boot, since.boot, 7, 9)
}

// slope returns parts per million as a multiple of 2^-32.
func slope(ppm float64) int64 { return int64(ppm / 1e6 * (1 << 32)) }

// scaled returns ns × slope × 2^-32, rounded down, as the stubs compute it.
func scaled(ns, slope int64) int64 {
	// Split, so that no product exceeds 64 bits within 26 days: |slope| ≤ 2^32.
	high, low := ns>>20, ns&(1<<20-1)
	return (high*slope + low*slope>>20) >> 12
}
