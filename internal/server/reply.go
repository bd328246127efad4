package server

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"sync"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/ulid"
)

// reply holds the buffers of one answer with IDs.
type reply struct {
	text   []byte
	random []byte // 8 bytes for each wide ID
}

var replies = sync.Pool{New: func() any { return new(reply) }}

// maxKept bounds what the pool keeps of a reply, in bytes: the largest by
// default, 10,000 UUIDs in quotes.
const maxKept = 512 << 10

// release gives r back. Its text must not be used afterwards.
func (r *reply) release() {
	if cap(r.text) <= maxKept && cap(r.random) <= maxKept {
		replies.Put(r)
	}
}

// write puts the answer for a block into r.text: a JSON object, or the IDs
// alone, one a line.
//
// Each wide ID gets 54 bits of its own from the system's cryptographic source,
// read at once for all. Every flake of the space must have a wide form; a panic
// says that one does not.
func (r *reply) write(b gen.Block, as form, epoch int64, nodeJSON []byte, lines bool) {
	r.random = r.random[:0]
	if as.wide() {
		if n := 8 * b.Count; cap(r.random) < n {
			r.random = make([]byte, n)
		} else {
			r.random = r.random[:n]
		}
		_, _ = rand.Read(r.random) // never fails: it ends the process rather
	}
	text := r.text[:0]
	before, between, after := `{"ids":["`, `","`, `"],"node":`
	if lines {
		before, between, after = "", "\n", "\n"
	}
	text = append(text, before...)
	id := b.First
	for i := range b.Count {
		if i > 0 {
			text = append(text, between...)
		}
		var random uint64
		if as.wide() {
			random = binary.NativeEndian.Uint64(r.random[8*i:])
		}
		text = appendID(text, id, as, epoch, random)
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

// appendID appends the text of an ID in the form asked for.
func appendID(text []byte, id flake.ID, as form, epoch int64, random uint64) []byte {
	switch as {
	case asInt:
		return id.AppendInt(text)
	case asULID, asUUID:
		w, err := ulid.FromFlake(id, epoch, random)
		if err != nil {
			panic("server: flake " + id.String() + " has no wide form: " + err.Error())
		}
		if as == asUUID {
			return w.AppendUUID(text)
		}
		text, _ = w.AppendText(text) // never fails
		return text
	default:
		text, err := id.AppendText(text)
		if err != nil {
			panic("server: a negative flake was issued: " + err.Error())
		}
		return text
	}
}
