package clock

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Interval is a closed interval of clock offsets in nanoseconds, Lo ≤ Hi. An
// offset is what is added to the local clock to get the other one. Its methods
// saturate: an offset of centuries, from a broken clock, stays one.
type Interval struct {
	Lo, Hi int64
}

// Mid returns the middle, rounded down.
func (i Interval) Mid() int64 { return i.Lo&i.Hi + (i.Lo^i.Hi)>>1 } // (Lo+Hi)/2 that cannot overflow

// Half returns half the width, rounded up.
func (i Interval) Half() time.Duration {
	w := i.width()
	return time.Duration(min(w/2+w%2, math.MaxInt64))
}

func (i Interval) width() uint64 { return uint64(i.Hi) - uint64(i.Lo) } // exact, also where Hi-Lo is no int64

// Bound returns the greatest distance from 0 of a point of i.
func (i Interval) Bound() time.Duration {
	return time.Duration(max(i.Hi, -max(i.Lo, -math.MaxInt64)))
}

// Widen returns i with both ends moved outward by d ≥ 0 nanoseconds.
func (i Interval) Widen(d int64) Interval { return Interval{minus(i.Lo, d), plus(i.Hi, d)} }

// Shift returns i with d nanoseconds added to both ends.
func (i Interval) Shift(d int64) Interval { return Interval{plus(i.Lo, d), plus(i.Hi, d)} }

// Meets reports whether i and o share a point.
func (i Interval) Meets(o Interval) bool { return i.Lo <= o.Hi && o.Lo <= i.Hi }

// Inside reports whether all of i lies in o.
func (i Interval) Inside(o Interval) bool { return o.Lo <= i.Lo && i.Hi <= o.Hi }

func (i Interval) valid() bool { return i.Lo <= i.Hi }

// around returns [at-d, at+d].
func around(at int64, d time.Duration) Interval { return Interval{at, at}.Widen(int64(d)) }

// plus returns a + b, or the end of the range that the sum lies beyond.
func plus(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}

// minus returns a - b, saturating as [plus] does.
func minus(a, b int64) int64 {
	if b == math.MinInt64 {
		return plus(plus(a, math.MaxInt64), 1)
	}
	return plus(a, -b)
}

// Marzullo returns the smallest interval that lies in the greatest number of
// the sources, and that number. Intervals are closed, so two that only touch
// agree. Of regions alike in number and width the lowest is returned. No
// sources, or sources with Lo > Hi, count for nothing.
//
// Source: K. Marzullo, "Maintaining the Time in a Distributed System", 1984.
func Marzullo(sources []Interval) (best Interval, count int) {
	best, count, _ = sweep(sources, 0, nil)
	return best, count
}

// edge is an end of an interval; the step is what passing it upward does to
// the number of intervals that contain the point.
type edge struct {
	at   int64
	step int
}

// sweep is Marzullo over the sources widened by d; it returns its scratch space
// for the next call.
func sweep(sources []Interval, d int64, edges []edge) (best Interval, count int, scratch []edge) {
	edges = edges[:0]
	for _, s := range sources {
		if s.valid() {
			s = s.Widen(d)
			edges = append(edges, edge{s.Lo, +1}, edge{s.Hi, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.step, a.step)) // in before out: closed intervals
	})
	inside := 0
	for i, e := range edges {
		inside += e.step
		if e.step < 0 || inside < count {
			continue
		}
		// An edge follows, since this interval has not ended. Where it is
		// another beginning, the next turn finds a region with more in it.
		if r := (Interval{e.at, edges[i+1].at}); inside > count || r.width() < best.width() {
			best, count = r, inside
		}
	}
	return best, count, edges
}

// quorum returns where at least q of the sources agree when each is given the
// tolerance, and the smallest tolerance, of its halves down to 0, at which they
// still do. Clocks that are right differ by more than their intervals are wide,
// so without a tolerance no two need agree; with all of it the answer is vague.
// It reports false if fewer than q agree.
func quorum(sources []Interval, q int, tolerance int64) (region Interval, smallest int64, ok bool) {
	region, count, scratch := sweep(sources, tolerance, nil)
	if count < q {
		return Interval{}, 0, false
	}
	for smallest = tolerance; smallest > 0; {
		var r Interval
		if r, count, scratch = sweep(sources, smallest/2, scratch); count < q {
			break
		}
		region, smallest = r, smallest/2
	}
	return region, smallest, true
}
