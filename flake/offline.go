package flake

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"sync"
	"time"
)

// OfflineConfig configures an Offline generator.
//
// OfflineDefaults returns the specification's. Format is required.
type OfflineConfig struct {
	Format Format // meaning of the bits
	SID    SID    // 0 to Holders−1 of the layout; it is not reserved

	// EntropySize is how many random bytes the step from an ID to the next of
	// its unit of time has, 1 to MaxEntropySize: a step is uniform in 1 to
	// Layout.MaxStep. With 0 it is always 1, which leaves room for the most IDs and
	// makes the next one predictable; layouts that count take no other.
	EntropySize int

	// Now returns Unix milliseconds; nil is the wall clock of the machine. It is
	// called with the generator locked, so it must not call the generator.
	Now func() int64

	// Entropy is read for random bits, by one goroutine at a time; nil is
	// crypto/rand, read 1 KiB ahead.
	Entropy io.Reader
}

// OfflineDefaults returns the configuration the Ulid-Flake specification's
// implementations start with: format Default, sid 0, entropy size 1.
func OfflineDefaults() OfflineConfig { return OfflineConfig{Format: Default, EntropySize: 1} }

// An Offline makes IDs by the Ulid-Flake specification, for one process.
//
// They are not coordinated. No other process is asked, nothing is stored, and
// no sid is leased: two generators with one sid can make the same ID, and a
// program that restarts while its clock is stopped or went back can repeat itself.
// For IDs that are unique across processes ask an allocator.
//
// New and At make IDs that are random within their millisecond, independent of
// all others. Next and NextAt make one rising series, to which New and At do
// not belong.
//
// An Offline is safe for concurrent use. Its configuration never changes.
type Offline struct {
	format Format
	sid    SID
	step   []byte // scratch of the configured entropy size
	first  []byte // scratch for a millisecond's first draw
	now    func() int64

	mu      sync.Mutex // guards step, first, entropy and last, and covers the reading of the clock
	entropy io.Reader
	last    ID // A series without an ID yet has −1.
}

// NewOffline returns a generator that made no ID yet. It returns ErrLayout,
// ErrSID or ErrEntropySize if c is not valid.
func NewOffline(c OfflineConfig) (*Offline, error) {
	l := c.Format.Layout
	switch {
	case l.Validate() != nil:
		return nil, l.Validate()
	case int(c.SID) >= l.Holders():
		return nil, fmt.Errorf("%w: %d, the last of layout %v is %d", ErrSID, c.SID, l, l.Holders()-1)
	case c.EntropySize < 0 || c.EntropySize > l.MaxEntropySize():
		return nil, fmt.Errorf("%w: %d, layout %v takes 0 to %d", ErrEntropySize, c.EntropySize, l, l.MaxEntropySize())
	}
	o := &Offline{
		format: c.Format, sid: c.SID, now: c.Now, entropy: c.Entropy, last: -1,
		step: make([]byte, c.EntropySize), first: make([]byte, l.InitialSize()),
	}
	if o.now == nil {
		o.now = func() int64 { return time.Now().UnixMilli() }
	}
	if o.entropy == nil {
		// A system call for each ID would cost several times what the ID does.
		o.entropy = bufio.NewReaderSize(rand.Reader, 1<<10)
	}
	return o, nil
}

// Format returns what the bits of the generator's IDs mean.
func (o *Offline) Format() Format { return o.format }

// New returns an ID of the present millisecond with random entropy. IDs of one
// millisecond are in no order and can be equal: among 200 of the layout
// scalable a pair is as likely as not.
//
// It returns ErrBeforeEpoch or ErrTimeOverflow if the clock is outside the
// format's time, and ErrEntropySource; the ID is then zero.
func (o *Offline) New() (ID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.random(o.now())
}

// At is New for a time in Unix milliseconds instead of the present.
func (o *Offline) At(unixMilli int64) (ID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.random(unixMilli)
}

// Next returns the next ID of the series, greater than all the series had: the
// first of a millisecond has random entropy, another one more than the last by
// the configured step. The clock is read under the generator's lock, so callers
// cannot overtake each other between reading and drawing. A layout that counts
// starts at 0, or at random below its Start.
//
// A clock that reads less than the last ID's millisecond is ErrRegression,
// whatever the distance: IDs never go down, and a series pinned to one
// millisecond would use up its entropy at once. Wait until the clock has caught
// up. ErrMonotonicOverflow: the step did not fit into this
// millisecond: wait for the next one. The other errors are New's. Any error
// comes with the zero ID and leaves the series as it was.
//
// Source: Ulid-Flake specification, "Monotonicity"; the refusal of a clock that
// went back is that of its implementations in Go and Elixir.
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

// Observe makes every later ID of the series greater than id, which may be of another sid.
func (o *Offline) Observe(id ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = max(o.last, id)
}

// random returns an ID of a millisecond with random entropy.
func (o *Offline) random(unixMilli int64) (ID, error) {
	id, err := o.format.Make(unixMilli, 0, o.sid) // before drawing, so that no entropy is wasted
	if err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(o.entropy, o.first); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrEntropySource, err)
	}
	return id | ID(o.format.initialEntropy(o.first))<<o.format.Layout.entropyShift(), nil
}

// next returns the ID that follows o.last at a time, and makes it the last.
func (o *Offline) next(unixMilli int64) (ID, error) {
	ts, err := o.format.timestamp(unixMilli)
	if err != nil {
		return 0, err
	}
	var id ID
	switch {
	case o.last < 0 || ts > o.format.Layout.Timestamp(o.last):
		id, err = o.begin(unixMilli)
	case ts < o.format.Layout.Timestamp(o.last):
		return 0, fmt.Errorf("%w: the last ID lies %d ms ahead of it", ErrRegression,
			(o.format.Layout.Timestamp(o.last)-ts)*int64(o.format.Layout.Unit()))
	default:
		id, err = o.following(unixMilli)
	}
	if err != nil {
		return 0, err
	}
	o.last = id // Only this and Observe change the series.
	return id, nil
}

// begin returns the first ID of a unit of time.
func (o *Offline) begin(unixMilli int64) (ID, error) {
	l := o.format.Layout
	if l.Random() {
		return o.random(unixMilli)
	}
	var first uint32
	if l.Start() > 1 {
		var b [4]byte
		if _, err := io.ReadFull(o.entropy, b[:]); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrEntropySource, err)
		}
		first = bigEndian(b[:]) % uint32(l.Start())
	}
	return o.format.Make(unixMilli, first, o.sid)
}

// following returns the ID that follows o.last in its unit of time: one step above it, unless Observe was given
// an ID of another sid.
func (o *Offline) following(unixMilli int64) (ID, error) {
	l, of := o.format.Layout, o.format.SID(o.last)
	switch {
	case l.SIDFirst() && o.sid > of:
		return o.begin(unixMilli)
	case l.SIDFirst() && o.sid < of:
		return 0, fmt.Errorf("%w: sid %d of the last ID is above all of sid %d", ErrMonotonicOverflow, of, o.sid)
	}
	step, err := o.format.drawStep(o.entropy, o.step)
	if err != nil {
		return 0, err
	}
	id, err := o.format.advance(o.last, step)
	if err != nil {
		return 0, err
	}
	return id + (ID(o.sid)-ID(of))<<l.sidShift(), nil
}
