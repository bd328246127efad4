package client

import (
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"iter"
	"sync"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// A Block is Count IDs in rising order: First, First+Stride, and so on. Its size in
// memory does not depend on Count. The zero Block has none.
type Block struct {
	First  flake.ID     // the smallest
	Count  int          // at least 1, unless the block is the zero value
	Stride int64        // from one ID to the next
	SID    flake.SID    // in every ID
	Format flake.Format // every ID of the space has it
	Node   string       // the name of the node that issued it
	// SpaceID tells the space from others. 0: the node does not say it.
	SpaceID uint64
}

// At returns ID number i, counted from 0. It panics if i is not below Count: that
// ID is not of this block.
func (b Block) At(i int) flake.ID {
	if uint(i) >= uint(b.Count) {
		panic("client: index outside the block")
	}
	return b.First + flake.ID(int64(i)*b.Stride)
}

// Last returns the greatest ID. It panics if b is the zero Block.
func (b Block) Last() flake.ID { return b.At(b.Count - 1) }

// All returns an iterator over the block's IDs, in rising order.
func (b Block) All() iter.Seq[flake.ID] {
	return func(yield func(flake.ID) bool) {
		id := b.First
		for range b.Count {
			if !yield(id) {
				return
			}
			id += flake.ID(b.Stride)
		}
	}
}

// String returns the block for a person, such as "3 IDs from 01KV0TKM2000E to
// 01KV0TKM2002E of node-a, sid 14".
func (b Block) String() string {
	switch b.Count {
	case 0:
		return "no IDs"
	case 1:
		return fmt.Sprintf("1 ID %v of %s, sid %d", b.First, b.Node, b.SID)
	}
	return fmt.Sprintf("%d IDs from %v to %v of %s, sid %d", b.Count, b.First, b.Last(), b.Node, b.SID)
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

// Fill writes the block's IDs to dst from the start, as many as fit, and returns
// how many that were.
func (b Block) Fill(dst []flake.ID) int {
	n := min(len(dst), b.Count)
	id := b.First
	for i := range dst[:n] {
		dst[i] = id
		id += flake.ID(b.Stride)
	}
	return n
}

// ULID returns the wide form of ID number i: a ULID that is a UUIDv7 too, with 54
// random bits or what the layout leaves. Each call draws new ones, so keep the result. It panics if i is not
// below Count.
//
// The error is that of ulid.FromFlake: the space's epoch has no wide form.
func (b Block) ULID(i int) (ulid.ID, error) {
	return ulid.FromFlake(b.Format, b.At(i), random())
}

// part returns n IDs of b from number i on.
func (b Block) part(i, n int) Block {
	b.First += flake.ID(int64(i) * b.Stride)
	b.Count = n
	return b
}

// randomBytes is how much is read from the system at a time: one call for 512 IDs.
const randomBytes = 4096

// entropy is a supply of random bits.
type entropy struct {
	bits [randomBytes]byte
	used int
}

var supplies = sync.Pool{New: func() any { return &entropy{used: randomBytes} }}

// random returns 64 bits of the system's cryptographic source.
func random() uint64 {
	e := supplies.Get().(*entropy)
	v := e.next()
	supplies.Put(e)
	return v
}

// next returns 64 bits, and forgets them.
func (e *entropy) next() uint64 {
	if e.used == randomBytes {
		_, _ = crand.Read(e.bits[:]) // never returns an error: it ends the process
		e.used = 0
	}
	at := e.bits[e.used : e.used+8]
	v := binary.LittleEndian.Uint64(at)
	clear(at)
	e.used += 8
	return v
}
