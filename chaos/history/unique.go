package history

import (
	"fmt"
	"math/bits"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Merge finds every key that was added twice, exactly. It sorts, in memory it
// is given, and sweeps once. It is not safe for concurrent use.
type Merge struct {
	s     *sorter
	items int64
	keys  uint64
}

// NewMerge returns an empty Merge that keeps at most memory bytes (1 MiB at
// least) and puts the rest on spool; without a spool it keeps everything.
func NewMerge(memory int64, spool Spool) *Merge { return &Merge{s: newSorter(memory, spool)} }

// Add adds one key, which was seen at pos. Errors are the spool's, and final.
func (m *Merge) Add(k Key, pos uint64) error {
	m.items++
	m.keys++
	return m.s.add(item{Key: k, pos: pos, count: 1, stride: 1})
}

// AddBlock adds the IDs of b, which must be valid.
func (m *Merge) AddBlock(b Block, pos uint64) error {
	m.items++
	m.keys += uint64(b.Count)
	stride := uint64(b.Stride)
	if b.Count == 1 {
		stride = 1
	}
	return m.s.add(item{Key{Lo: uint64(b.First)}, pos, uint64(b.Count), stride})
}

// Keys returns how many keys were added, counting each as often as it was.
func (m *Merge) Keys() uint64 { return m.keys }

// Duplicate is a run of keys that two places have in common.
type Duplicate struct {
	First Key    // the first that both have
	Count uint64 // how many
	A, B  uint64 // the positions given to Add
}

// Duplicates calls f for each pair of places that share keys, in order of their
// keys, and returns how many keys were surplus: one that was added three times
// counts two. (Where blocks of several strides overlap in one place it counts
// pairs.) The Merge is empty afterwards. Errors are the spool's; nothing is then
// proven.
func (m *Merge) Duplicates(f func(Duplicate)) (surplus uint64, err error) {
	w := sweep{found: func(d Duplicate) {
		surplus += d.Count
		f(d)
	}, blocks: map[class]reach{}}
	err = m.s.each(w.take)
	return surplus, err
}

// sweep takes items in order and finds what they share. Blocks of one stride
// and one remainder overlap exactly if their ranges do, so of each such class
// only the block that reaches furthest is kept: the keys between are covered.
type sweep struct {
	found   func(Duplicate)
	any     bool
	last    item // single key before
	blocks  map[class]reach
	strides []uint64 // of blocks
}

type class struct{ stride, remainder uint64 }

type reach struct{ first, last, pos uint64 }

// mostClasses bounds the classes kept before those that are passed are dropped:
// a layout has at most 2^10 sids, and another stride may be in the same log.
const mostClasses = 1 << 12

func (w *sweep) take(i item) {
	if i.count == 1 {
		if w.any && w.last.Key == i.Key {
			w.found(Duplicate{i.Key, 1, w.last.pos, i.pos})
			return // as covered as before, whatever blocks say
		}
		w.any, w.last = true, i
		if i.Hi == 0 {
			for _, stride := range w.strides {
				if r, ok := w.blocks[class{stride, i.Lo % stride}]; ok && r.last >= i.Lo {
					w.found(Duplicate{i.Key, 1, r.pos, i.pos})
					return
				}
			}
		}
		return
	}
	c := class{i.stride, i.Lo % i.stride}
	b := reach{i.Lo, i.Lo + (i.count-1)*i.stride, i.pos}
	if r, ok := w.blocks[c]; ok && r.last >= b.first {
		w.found(Duplicate{i.Key, (min(r.last, b.last)-b.first)/i.stride + 1, r.pos, i.pos})
	} else if w.any && w.last.Key == i.Key {
		w.found(Duplicate{i.Key, 1, w.last.pos, i.pos})
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
					w.found(Duplicate{Key{Lo: first}, n, r.pos, b.pos})
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

// forget drops the classes that lie wholly below a key.
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
	// Wanted: the least k ≥ 0 with b.first + k·sb ≡ a.first (mod sa).
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

// Unique checks I1 on all IDs that clients were answered with.
type Unique struct {
	findings
	m     *Merge
	err   error
	where []string       // names of places, by number
	index map[string]int // the reverse
}

// NewUnique returns the check. It keeps memory bytes and puts the rest on
// spool; without a spool it keeps everything: 40 bytes a block.
func NewUnique(memory int64, spool Spool) *Unique {
	return &Unique{m: NewMerge(memory, spool), index: map[string]int{}}
}

// A position is the time in microseconds (48 bits: nine years) and, below, the
// number of who answered.
const (
	placeBits  = 16
	mostPlaces = 1 << placeBits
)

// Add takes the blocks of answers.
func (u *Unique) Add(op *Op) {
	if !op.isCall() || op.Type != OK || u.err != nil {
		return
	}
	who := op.who()
	n, ok := u.index[who]
	if !ok && len(u.where) < mostPlaces {
		n, ok = len(u.where), true
		u.where = append(u.where, who)
		u.index[who] = n
	}
	if !ok {
		n = 0 // more names than numbers: some violation will name the wrong one
	}
	u.err = u.m.AddBlock(op.Block, uint64(op.Time/1000)<<placeBits|uint64(n))
}

// Finish merges what was added.
func (u *Unique) Finish() Result {
	name := func(pos uint64) string {
		return fmt.Sprintf("%s at %.6f s", u.where[pos%mostPlaces], float64(pos>>placeBits)/1e6)
	}
	keys := u.m.Keys()
	var surplus uint64
	if u.err == nil {
		surplus, u.err = u.m.Duplicates(func(d Duplicate) {
			u.add("I1", clock.Mono(max(d.A, d.B)>>placeBits*1000), "%d IDs from %v (%d) were answered by %s and again by %s",
				d.Count, flake.ID(d.First.Lo), d.First.Lo, name(d.A), name(d.B))
		})
	}
	missing := ""
	switch {
	case u.err != nil:
		missing = u.err.Error()
	case keys == 0:
		missing = "no IDs were answered"
	}
	r := u.result("unique", "I1", fmt.Sprintf("%d IDs, every one once", keys), missing)
	if u.count > 0 {
		r.Reason = fmt.Sprintf("%d of %d IDs were answered before", surplus, keys)
	}
	r.Figures = []Figure{{"IDs", float64(keys), ""}, {"duplicates", float64(surplus), ""}}
	return r
}
