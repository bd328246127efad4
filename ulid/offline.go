package ulid

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"sync"
	"time"
)

// OfflineConfig configures an Offline generator. The zero OfflineConfig is
// the machine's clock and crypto/rand.
type OfflineConfig struct {
	// Now returns Unix milliseconds; nil is the wall clock of the machine. It is
	// called with the generator locked, so it must not call the generator.
	Now func() int64

	// Entropy is read for random bits, 10 bytes an ID, by one goroutine at a
	// time; nil is crypto/rand, read 1 KiB ahead.
	Entropy io.Reader
}

// An Offline makes IDs by the ULID specification, for one process.
//
// They are not coordinated. No other process is asked: that two IDs differ is
// likely, as 80 random bits make it, and not promised, and the order of IDs of
// several processes is that of their clocks. They are plain ULIDs, not the wide
// IDs an allocator issues; New().ForceV7 makes a random UUIDv7 of one.
//
// New and At make random IDs, independent of all others. Next and NextAt make
// one rising series, to which New and At do not belong.
//
// An Offline is safe for concurrent use. Its configuration never changes.
type Offline struct {
	now func() int64

	mu      sync.Mutex // guards what follows, and covers the reading of the clock
	entropy io.Reader
	random  [RandomLen]byte // scratch
	last    ID
	started bool // The zero ID is a legal first, so last cannot say whether there is one.
}

// NewOffline returns a generator that made no ID yet.
func NewOffline(c OfflineConfig) *Offline {
	o := &Offline{now: c.Now, entropy: c.Entropy}
	if o.now == nil {
		o.now = func() int64 { return time.Now().UnixMilli() }
	}
	if o.entropy == nil {
		// A system call for each ID would cost several times what the ID does.
		o.entropy = bufio.NewReaderSize(rand.Reader, 1<<10)
	}
	return o
}

// New returns an ID of the present millisecond and 80 random bits.
//
// It returns ErrBeforeEpoch or ErrTimeOverflow if the clock is before 1970
// or past 48 bits, and ErrEntropySource; the ID is then zero.
func (o *Offline) New() (ID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.draw(o.now())
}

// At is New for a time in Unix milliseconds instead of the present. 0 is a time
// like any other.
func (o *Offline) At(unixMilli int64) (ID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.draw(unixMilli)
}

// Next returns the next ID of the series, greater than all the series had: the
// first of a millisecond has 80 random bits, another one is the last plus one.
// The clock is read under the generator's lock, so callers cannot overtake each
// other between reading and drawing.
//
// While the clock reads less than the last ID's millisecond, by whatever
// distance, the series stays in that millisecond and counts on: it never goes
// down. If no number is left there, Next returns ErrMonotonicOverflow; it works
// again when the clock is past that millisecond. The other errors are New's.
// Any error comes with the zero ID and leaves the series as it was.
//
// Source: ULID specification, "Monotonicity", which does not mention clocks that
// go back; to stay is the rule of its first implementation.
func (o *Offline) Next() (ID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next(o.now())
}

// NextAt is Next for a time in Unix milliseconds instead of the present. It
// continues the same series.
func (o *Offline) NextAt(unixMilli int64) (ID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next(unixMilli)
}

// Observe makes every later ID of the series greater than id.
func (o *Offline) Observe(id ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.started || id.Compare(o.last) > 0 {
		o.last, o.started = id, true
	}
}

// draw returns an ID of a millisecond and 80 random bits.
func (o *Offline) draw(unixMilli int64) (ID, error) {
	if err := checkTime(unixMilli); err != nil {
		return ID{}, err // before drawing, so that no entropy is wasted
	}
	if _, err := io.ReadFull(o.entropy, o.random[:]); err != nil {
		return ID{}, fmt.Errorf("%w: %w", ErrEntropySource, err)
	}
	return Make(unixMilli, o.random)
}

// next returns the ID that follows o.last at a time, and makes it the last.
func (o *Offline) next(unixMilli int64) (id ID, err error) {
	if err := checkTime(unixMilli); err != nil {
		return ID{}, err
	}
	// At or before the last millisecond, not only at it: else a clock that went
	// back would take the series with it.
	if o.started && unixMilli <= o.last.UnixMilli() {
		id, err = o.last.Increment()
	} else {
		id, err = o.draw(unixMilli)
	}
	if err != nil {
		return ID{}, err
	}
	o.last, o.started = id, true // Only this and Observe change the series.
	return id, nil
}
