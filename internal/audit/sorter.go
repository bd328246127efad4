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

// item is a block of keys and where it was seen.
type item struct {
	Key
	pos    uint64
	count  uint64
	stride uint64
}

// itemSize is what an item takes in memory, in bytes.
const itemSize = 40

// fanIn bounds how many runs are merged at once: each has a buffer.
const (
	fanIn  = 128
	buffer = 32 << 10 // bytes
)

// sorter takes items in any order and gives them back sorted by key, the single
// ones of a key before the blocks that begin there. It keeps at most its memory
// and spools the rest as sorted runs. Items that come sorted are never sorted,
// and a sorter whose items all come so makes one run, however many there are.
type sorter struct {
	spool  Spool
	limit  int // items in memory; 0 is no bound
	buf    []item
	rising bool // buf is sorted

	runs []Spooled
	open *runWriter // the last of runs, while items go on rising
}

func newSorter(memory int64, spool Spool) *sorter {
	s := &sorter{spool: spool, rising: true}
	if spool != nil {
		s.limit = int(max(memory, 1<<20) / itemSize)
	}
	return s
}

func compareItems(a, b item) int {
	if c := a.Key.Compare(b.Key); c != 0 {
		return c
	}
	if c := cmp.Compare(a.count, b.count); c != 0 {
		return c
	}
	return cmp.Compare(a.pos, b.pos)
}

func (s *sorter) add(i item) error {
	if s.limit > 0 && cap(s.buf) == 0 {
		s.buf = make([]item, 0, s.limit)
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

func (s *sorter) sort() {
	if !s.rising {
		slices.SortFunc(s.buf, compareItems)
	}
	s.rising = true
}

// spill moves what is in memory to a run: the last one if it goes on there.
func (s *sorter) spill() error {
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

func (s *sorter) newRun() error {
	run, err := s.spool.Create()
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	s.runs = append(s.runs, run)
	s.open = &runWriter{out: bufio.NewWriterSize(run, buffer), close: run.Close}
	return nil
}

func (s *sorter) closeRun() error {
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

// each calls f with every item in order. The sorter is empty afterwards.
func (s *sorter) each(f func(item)) error {
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
		err := merge(batch, func(i item) {
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
func merge(runs []Spooled, f func(item)) (err error) {
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
	less := func(a, b int) bool { return compareItems(heap[a].item, heap[b].item) < 0 }
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
		f(r.item)
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

// An item in a run is: flags, then what the flags say changed, as varints of
// the differences to the item before. Consecutive items differ little, so most items
// take 3 to 6 bytes.
const (
	flagHi    = 1 << iota // the high half changed: both halves are given
	flagBlock             // count and stride are given
)

type runWriter struct {
	out   *bufio.Writer
	close func() error
	last  item
	b     []byte
}

func (w *runWriter) write(i item) error {
	var flags byte
	if i.Hi != w.last.Hi {
		flags |= flagHi
	}
	if i.count != 1 {
		flags |= flagBlock
	}
	b := append(w.b[:0], flags)
	lo := i.Lo - w.last.Lo
	if flags&flagHi != 0 {
		b = binary.AppendUvarint(b, i.Hi-w.last.Hi)
		lo = i.Lo
	}
	b = binary.AppendUvarint(b, lo)
	b = binary.AppendVarint(b, int64(i.pos-w.last.pos))
	if flags&flagBlock != 0 {
		b = binary.AppendUvarint(b, i.count)
		b = binary.AppendUvarint(b, i.stride)
	}
	w.b, w.last = b, i
	if _, err := w.out.Write(b); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

type runReader struct {
	in    *bufio.Reader
	close func() error
	item
}

// next reads the next item. At the end it returns io.EOF.
func (r *runReader) next() error {
	flags, err := r.in.ReadByte()
	if err != nil {
		return err
	}
	var failed error
	number := func() uint64 {
		v, err := binary.ReadUvarint(r.in)
		if err != nil {
			failed = err
		}
		return v
	}
	if flags&flagHi != 0 {
		r.Hi += number()
		r.Lo = 0
	}
	r.Lo += number()
	move, err := binary.ReadVarint(r.in)
	if err != nil {
		failed = err
	}
	r.pos += uint64(move)
	r.count, r.stride = 1, 1
	if flags&flagBlock != 0 {
		r.count, r.stride = number(), number()
	}
	if failed != nil { // an io.EOF between two items is no failure
		return fmt.Errorf("%w: %v", io.ErrUnexpectedEOF, failed)
	}
	return nil
}
