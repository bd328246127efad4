package history

import (
	"math/bits"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/audit"
)

// blocks finds the IDs that two blocks have, exactly. It sorts the blocks, in memory it is given, and compares
// neighbors once. It is not safe for concurrent use.
type blocks struct {
	sorter *audit.Sorter
	ids    uint64
}

// A block is sorted by its first ID, and then by its count and its stride, which are one number.
const (
	strideBits = 23
	mostIDs    = 1 << (64 - strideBits) // the largest block is smaller
)

// run is a block and where it was seen.
type run struct{ first, count, stride, pos uint64 }

// add adds a block that was seen at pos. Errors are the spool's, and final.
func (s *blocks) add(b Block, pos uint64) error {
	for b.Count >= mostIDs { // It is as good as its parts.
		part := b
		part.Count = mostIDs / 2
		if err := s.add(part, pos); err != nil {
			return err
		}
		b.First, b.Count = b.First+flake.ID(int64(part.Count)*int64(b.Stride)), b.Count-part.Count
	}
	s.ids += uint64(b.Count)
	if b.Count == 1 {
		b.Stride = 1
	}
	key := audit.Key{Hi: uint64(b.First), Lo: uint64(b.Count)<<strideBits | uint64(b.Stride)}
	return s.sorter.Add(audit.Item{Key: key, Pos: pos})
}

// duplicate is a run of IDs that two places have in common.
type duplicate struct {
	first uint64 // the first that both have
	count uint64
	a, b  uint64 // the positions given to add
}

// duplicates calls found for each pair of places that share IDs, in order of
// their IDs, and returns how many IDs were surplus: one that was added three
// times counts two. (Where blocks of several strides overlap in one place it
// counts pairs.) Errors are the spool's; nothing is then proven.
func (s *blocks) duplicates(found func(duplicate)) (surplus uint64, err error) {
	w := sweep{
		found: func(d duplicate) {
			surplus += d.count
			found(d)
		},
		blocks: map[class]reach{},
	}
	err = s.sorter.Each(func(i audit.Item) {
		w.take(run{i.Hi, i.Lo >> strideBits, i.Lo % (1 << strideBits), i.Pos})
	})
	return surplus, err
}

// sweep takes runs in order and finds what they share. Blocks of one stride
// and one remainder overlap exactly if their ranges do, so of each such class
// only the block that reaches furthest is kept: the IDs between are covered.
type sweep struct {
	found   func(duplicate)
	any     bool
	last    run // single ID before
	blocks  map[class]reach
	strides []uint64
}

type class struct{ stride, remainder uint64 }

type reach struct{ first, last, pos uint64 }

// mostClasses bounds the classes kept before those that are passed are dropped:
// a layout has at most 2^10 sids, and another stride may be in the same log.
const mostClasses = 1 << 12

func (w *sweep) take(i run) {
	if i.count == 1 {
		if w.any && w.last.first == i.first {
			w.found(duplicate{i.first, 1, w.last.pos, i.pos})
			return // as covered as before, whatever blocks say
		}
		w.any, w.last = true, i
		for _, stride := range w.strides {
			if r, ok := w.blocks[class{stride, i.first % stride}]; ok && r.last >= i.first {
				w.found(duplicate{i.first, 1, r.pos, i.pos})
				return
			}
		}
		return
	}
	c := class{i.stride, i.first % i.stride}
	b := reach{i.first, i.first + (i.count-1)*i.stride, i.pos}
	if r, ok := w.blocks[c]; ok && r.last >= b.first {
		w.found(duplicate{i.first, (min(r.last, b.last)-b.first)/i.stride + 1, r.pos, i.pos})
	} else if w.any && w.last.first == i.first {
		w.found(duplicate{i.first, 1, w.last.pos, i.pos})
	}
	known := false
	for _, stride := range w.strides {
		known = known || stride == i.stride
	}
	if !known {
		w.strides = append(w.strides, i.stride)
	}
	if len(w.strides) > 1 {
		for k, r := range w.blocks {
			if k.stride != c.stride && r.last >= b.first {
				if first, n := common(k.stride, r, c.stride, b); n > 0 {
					w.found(duplicate{first, n, r.pos, b.pos})
				}
			}
		}
	}
	if r, ok := w.blocks[c]; !ok || r.last < b.last {
		w.blocks[c] = b
	}
	if len(w.blocks) > mostClasses {
		w.forget(b.first)
	}
}

// forget drops the classes that lie wholly below an ID.
func (w *sweep) forget(below uint64) {
	used := map[uint64]bool{}
	for k, r := range w.blocks {
		if r.last < below {
			delete(w.blocks, k)
			continue
		}
		used[k.stride] = true
	}
	w.strides = w.strides[:0]
	for stride := range used {
		w.strides = append(w.strides, stride)
	}
}

// common returns the first value that two arithmetic progressions share, and
// how many they do. b does not begin before a.
func common(sa uint64, a reach, sb uint64, b reach) (first, n uint64) {
	end := min(a.last, b.last)
	g, inverse := gcd(sb%sa, sa)
	// Wanted: the smallest k ≥ 0 with b.first + k·sb ≡ a.first (mod sa).
	gap := (sa - (b.first-a.first)%sa) % sa
	if gap%g != 0 {
		return 0, 0
	}
	m := sa / g
	hi, lo := bits.Mul64(gap/g%m, inverse%m)
	_, k := bits.Div64(hi%m, lo, m)
	over, step := bits.Mul64(k, sb)
	if over != 0 || step > end || b.first > end-step {
		return 0, 0
	}
	first = b.first + step
	return first, (end-first)/(sb/g*sa) + 1
}

// gcd returns the greatest common divisor of a and m, and the inverse of a/gcd
// modulo m/gcd. m is at least 1; both are at most maxStride.
func gcd(a, m uint64) (g, inverse uint64) {
	r0, r1, t0, t1 := int64(m), int64(a), int64(0), int64(1)
	for r1 != 0 {
		q := r0 / r1
		r0, r1 = r1, r0-q*r1
		t0, t1 = t1, t0-q*t1
	}
	mod := int64(m) / r0
	return uint64(r0), uint64((t0%mod + mod) % mod)
}
