package httpserver

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"sync"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/server"
)

// reply has the buffers of one answer with IDs.
type reply struct {
	text   []byte
	random []byte // 8 bytes for each wide ID
}

var replies = sync.Pool{New: func() any { return new(reply) }}

// maxKept bounds each buffer that the pool keeps, in bytes: 10,000 UUIDs in quotes,
// the largest answer by default.
const maxKept = 512 << 10

// release puts r back into the pool. Its text must not be used afterwards.
func (r *reply) release() {
	if cap(r.text) <= maxKept && cap(r.random) <= maxKept {
		replies.Put(r)
	}
}

// write sets r.text to the answer for a block: a JSON object, or the IDs alone, one
// on each line.
//
// Each wide ID gets 54 bits of its own from the system's cryptographic source, read
// once for all. Every flake of the space must have a wide form, or write panics.
func (r *reply) write(b gen.Block, as server.Form, space flake.Format, nodeJSON []byte, lines bool) {
	r.random = r.random[:0]
	if as.Wide() {
		if n := 8 * b.Count; cap(r.random) < n {
			r.random = make([]byte, n)
		} else {
			r.random = r.random[:n]
		}
		_, _ = rand.Read(r.random) // never fails: on an error it ends the process
	}
	text := r.text[:0]
	before, between, after := `{"ids":["`, `","`, `"],"node":`
	switch {
	case lines:
		before, between, after = "", "\n", "\n"
	case as == server.Number:
		before, between, after = `{"ids":[`, ",", `],"node":`
	}
	text = append(text, before...)
	id := b.First
	for i := range b.Count {
		if i > 0 {
			text = append(text, between...)
		}
		var random uint64
		if as.Wide() {
			random = binary.NativeEndian.Uint64(r.random[8*i:])
		}
		text = as.Append(text, id, space, random)
		id += flake.ID(b.Stride)
	}
	text = append(text, after...)
	if !lines {
		text = append(text, nodeJSON...)
		text = append(text, `,"sid":`...)
		text = strconv.AppendUint(text, uint64(b.SID), 10)
		text = append(text, "}\n"...)
	}
	r.text = text
}
