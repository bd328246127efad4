package audit

import (
	"cmp"
	"math/bits"
)

// Key is an ID of 64 bits (Hi is then 0) or 128. Keys sort as the IDs do.
type Key struct{ Hi, Lo uint64 }

// Compare returns −1, 0 or +1 as k is less than, equal to or greater than o.
func (k Key) Compare(o Key) int { return cmp.Or(cmp.Compare(k.Hi, o.Hi), cmp.Compare(k.Lo, o.Lo)) }

// Block is the keys First, First+Stride, …, Count of them. Only keys of 64 bits
// come in blocks of more than one; these must end below 2^63, with a stride of
// 1 to 2^20.
type Block struct {
	First         Key
	Count, Stride uint64
}

// One returns the block of one key.
func One(k Key) Block { return Block{k, 1, 1} }

// Finder finds every key that was added twice, exactly. It sorts, in memory it
// is given, and compares neighbors once. It is not safe for concurrent use.
type Finder struct {
	sorter *sorter
	keys   uint64
}

// NewFinder returns an empty Finder that keeps at most memory bytes (1 MiB at
// least) and puts the rest on spool; without a spool it keeps everything.
func NewFinder(memory int64, spool Spool) *Finder { return &Finder{sorter: newSorter(memory, spool)} }

// Add adds a block that was seen at pos. Errors are the spool's, and final.
func (f *Finder) Add(b Block, pos uint64) error {
	f.keys += b.Count
	if b.Count == 1 {
		b.Stride = 1
	}
	return f.sorter.add(item{b.First, pos, b.Count, b.Stride})
}

// Keys returns how many keys were added, counting each as often as it was.
func (f *Finder) Keys() uint64 { return f.keys }

// Duplicate is a run of keys that two places have in common.
type Duplicate struct {
	First Key // the first that both have
	Count uint64
	A, B  uint64 // the positions given to Add
}

// Duplicates calls found for each pair of places that share keys, in order of
// their keys, and returns how many keys were surplus: one that was added three
// times counts two. (Where blocks of several strides overlap in one place it
// counts pairs.) The Finder is empty afterwards. Errors are the spool's; nothing
// is then proven.
func (f *Finder) Duplicates(found func(Duplicate)) (surplus uint64, err error) {
	w := sweep{
		found: func(d Duplicate) {
			surplus += d.Count
			found(d)
		},
		blocks: map[class]reach{},
	}
	err = f.sorter.each(w.take)
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
	strides []uint64
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
// modulo m/gcd. m is at least 1; both are at most 2^20.
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
