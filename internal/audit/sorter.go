package audit

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Spool keeps what does not fit in memory. Package audit/spool has one of
// files.
type Spool interface {
	// Create returns a new, empty store. It is written, closed, and then opened
	// once; closing what Open returned gives its room back.
	Create() (Spooled, error)
}

// Spooled is one store of a Spool.
type Spooled interface {
	io.WriteCloser
	Open() (io.ReadCloser, error)
}

// Item is a key and where it was seen.
type Item struct {
	Key
	Pos uint64
}

// itemSize is what an item takes in memory, in bytes.
const itemSize = 24

// fanIn bounds how many runs are merged at once: each has a buffer.
const (
	fanIn  = 128
	buffer = 32 << 10 // bytes
)

// Sorter takes items in any order and gives them back sorted by key, those of a key
// by position. It keeps at most its memory and spools the rest as sorted runs. Items
// that come sorted are never sorted, and a Sorter whose items all come so makes one
// run, however many there are. It is not safe for concurrent use.
type Sorter struct {
	spool  Spool
	limit  int // items in memory; 0 is no bound
	buf    []Item
	rising bool // buf is sorted

	runs []Spooled
	open *runWriter // the last of runs, while items go on rising
}

// NewSorter returns an empty Sorter that keeps at most memory bytes (1 MiB at
// least) and puts the rest on spool; without a spool it keeps everything.
func NewSorter(memory int64, spool Spool) *Sorter {
	s := &Sorter{spool: spool, rising: true}
	if spool != nil {
		s.limit = int(max(memory, 1<<20) / itemSize)
	}
	return s
}

func compareItems(a, b Item) int {
	if c := a.Key.Compare(b.Key); c != 0 {
		return c
	}
	return cmp.Compare(a.Pos, b.Pos)
}

// Add adds an item. Errors are the spool's, and final.
func (s *Sorter) Add(i Item) error {
	if s.limit > 0 && cap(s.buf) == 0 {
		s.buf = make([]Item, 0, s.limit)
	}
	if n := len(s.buf); n > 0 && compareItems(i, s.buf[n-1]) < 0 {
		s.rising = false
	}
	s.buf = append(s.buf, i)
	if s.limit > 0 && len(s.buf) == s.limit {
		return s.spill()
	}
	return nil
}

func (s *Sorter) sort() {
	if !s.rising {
		slices.SortFunc(s.buf, compareItems)
	}
	s.rising = true
}

// spill moves what is in memory to a run: the last one if it goes on there.
func (s *Sorter) spill() error {
	s.sort()
	if s.open != nil && compareItems(s.buf[0], s.open.last) < 0 {
		if err := s.closeRun(); err != nil {
			return err
		}
	}
	if s.open == nil {
		if err := s.newRun(); err != nil {
			return err
		}
	}
	for _, i := range s.buf {
		if err := s.open.write(i); err != nil {
			return err
		}
	}
	s.buf = s.buf[:0]
	return nil
}

func (s *Sorter) newRun() error {
	run, err := s.spool.Create()
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	s.runs = append(s.runs, run)
	s.open = &runWriter{out: bufio.NewWriterSize(run, buffer), close: run.Close}
	return nil
}

func (s *Sorter) closeRun() error {
	if s.open == nil {
		return nil
	}
	err := errors.Join(s.open.out.Flush(), s.open.close())
	s.open = nil
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// Each calls f with every item in order. The Sorter is empty afterwards. Errors are
// the spool's: f was then not called with all.
func (s *Sorter) Each(f func(Item)) error {
	s.sort()
	if len(s.runs) == 0 {
		for _, i := range s.buf {
			f(i)
		}
		s.buf = nil
		return nil
	}
	if len(s.buf) > 0 {
		if err := s.spill(); err != nil {
			return err
		}
	}
	s.buf = nil
	if err := s.closeRun(); err != nil {
		return err
	}
	for len(s.runs) > fanIn {
		batch := slices.Clone(s.runs[:fanIn])
		s.runs = slices.Delete(s.runs, 0, fanIn)
		if err := s.newRun(); err != nil {
			return err
		}
		var failed error
		err := merge(batch, func(i Item) {
			if failed == nil {
				failed = s.open.write(i)
			}
		})
		if err := errors.Join(err, failed, s.closeRun()); err != nil {
			return err
		}
	}
	runs := s.runs
	s.runs = nil
	return merge(runs, f)
}

// merge calls f with the items of sorted runs in order.
func merge(runs []Spooled, f func(Item)) (err error) {
	heap := make([]*runReader, 0, len(runs))
	defer func() {
		for _, r := range heap {
			err = errors.Join(err, r.close())
		}
	}()
	for _, run := range runs {
		in, err := run.Open()
		if err != nil {
			return fmt.Errorf("spool: %w", err)
		}
		r := &runReader{in: bufio.NewReaderSize(in, buffer), close: in.Close}
		heap = append(heap, r)
		if err := r.next(); err != nil {
			return fmt.Errorf("spool: %w", err) // a run has at least one item, so io.EOF is an error too
		}
	}
	less := func(a, b int) bool { return compareItems(heap[a].Item, heap[b].Item) < 0 }
	down := func(i int) {
		for {
			c := 2*i + 1
			if c >= len(heap) {
				return
			}
			if c+1 < len(heap) && less(c+1, c) {
				c++
			}
			if !less(c, i) {
				return
			}
			heap[i], heap[c] = heap[c], heap[i]
			i = c
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		down(i)
	}
	for len(heap) > 0 {
		r := heap[0]
		f(r.Item)
		switch err := r.next(); {
		case errors.Is(err, io.EOF):
			n := len(heap) - 1
			heap[0] = heap[n]
			heap = heap[:n]
			if err := r.close(); err != nil {
				return fmt.Errorf("spool: %w", err)
			}
		case err != nil:
			return fmt.Errorf("spool: %w", err)
		}
		down(0)
	}
	return nil
}

// An item in a run is three varints: by how much the high half of its key is above
// that of the item before, then the low half, or by how much that is above if the high
// half is the same, and the difference of the positions. Consecutive items differ
// little, so most items take 3 to 6 bytes.

type runWriter struct {
	out   *bufio.Writer
	close func() error
	last  Item
	b     []byte
}

func (w *runWriter) write(i Item) error {
	lo := i.Lo
	if i.Hi == w.last.Hi {
		lo -= w.last.Lo
	}
	w.b = binary.AppendUvarint(w.b[:0], i.Hi-w.last.Hi)
	w.b = binary.AppendUvarint(w.b, lo)
	w.b = binary.AppendVarint(w.b, int64(i.Pos-w.last.Pos))
	w.last = i
	if _, err := w.out.Write(w.b); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

type runReader struct {
	in    *bufio.Reader
	close func() error
	Item
}

// next reads the next item. At the end it returns io.EOF.
func (r *runReader) next() error {
	hi, err := binary.ReadUvarint(r.in)
	if err != nil {
		return err // Between two items it is io.EOF, and else none.
	}
	lo, failed := binary.ReadUvarint(r.in)
	move, err := binary.ReadVarint(r.in)
	if err = cmp.Or(failed, err); err != nil {
		return fmt.Errorf("%w: %v", io.ErrUnexpectedEOF, err)
	}
	if hi == 0 {
		lo += r.Lo
	}
	r.Hi, r.Lo = r.Hi+hi, lo
	r.Pos += uint64(move)
	return nil
}
