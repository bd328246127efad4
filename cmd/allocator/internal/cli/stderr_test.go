package cli

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/internal/config"
)

// While nobody reads, log calls return and the process can exit; once somebody reads, what
// was kept arrives whole and in order, and the number of lines that were dropped is logged.
func TestDetachErr(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe() // a write blocks until it is read
		a := &App{Err: w}
		a.DetachErr()
		log := Logger(config.Log{Level: "info", Format: "json"}, a.Err)
		const lines = 10_000 // several times what is kept
		for i := range lines {
			log.Info("line", "n", i+1)
		}
		began := time.Now()
		a.Err.(*detached).flush()
		if took := time.Since(began); took != exitWait {
			t.Errorf("flush waited %v for a reader, want %v", took, exitWait)
		}

		var text strings.Builder
		go func() { _, _ = io.Copy(&text, r) }()
		synctest.Wait()
		log.Info("line", "n", lines+1)
		a.Err.(*detached).flush()
		_ = w.Close()
		synctest.Wait()
		var kept, dropped, last int
		for line := range strings.Lines(text.String()) {
			var l struct {
				Msg      string
				N, Lines int
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			switch l.Msg {
			case "line":
				if kept++; l.N <= last {
					t.Fatalf("line %d follows line %d", l.N, last)
				}
				last = l.N
			default:
				dropped += l.Lines
			}
		}
		if last != lines+1 || dropped == 0 || kept+dropped != lines+1 {
			t.Errorf("%d lines arrived, the last is %d, and %d were dropped, of %d", kept, last, dropped, lines+1)
		}
	})
}
