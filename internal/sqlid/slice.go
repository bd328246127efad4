// Package sqlid lets a PostgreSQL database make IDs of a space by itself, as the default of a column.
//
// A runner holds a worker number of the space for the database, and writes a slice each second: an interval of
// milliseconds that etcd has confirmed to be this worker's. A function in the database counts through the slice. It
// waits for nobody, and IDs are made in any transaction, with any isolation level.
//
// # Why no ID comes twice
//
// Slices of one worker are disjoint, and intervals of two workers are. Within the database all is in sequences, whose
// present value each transaction sees, whatever its snapshot is. A session looks whether the slice is of this server,
// reads the end of the slice, and then takes the next word; it uses the word only if it is below that end. A slice is
// written in another order, under a lock: first the next word, which is at or above every end that was written before,
// then the server, and then the new end. So a word below an end was taken after the slice of this end began and before
// the next one did, and in between words only rise. chaos/model/slice.pml is the model of it.
//
// Something else may set the next word to an old one, such as a dump of the data. So the first word of the slice is
// written before the next word, and a session reads it after it has taken a word, which has to be at or above it and of
// the same sid.
//
// # When a slice is over
//
// A slice is used until a time on the clock of the database, which the runner has read before it sends the slice. So
// the slice is over after a bounded time, also if the reply is lost. The type uses has the slices that are not over,
// and what the watermark is told.
//
// The sequences are unlogged: a server that was not shut down, a standby that is promoted and a base backup begin with
// them empty, and make no IDs before a runner has written a slice. A slice names the start of the server process and
// the file of the sequence, so a server that was shut down, and any other copy of the database, has none either. What
// is left is a machine that is cloned while it runs: both go on with the slice until it expires.
package sqlid

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
)

// Slice is an interval of time, and the words that IDs of it are made of: the bits of IDs with the sid last, whatever
// the layout is.
type Slice struct {
	FromMs, ToMs int64 // Unix ms, whole units of time
	First        int64 // the first word, with the sid
	Stop         int64 // All words are below this one.
}

// Shape is what the words of a worker are like.
type Shape struct {
	Format flake.Format
	SID    flake.SID
}

// Step is from one word to the next.
func (s Shape) Step() int64 { return 1 << s.Format.Layout.SIDBits() }

// Cut returns the slice of a worker that begins at now, or at after if that is later. It lasts at least as long as
// every, and for whole units of time.
func (s Shape) Cut(now, after int64, every time.Duration) (Slice, error) {
	unit := s.Format.Layout.Unit()
	up := func(ms int64) int64 { // the start of the next unit
		return s.Format.Epoch + (ms-s.Format.Epoch+unit-1)/unit*unit
	}
	out := Slice{FromMs: up(max(now, after, s.Format.Epoch))}
	out.ToMs = up(out.FromMs + max(every.Milliseconds(), 1))
	first, err := s.Format.Min(out.FromMs)
	if err != nil {
		return Slice{}, fmt.Errorf("no slice begins at %d: %w", out.FromMs, err)
	}
	stop, err := s.Format.Min(out.ToMs)
	if err != nil {
		return Slice{}, fmt.Errorf("no slice ends at %d: %w", out.ToMs, err)
	}
	out.First, out.Stop = int64(first)|int64(s.SID), int64(stop)
	return out, nil
}
