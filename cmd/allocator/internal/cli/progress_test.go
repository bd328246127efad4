package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/output"
)

// A command that takes longer than two seconds shows its latest line, replaces it, and
// leaves nothing behind.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output.Text
		p := showProgress(&out, progressAfter, progressEvery)
		p.Set("%d of %d", 1, 9)
		time.Sleep(1900 * time.Millisecond)
		p.Set("%d of %d", 2, 9)
		synctest.Wait()
		if got := out.String(); got != "" {
			t.Errorf("shown before two seconds: %q", got)
		}
		time.Sleep(200 * time.Millisecond)
		p.Set("node \x1b[31m%s", strings.Repeat("x", 500))
		time.Sleep(500 * time.Millisecond)
		p.End()
		p.End()
		lines := strings.Split(out.String(), "\r\x1b[K")
		if len(lines) != 4 || lines[1] != "2 of 9" || lines[3] != "" || len(lines[2]) > progressWidth+2 || strings.Contains(lines[2], "\x1b") {
			t.Errorf("%q", lines)
		}
	})
}

func TestProgressEndsEarly(t *testing.T) {
	var out bytes.Buffer
	p := showProgress(&out, time.Hour, time.Hour)
	p.End()
	if out.Len() > 0 {
		t.Errorf("%q", &out)
	}
}

// Where stderr is no terminal nothing is shown: logs of a job have no use for it.
func TestProgressNeedsATerminal(t *testing.T) {
	p := (&App{Err: &bytes.Buffer{}}).Progress()
	p.Set("x")
	if p.out != nil {
		t.Error("it would be shown")
	}
	p.End()
}
