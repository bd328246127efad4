package netswitch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// Errors of the package.
var (
	// ErrUnsupported: this machine does not support networks; the text states why.
	ErrUnsupported = errors.New("netswitch: not supported")
	// ErrClosed answers calls after Close.
	ErrClosed = errors.New("netswitch: closed")
)

// Effect is what happens to packets. Shares are of the packets that reach it, from
// 0 to 1, and are drawn for each packet anew.
type Effect struct {
	Drop      float64       // share that is lost; 1: a cut wire
	Delay     time.Duration // added to each packet
	Jitter    time.Duration // Delay is longer or shorter by up to this, so that packets overtake one another
	Reorder   float64       // share that is held back 5 ms longer than the others
	Duplicate float64       // share that arrives twice
	Corrupt   float64       // share with a bit turned over: kernels drop these for their checksum
	Forge     float64       // share with a bit of its content turned over and its checksum repaired: programs get these
}

// Cut loses everything.
var Cut = Effect{Drop: 1}

const heldBack = 5 * time.Millisecond

// Validate returns an error that names a field outside its range.
func (e Effect) Validate() error {
	for name, share := range map[string]float64{"Drop": e.Drop, "Reorder": e.Reorder, "Duplicate": e.Duplicate,
		"Corrupt": e.Corrupt, "Forge": e.Forge} {
		if !(share >= 0 && share <= 1) {
			return fmt.Errorf("netswitch: %s is %v, not from 0 to 1", name, share)
		}
	}
	if e.Delay < 0 || e.Jitter < 0 || e.Delay > time.Minute || e.Jitter > time.Minute {
		return fmt.Errorf("netswitch: a delay of %v ± %v, not from 0 to 1m", e.Delay, e.Jitter)
	}
	return nil
}

// Pair is an ordered pair of hosts: the wire from one to the other.
type Pair struct{ From, To *Host }

// Both returns the two wires between a and b.
func Both(a, b *Host) []Pair { return []Pair{{a, b}, {b, a}} }

// From returns the wires from each of some hosts to each of others.
func From(some, others []*Host) (out []Pair) {
	for _, a := range some {
		for _, b := range others {
			if a != b {
				out = append(out, Pair{a, b})
			}
		}
	}
	return out
}

// Between returns the wires between some hosts and others, both ways.
func Between(some, others []*Host) []Pair {
	return slices.Concat(From(some, others), From(others, some))
}

// Done counts packets.
type Done struct {
	Matched    uint64 // packets that Match selects
	Dropped    uint64
	Delayed    uint64
	Reordered  uint64
	Duplicated uint64
	Corrupted  uint64
	Forged     uint64
}

// Fired reports whether any packet was harmed.
func (d Done) Fired() bool {
	return d.Dropped+d.Delayed+d.Reordered+d.Duplicated+d.Corrupted+d.Forged > 0
}

// Fault is an effect that was applied. It is safe for concurrent use.
type Fault struct {
	s      *Switch
	effect Effect
	match  Match
	pairs  []Pair

	matched, dropped, delayed, reordered, duplicated, corrupted, forged atomic.Uint64
}

// Done returns what the fault has done so far.
func (f *Fault) Done() Done {
	return Done{
		Matched:    f.matched.Load(),
		Dropped:    f.dropped.Load(),
		Delayed:    f.delayed.Load(),
		Reordered:  f.reordered.Load(),
		Duplicated: f.duplicated.Load(),
		Corrupted:  f.corrupted.Load(),
		Forged:     f.forged.Load(),
	}
}

// Lift ends the fault. Packets that it delays already arrive when they are due.
// Lift may be called again.
func (f *Fault) Lift() { f.s.lift(f) }

// wire is an ordered pair's state. Its rand belongs to the goroutine that reads the
// sender's device.
type wire struct {
	rand   *rand.Rand
	faults atomic.Pointer[[]*Fault]

	packets, bytes atomic.Uint64 // all that hosts sent
}

func newWire(seed uint64, from, to int) *wire {
	w := &wire{rand: rand.New(rand.NewPCG(seed, uint64(from)<<32|uint64(to)))}
	w.faults.Store(&[]*Fault{})
	return w
}

// fate is what becomes of a packet.
type fate struct {
	copies int // 0: lost
	delay  time.Duration
}

// meet lets the faults of the wire happen to p, which it may change.
func (w *wire) meet(p packet) fate {
	w.packets.Add(1)
	w.bytes.Add(uint64(len(p.data)))
	out := fate{copies: 1}
	for _, f := range *w.faults.Load() {
		if !f.match.admits(p) {
			continue
		}
		f.matched.Add(1)
		if w.chance(f.effect.Drop) {
			f.dropped.Add(1)
			return fate{}
		}
		if w.chance(f.effect.Corrupt) && p.corrupt(w.rand) {
			f.corrupted.Add(1)
		}
		if w.chance(f.effect.Forge) && p.forge(w.rand) {
			f.forged.Add(1)
		}
		if w.chance(f.effect.Duplicate) {
			f.duplicated.Add(1)
			out.copies++
		}
		delay := f.effect.Delay
		if j := f.effect.Jitter; j > 0 {
			delay += time.Duration(w.rand.Int64N(2*int64(j)+1)) - j
		}
		if f.effect.Delay > 0 || f.effect.Jitter > 0 {
			f.delayed.Add(1)
		}
		if w.chance(f.effect.Reorder) {
			f.reordered.Add(1)
			delay += heldBack
		}
		out.delay += max(delay, 0)
	}
	return out
}

// chance draws only where there is something to draw, so that a fault without an
// effect changes no later draw.
func (w *wire) chance(share float64) bool {
	return share > 0 && (share >= 1 || w.rand.Float64() < share)
}
