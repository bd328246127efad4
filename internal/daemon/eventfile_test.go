package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/status/feed"
)

// written appends n events, numbered from first on.
func written(e *eventFile, first, n int) {
	for i := first; i < first+n; i++ {
		one := feed.Event{ID: fmt.Sprintf("boot-%d", i), At: int64(i), Kind: feed.Serving, Attributes: map[string]string{}}
		e.write(feed.Batch{Entries: []feed.Entry{{Event: one, JSON: feed.JSON(one)}}})
	}
}

// ids returns what a process that starts now reads.
func ids(e *eventFile) (out []string) {
	for _, one := range e.load(feed.MaxBytes) {
		out = append(out, strings.TrimPrefix(one.ID, "boot-"))
	}
	return out
}

func TestEventFile(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(t *testing.T, e *eventFile)
		want string
		logs []string // each once
	}{
		"no file":             {func(*testing.T, *eventFile) {}, "[]", nil},
		"a missing directory": {func(t *testing.T, e *eventFile) { e.path = filepath.Join(e.path, "dir", "file"); written(e, 1, 2) }, "[1 2]", nil},
		"half of a line, and others": {func(t *testing.T, e *eventFile) {
			written(e, 1, 1)
			fatal.If(t, os.WriteFile(e.path, append(tailOf(t, e), "\x00\n{}\nnull\n{\"id\":\"boot-9\",\"ki"...), 0o600))
			written(e, 2, 2)
		}, "[1 2 3]", []string{"lines=4"}},
		"an empty line": {func(t *testing.T, e *eventFile) {
			written(e, 1, 1)
			fatal.If(t, os.WriteFile(e.path, append(tailOf(t, e), '\n'), 0o600))
			written(e, 2, 1)
		}, "[1 2]", nil},
		"a line that is too long, and a sid that is none": {func(t *testing.T, e *eventFile) {
			for path, line := range map[string]string{
				e.path + ".1": `{"id":"boot-9","kind":"` + strings.Repeat("x", feed.MaxBytes) + `"}`,
				e.path:        `{"id":"boot-8","kind":"serving","sid":99999}`,
			} {
				fatal.If(t, os.WriteFile(path, []byte(line), 0o600))
			}
			written(e, 1, 2)
		}, "[1 2]", []string{"lines=1"}},
		"a link": {func(t *testing.T, e *eventFile) {
			fatal.If(t, os.Symlink(e.path+".target", e.path))
			written(e, 1, 2)
			if _, err := os.Stat(e.path); err == nil {
				t.Error("what it names was made")
			}
		}, "[]", []string{"events are not in the file", "were not read"}},
		"two processes": {func(t *testing.T, e *eventFile) {
			other := *e
			var both sync.WaitGroup
			written(e, 0, 1)
			both.Go(func() { written(e, 1, 100) })
			both.Go(func() { written(&other, 101, 100) })
			both.Wait()
			if got := len(ids(e)); got != 201 {
				t.Errorf("%d events of 201", got)
			}
			if info, err := os.Stat(e.path); err != nil || info.Mode() != 0o600 {
				t.Errorf("%v, %v", info, err)
			}
			_ = os.Remove(e.path)
		}, "[]", nil},
		"a file that is full": {func(t *testing.T, e *eventFile) { e.max = 400; written(e, 1, 9) }, "[5 6 7 8 9]", nil},
		"moved away":          {func(t *testing.T, e *eventFile) { written(e, 1, 1); _ = os.Remove(e.path); written(e, 2, 1) }, "[2]", nil},
		"unwritable, and again": {func(t *testing.T, e *eventFile) {
			written(e, 1, 1)
			_ = os.Rename(e.path, e.path+".was")
			_ = os.Mkdir(e.path, 0o700)
			written(e, 2, 2)
			_ = os.Remove(e.path)
			_ = os.Rename(e.path+".was", e.path)
			written(e, 4, 1)
		}, "[1 4]", []string{"is a directory", "in the file again"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			e := &eventFile{
				path: filepath.Join(t.TempDir(), "events"),
				max:  maxEventFile,
				log:  slog.New(slog.NewTextHandler(&log, nil)),
			}
			tc.do(t, e)
			if got := fmt.Sprint(ids(e)); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			for _, want := range tc.logs {
				if strings.Count(log.String(), want) != 1 {
					t.Errorf("%q is not logged once: %s", want, &log)
				}
			}
			if tc.logs == nil && log.Len() > 0 {
				t.Errorf("logged %s", &log)
			}
		})
	}
}

func tailOf(t *testing.T, e *eventFile) []byte {
	data, err := tail(e.path, 1<<20)
	fatal.If(t, err)
	return data
}

// Only the end of a large file is read, from the beginning of a line on.
func TestEventFileTail(t *testing.T) {
	e := &eventFile{path: filepath.Join(t.TempDir(), "events"), max: maxEventFile, log: slog.New(slog.DiscardHandler)}
	written(e, 1, 100)
	if got := e.load(250); len(got) != 2 || got[1].ID != "boot-100" {
		t.Errorf("%v", got)
	}
}

// What happens while a node stops is in the file too, and the next process shows it, under the same IDs.
func TestEventsOutliveTheProcess(t *testing.T) {
	e := &eventFile{path: filepath.Join(t.TempDir(), "events"), max: maxEventFile, log: slog.New(slog.DiscardHandler)}
	f := feed.New(feed.Config{Boot: "one"})
	s, err := f.Open(feed.From{New: true, Stays: true})
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); e.run(ctx, s) }()
	f.Observe(feed.State{})
	f.End()
	f.Observe(feed.State{EtcdFails: true})
	cancel()
	<-ended
	before, after := f.Latest(100)

	next := feed.New(feed.Config{Boot: "two"})
	next.Restore(e.load(feed.MaxBytes))
	next.Observe(feed.State{})
	events, _ := next.Latest(100)
	if len(before) < 2 || len(events) <= len(before) || fmt.Sprint(events[:len(before)]) != fmt.Sprint(before) {
		t.Errorf("%v, want first %v", events, before)
	}
	r, err := next.Open(feed.From{After: after}) // A client that was connected to the first process goes on.
	fatal.If(t, err)
	batch, _, _ := r.Next()
	if batch.Missed != nil || len(batch.Entries) == 0 || !strings.HasPrefix(batch.Entries[0].Event.ID, "two-") {
		t.Errorf("%+v", batch)
	}
}
