package gen

import "github.com/flakelease/allocator/flake"

// A Block is Count IDs of one sid in rising order: First, First+Stride, and so
// on. They are next to each other: no ID of this sid lies between two of them.
// The zero Block has none.
type Block struct {
	First  flake.ID
	Count  int
	Stride int64 // what adding 1 to the entropy adds to an ID
	SID    flake.SID
}

// At returns ID number i, counted from 0. It panics if i is not below Count: that
// ID was issued to another caller, or will be.
func (b Block) At(i int) flake.ID {
	if uint(i) >= uint(b.Count) {
		panic("gen: index outside the block")
	}
	return b.First + flake.ID(int64(i)*b.Stride)
}

// Last returns the largest ID. It panics if b is the zero Block.
func (b Block) Last() flake.ID { return b.At(b.Count - 1) }

// Fill writes the block's IDs to dst from the start, as many as fit, and
// returns how many that were. It does not allocate.
func (b Block) Fill(dst []flake.ID) int {
	n := min(len(dst), b.Count)
	id := b.First
	for i := range dst[:n] {
		dst[i] = id
		id += flake.ID(b.Stride)
	}
	return n
}

// Append appends all IDs of the block to dst.
func (b Block) Append(dst []flake.ID) []flake.ID {
	id := b.First
	for range b.Count {
		dst = append(dst, id)
		id += flake.ID(b.Stride)
	}
	return dst
}
