package history

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/flakelease/allocator/internal/clock"
)

// MaxLine bounds a line of a history, in bytes without the newline. The longest
// ops are setups and faults, of a few hundred.
const MaxLine = 256 << 10

// Writer records ops as lines of JSON. It is safe for concurrent use, and the
// lines are in the order of their times.
type Writer struct {
	cfg WriterConfig

	mu    sync.Mutex // guards all below
	out   *bufio.Writer
	bytes int64
	lines int64
	last  clock.Mono
	err   error // the first one stays: a history with a hole proves nothing
}

// WriterConfig is how a Writer records.
type WriterConfig struct {
	// Now, if given, stamps every op when it is written: the caller writes an
	// invoke before it asks and a completion after it was answered. Otherwise
	// ops carry their times, which must not fall.
	Now func() clock.Mono
	// Limit bounds the bytes written; 0 is no bound.
	Limit int64
	// Each, if given, sees every op that was recorded, one at a time, under the
	// lock of the Writer: checks can follow the run as it goes.
	Each func(*Op)
}

// NewWriter returns a Writer onto w. It buffers: call Flush in the end.
func NewWriter(w io.Writer, cfg WriterConfig) *Writer {
	return &Writer{cfg: cfg, out: bufio.NewWriterSize(w, 64<<10)}
}

// Write records op and returns its time.
//
// It returns ErrValue for an op that means nothing, ErrOrder for an op from
// before the last, and ErrFull for an op that would pass the limit; then it
// writes nothing. After ErrFull, or an error of the underlying writer, every
// Write returns the same.
func (w *Writer) Write(op Op) (clock.Mono, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if w.cfg.Now != nil {
		op.Time = max(w.cfg.Now(), w.last)
	}
	if op.Time < w.last {
		return 0, fmt.Errorf("%w: %d after %d", ErrOrder, op.Time, w.last)
	}
	line, err := op.encode()
	if err != nil {
		return 0, err
	}
	line = append(line, '\n')
	switch {
	case len(line) > MaxLine+1:
		return 0, fmt.Errorf("%w: %d bytes", ErrLong, len(line))
	case w.cfg.Limit > 0 && w.bytes+int64(len(line)) > w.cfg.Limit:
		w.err = fmt.Errorf("%w: %d", ErrFull, w.cfg.Limit)
		return 0, w.err
	}
	if _, err := w.out.Write(line); err != nil {
		w.err = fmt.Errorf("write history: %w", err)
		return 0, w.err
	}
	w.bytes += int64(len(line))
	w.lines++
	w.last = op.Time
	if w.cfg.Each != nil {
		w.cfg.Each(&op)
	}
	return op.Time, nil
}

// Flush hands what is buffered to the underlying writer. It returns the error
// that ended the record, if one did; what was written before it is flushed.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Flush(); err != nil && w.err == nil {
		w.err = fmt.Errorf("write history: %w", err)
	}
	return w.err
}

// Size returns how many lines and bytes were recorded.
func (w *Writer) Size() (lines, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines, w.bytes
}

// Reader reads a history line by line, in memory that does not grow with it. It
// is not safe for concurrent use.
type Reader struct {
	in   *bufio.Reader
	line int64
	last clock.Mono
	err  error
}

// NewReader returns a Reader of r, which it buffers.
func NewReader(r io.Reader) *Reader {
	return &Reader{in: bufio.NewReaderSize(r, MaxLine+2)}
}

// Line returns the number of the line that was read last; the first is 1.
func (r *Reader) Line() int64 { return r.line }

// Read sets op to the next line. Blank lines are skipped.
//
// At the end it returns io.EOF. A *LineError holds ErrSyntax, ErrValue, ErrLong,
// ErrOrder, or ErrTruncated for a last line that has no newline, as a killed
// writer leaves it: what was read before is sound. Any error is final.
func (r *Reader) Read(op *Op) error {
	if r.err == nil {
		r.err = r.read(op)
	}
	return r.err
}

func (r *Reader) read(op *Op) error {
	for {
		line, err := r.in.ReadSlice('\n')
		if len(line) > 0 {
			r.line++
		}
		fail := func(err error) error { return &LineError{r.line, err} }
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return fail(ErrLong)
		case errors.Is(err, io.EOF) && len(line) == 0:
			return io.EOF
		case errors.Is(err, io.EOF):
			return fail(ErrTruncated)
		case err != nil:
			return fmt.Errorf("read history: %w", err)
		}
		line = line[:len(line)-1]
		if len(line) > MaxLine {
			return fail(ErrLong)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := decode(line, op); err != nil {
			return fail(err)
		}
		if op.Time < r.last {
			return fail(ErrOrder)
		}
		r.last = op.Time
		return nil
	}
}
