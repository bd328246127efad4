package gen

import (
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

const (
	// sealed is set in the word of a tenure that has ended. The bits below keep the
	// last ID, so that a second Seal returns the same as the first.
	sealed uint64 = 1 << 63

	// earliest is the minimum of a clock reading, in ms since the epoch: earlier than
	// any real time, and far from where sums overflow.
	earliest = -1 << 60
)

// A Tenure is one process's hold of one sid, from acquiring to sealing it. All
// its methods are safe for concurrent use, and none waits or blocks. It must
// not be copied: a second word would issue the first one's IDs again.
//
//  1. The word only rises, and once sealed it never changes.
//  2. No ID issued has a time below the base, or at or above a ceiling that was
//     set before it was issued (I3).
//  3. Next is the only method that issues, in one compare-and-swap, last.
type Tenure struct {
	word atomic.Uint64 // last (time, entropy) handed out, raised by Next, Lift and Seal; at first base<<bits − 1
	ceil atomic.Int64  // exclusive, in units since the epoch; only ever raised, by Raise

	// Fixed from here on, so that nothing guards them. Times are in the layout's units since the epoch, which are
	// milliseconds in all but a few.
	base     int64
	unit     int64 // in ms
	end      int64 // first time that IDs cannot hold
	epoch    int64 // in Unix ms
	maxLead  int64
	maxBlock uint64
	maxStep  uint64
	start    uint64       // the first entropy of a unit of time is random below it
	room     uint64       // words that a block may use from the start of now
	below    uint64       // the bits of a word that are below the sid in an ID
	sidAt    uint64       // the sid in its place in an ID
	stride   int64        // between IDs whose words follow each other
	begins   clock.Millis // The window begins at this Unix ms.
	rnd      rand.Source
	bits     uint8 // The entropy of an ID has this many bits.
	sidBits  uint8
	sid      flake.SID
}

// NewTenure returns a tenure that issues IDs of sid with times in [base, ceil),
// both in Unix ms. The caller must hold that window alone: base and ceil are
// what etcd confirmed, and base also lies above every ID this process issued
// before (I2).
//
// rnd must be safe for concurrent use; see Random. base must be after the epoch,
// ceil not below base, and sid one of the layout's. NewTenure returns an error that
// names the rule that does not hold. Of a window that reaches past the layout's end,
// what lies before it can be used.
func NewTenure(cfg Config, sid flake.SID, base, ceil clock.Millis, rnd rand.Source) (*Tenure, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.validTenure(sid, base, ceil); err != nil {
		return nil, err
	}
	if rnd == nil {
		return nil, errNoSource
	}
	l := cfg.Layout
	k := l.SequenceBits()
	t := &Tenure{
		unit:     l.Unit(),
		end:      l.MaxTimestamp() + 1,
		epoch:    int64(cfg.Epoch),
		maxLead:  int64(cfg.MaxLead) / l.Unit(),
		maxBlock: uint64(cfg.MaxBlock()),
		maxStep:  uint64(cfg.MaxStep),
		start:    uint64(max(l.Start(), 1)),
		stride:   l.Stride(),
		begins:   base,
		rnd:      rnd,
		bits:     uint8(k),
		sidBits:  uint8(l.SIDBits()),
		sid:      sid,
		sidAt:    uint64(sid),
	}
	t.room = uint64(min(t.maxLead+1, blockLimit)) << k
	if l.Random() {
		t.start = 1 << (k - 1) // the top bit clear
	}
	if l.SIDFirst() {
		t.below, t.room = 1<<k-1, 1<<k
		t.sidAt <<= k
	}
	// Only units that lie in the window as a whole: the next holder of the sid
	// may begin within a unit that is cut off, and use all of it.
	t.base = (t.millis(base) + t.unit - 1) / t.unit
	t.word.Store(uint64(t.base)<<k - 1) // 1 ≤ base ≤ end, so this is not a sealed word
	t.ceil.Store(t.sinceEpoch(ceil))
	return t, nil
}

// Next issues a block of n IDs, all greater than after and than every ID issued
// before; after 0 is no bound.
//
// now is the issuing clock in Unix ms, read by the caller once; seen is the highest
// reading that this process ever had. A clock past the layout's end counts as that
// end.
//
// If Next refuses, nothing has changed (I7). It checks in this order and returns the
// first that applies: ErrSealed; ErrCount, as a *CountError; a *LeadError; and
// ErrCeiling, which lasts until Raise. It does not allocate unless it refuses.
func (t *Tenure) Next(now, seen clock.Millis, n int, after flake.ID) (Block, error) {
	at := t.sinceEpoch(now)
	for {
		last := t.word.Load()
		if last >= sealed {
			return Block{}, ErrSealed
		}
		if uint64(n)-1 >= t.maxBlock { // also true of n < 1
			return Block{}, &CountError{Count: n, Limit: int(t.maxBlock)}
		}
		own := t.fit(t.follow(last, at, uint64(n)), uint64(n))
		first := own
		if after > 0 {
			first = max(own, t.fit(t.above(after), uint64(n)))
		}
		end := first + uint64(n) - 1 // first is at most 2^63: no overflow
		lead := t.time(end) - at
		if lead > t.maxLead {
			return Block{}, t.tooFar(last, first, first > own, end, now, seen)
		}
		// Loaded after the word: a word that is read after the ceiling could have been
		// issued below a ceiling raised in between, and the old ceiling would refuse a
		// call that never had to be refused.
		if t.time(end) >= t.ceil.Load() {
			return Block{}, ErrCeiling
		}
		if t.word.CompareAndSwap(last, end) { // I7: the only line that changes anything
			return Block{
				First:  t.id(first),
				Count:  n,
				Stride: t.stride,
				SID:    t.sid,
			}, nil
		}
	}
}

// follow returns the word that a block of n IDs starts with if the caller gives no
// after.
func (t *Tenure) follow(last uint64, at int64, n uint64) uint64 {
	switch time := t.time(last); {
	case time < at:
		w := uint64(at) << (t.bits & 63)
		if t.start == 1 {
			return w
		}
		// A random start with the top bit clear leaves at least half the unit. With
		// no lead allowed, and in layouts whose blocks cross no units, it must also
		// leave n.
		return w + t.draw(min(t.start, t.room-n+1))
	case time == at && t.maxStep > 0:
		return last + 1 + t.draw(t.maxStep)
	default:
		return last + 1
	}
}

// fit returns the first word, from the given one on, where n words have IDs at even
// distances. Where the sid lies above the sequence that is within a unit: a block that
// does not fit into the rest of one starts with the next.
func (t *Tenure) fit(first, n uint64) uint64 {
	if t.below != 0 && (first^(first+n-1))&^t.below != 0 {
		return (first | t.below) + 1
	}
	return first
}

// id returns the ID of a word.
func (t *Tenure) id(w uint64) flake.ID {
	if t.below == 0 { // the specification's layouts
		return flake.ID(w<<(t.sidBits&63) | t.sidAt)
	}
	return flake.ID((w&^t.below)<<(t.sidBits&63) | t.sidAt | w&t.below)
}

// above returns the smallest word whose ID with our sid is greater than id, which
// must not be negative.
func (t *Tenure) above(id flake.ID) uint64 {
	x := min(uint64(id), uint64(t.end)<<(t.bits+t.sidBits)-1) // any later one is past the end, too
	w := x>>t.sidBits&^t.below | x&t.below                    // the time and the entropy of id
	place := (uint64(1)<<t.sidBits - 1) * (t.below + 1)
	switch sid := x & place; {
	case sid < t.sidAt:
		return w &^ t.below
	case sid == t.sidAt:
		return w + 1
	default:
		return (w | t.below) + 1
	}
}

// draw returns a random number below span. Multiplication is not exactly uniform:
// with a span below 2^20, probabilities differ by less than 2^−44.
func (t *Tenure) draw(span uint64) uint64 {
	hi, _ := bits.Mul64(t.rnd.Uint64(), span)
	return hi
}

// tooFar returns why a block from the word first to end would be too far ahead of the
// clock. bound is set if first follows from the caller's after.
func (t *Tenure) tooFar(last, first uint64, bound bool, end uint64, now, seen clock.Millis) error {
	within := t.time(end) - t.maxLead // the earliest time that the clock must have
	err := ErrOverflow
	switch at := t.sinceEpoch(now); {
	case bound && t.time(first)-at > t.maxLead:
		err = ErrAfterTooFar
	case t.sinceEpoch(seen) >= within: // without the regression the lead would be within its limit
		err = ErrRegression
	case last < t.begin() && t.base-at > t.maxLead:
		err = ErrNotBegun
	}
	return &LeadError{
		Err:   err,
		Lead:  clock.Millis(t.time(end)*t.unit - t.millis(now)),
		Limit: clock.Millis(t.maxLead * t.unit),
	}
}

// Raise moves the ceiling up to ceil, in Unix ms, which etcd must have confirmed
// (I3). A lower ceil changes nothing, so replies may come in any order; one past
// the layout's end counts as that end.
func (t *Tenure) Raise(ceil clock.Millis) {
	to := t.sinceEpoch(ceil)
	for {
		c := t.ceil.Load()
		if to <= c || t.ceil.CompareAndSwap(c, to) {
			return
		}
	}
}

// Lift has the tenure issue nothing with a time below floor, in Unix ms, from now on. It
// uses up no ID at or above floor.
func (t *Tenure) Lift(floor clock.Millis) {
	to := (min(max(t.millis(floor), 0), t.end*t.unit)+t.unit-1)/t.unit<<(t.bits&63) - 1
	for {
		last := t.word.Load()
		if last >= sealed || int64(last) >= to || t.word.CompareAndSwap(last, uint64(to)) {
			return
		}
	}
}

// Seal ends the tenure: no ID is issued after it. It returns the exclusive
// ceiling of what was, in Unix ms: the end of the last ID's unit of time, or the base
// that NewTenure was given if there is none. Sealing again returns the same.
func (t *Tenure) Seal() clock.Millis {
	last := t.word.Or(sealed) &^ sealed
	if last < t.begin() {
		return t.begins
	}
	return t.unix(t.time(last) + 1)
}

// SID returns the sid of all IDs of the tenure.
func (t *Tenure) SID() flake.SID { return t.sid }

// Base returns the first Unix ms an ID may have, the start of a unit of time.
func (t *Tenure) Base() clock.Millis { return t.unix(t.base) }

// Ceil returns the first Unix ms an ID may not have, the start of a unit of time.
func (t *Tenure) Ceil() clock.Millis { return t.unix(t.ceil.Load()) }

// Issued returns the largest ID of the tenure; ok is false if there is none yet.
// Sealing does not change it.
func (t *Tenure) Issued() (last flake.ID, ok bool) {
	w := t.word.Load() &^ sealed
	if w < t.begin() {
		return 0, false
	}
	return t.id(w), true
}

// Ahead returns the lead in ms: how far the last ID, or the base if there is none,
// is ahead of now; 0 if it is not.
func (t *Tenure) Ahead(now clock.Millis) clock.Millis {
	time := max(t.time(t.word.Load()&^sealed), t.base)
	return clock.Millis(max(time*t.unit-t.millis(now), 0))
}

// begin returns the first word of the base: a lower word means nothing issued.
func (t *Tenure) begin() uint64 { return uint64(t.base) << (t.bits & 63) }

// time returns the time of a word without its seal.
func (t *Tenure) time(w uint64) int64 { return int64(w >> (t.bits & 63)) }

func (t *Tenure) unix(time int64) clock.Millis { return clock.Millis(t.epoch + time*t.unit) }

// sinceEpoch returns a Unix time in whole units since the epoch.
func (t *Tenure) sinceEpoch(unix clock.Millis) int64 {
	ms := t.millis(unix)
	if t.unit == 1 {
		return ms
	}
	return (ms - (ms%t.unit+t.unit)%t.unit) / t.unit // rounded down, before the epoch too
}

// millis returns a Unix time in ms since the epoch, limited so that sums and shifts in
// this package do not overflow.
func (t *Tenure) millis(unix clock.Millis) int64 {
	return min(max(int64(unix), t.epoch+earliest), t.epoch+t.end*t.unit) - t.epoch
}
