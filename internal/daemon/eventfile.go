package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"github.com/flakelease/allocator/internal/status/feed"
)

// eventFile is where the events of a node outlive its process: a file, and the one that was full before it, with the
// suffix .1. Each line is an event as JSON. It is opened for each write, so that it may be moved away at any time, and
// no write is synced. Nothing waits for it but its own stream of events.
type eventFile struct {
	path    string
	max     int64 // bytes of each of the two files
	log     *slog.Logger
	failing bool // The last write failed, which was logged. The goroutine of run owns it.
}

// maxEventFile is config's limit for each of the two files.
const maxEventFile = 30 << 20

// load returns the events in the last bytes of the files, the oldest first. It logs how many lines are none.
func (e *eventFile) load(bytesOf int64) (events []feed.Event) {
	bad := 0
	for _, path := range []string{e.path + ".1", e.path} {
		data, err := tail(path, bytesOf)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			e.log.Warn("events of earlier processes were not read", "file", path, "error", err)
		}
		for line := range bytes.Lines(data) {
			if len(line) == 1 {
				continue // See append: while another process writes, the last byte may not be that of a whole line.
			}
			var one feed.Event
			if json.Unmarshal(line, &one) != nil || one.ID == "" || one.Kind == "" ||
				one.SID < -1 || one.SID > math.MaxInt16 {
				bad++ // A crash or a full disk has left half of it.
				continue
			}
			events = append(events, one)
		}
	}
	if bad > 0 {
		e.log.Warn("lines in the file of events are no events, and are left out", "file", e.path, "lines", bad)
	}
	return events
}

// tail returns the last bytes of a file, from the beginning of a line on.
func tail(path string, most int64) ([]byte, error) {
	f, size, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	from := max(size-most, 0)
	data, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if from > 0 {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	return data, err
}

// openFile opens a regular file, and follows no link out of its directory.
func openFile(path string, flags int) (*os.File, int64, error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	f, err := dir.OpenFile(filepath.Base(path), flags, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// run appends what s has until ctx ends, and then what is left.
func (e *eventFile) run(ctx context.Context, s *feed.Stream) {
	defer s.Close()
	write := func(b feed.Batch) error {
		if len(b.Entries) > 0 {
			e.write(b)
		}
		return nil
	}
	_ = s.Follow(ctx, nil, write) // It returns when ctx has ended.
	for left, _, _ := s.Next(); !left.Empty(); left, _, _ = s.Next() {
		_ = write(left)
	}
}

// write appends a batch. What cannot be written is in memory alone, and is logged once.
func (e *eventFile) write(b feed.Batch) {
	if b.Missed != nil {
		e.log.Warn("events are not in the file: the disk is too slow", "file", e.path, "events", b.Missed.Count)
	}
	var lines []byte
	for _, entry := range b.Entries {
		lines = append(append(lines, entry.JSON...), '\n')
	}
	err := e.append(lines)
	switch failing := err != nil; {
	case failing && !e.failing:
		e.log.Warn("events are not in the file, and will be lost when the process ends: free its disk, or set "+
			"events.file", "file", e.path, "error", err)
	case !failing && e.failing:
		e.log.Info("events are in the file again", "file", e.path)
	}
	e.failing = err != nil
}

func (e *eventFile) append(lines []byte) error {
	if err := os.MkdirAll(filepath.Dir(e.path), 0o700); err != nil {
		return err
	}
	f, size, err := openFile(e.path, os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err == nil && size > 0 && size+int64(len(lines)) > e.max {
		err = errors.Join(f.Close(), os.Rename(e.path, e.path+".1"))
		if err == nil {
			f, size, err = openFile(e.path, os.O_RDWR|os.O_CREATE|os.O_APPEND)
		}
	}
	if err != nil {
		return err
	}
	last := []byte("\n")
	if size > 0 {
		_, err = f.ReadAt(last, size-1)
	}
	if last[0] != '\n' { // Half of a line, from a crash or a full disk, costs no other.
		lines = append([]byte("\n"), lines...)
	}
	_, failed := f.Write(lines)
	return errors.Join(err, failed, f.Close())
}
