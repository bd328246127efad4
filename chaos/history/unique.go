package history

import (
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/clock"
)

// Unique checks I1 on all IDs that clients were answered with.
type Unique struct {
	findings
	ids   blocks
	err   error
	where []string       // names of places, by number
	index map[string]int // the reverse
}

// NewUnique returns the check. It keeps memory bytes and puts the rest on
// spool; without a spool it keeps everything: 24 bytes a block.
func NewUnique(memory int64, spool audit.Spool) *Unique {
	return &Unique{ids: blocks{sorter: audit.NewSorter(memory, spool)}, index: map[string]int{}}
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
	u.err = u.ids.add(op.Block, uint64(op.Time/1000)<<placeBits|uint64(n))
}

// Finish merges what was added.
func (u *Unique) Finish() Result {
	name := func(pos uint64) string {
		return fmt.Sprintf("%s at %.6f s", u.where[pos%mostPlaces], float64(pos>>placeBits)/1e6)
	}
	keys := u.ids.ids
	var surplus uint64
	if u.err == nil {
		surplus, u.err = u.ids.duplicates(func(d duplicate) {
			u.add("I1", clock.Mono(max(d.a, d.b)>>placeBits*1000),
				"%d IDs from %v (%d) were answered by %s and again by %s",
				d.count, flake.ID(d.first), d.first, name(d.a), name(d.b))
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
	r.Measurements = []Measurement{{"IDs", float64(keys), ""}, {"duplicates", float64(surplus), ""}}
	return r
}
