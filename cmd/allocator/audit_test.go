package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
)

// spoolsIn makes a directory for temporary files that the test finds empty in the
// end.
func spoolsIn(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
}

// flood is a log that ends the audit after a while, as Ctrl-C does.
type flood struct {
	stop  context.CancelFunc
	lines int
	next  flake.ID
}

func (e *flood) Read(p []byte) (int, error) {
	n := 0
	for n+14 <= len(p) {
		e.next += 32
		b, _ := e.next.AppendText(p[:n])
		p[len(b)] = '\n'
		n += 14
		if e.lines--; e.lines == 0 {
			e.stop()
		}
	}
	return n, nil
}

func TestAuditInterrupted(t *testing.T) {
	spoolsIn(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stderr bytes.Buffer
	code := run(ctx, []string{"audit", "--memory", "16MiB"}, &flood{stop: stop, lines: 500_000, next: 1 << 40}, io.Discard, &stderr, nil)
	if code != cli.ExitInterrupted || stderr.Len() > 0 {
		t.Errorf("code %d: %s", code, stderr.Bytes())
	}
}

func TestAuditNeedsSomewhereToSpool(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{"audit"}, strings.NewReader("02MVQY54W65P0\n"), io.Discard, &stderr, nil); code != cli.ExitUsage || !strings.Contains(stderr.String(), "missing") {
		t.Errorf("code %d: %s", code, stderr.Bytes())
	}
}

// A byte order mark in front of a file is no part of its first ID.
func TestAuditByteOrderMark(t *testing.T) {
	var out, stderr strings.Builder
	stdin := strings.NewReader("\ufeff02MVQDZ9NFSQ0\r\n02MVQDZ9NFSQ0\r\n")
	if code := run(t.Context(), []string{"audit", "-"}, stdin, &out, &stderr, nil); code != cli.ExitInvalid || !strings.Contains(out.String(), "duplicates  1\n") {
		t.Errorf("exit code %d, %s%s", code, out.String(), stderr.String())
	}
}

// The reader in front of an audit looks for a compressed log and for a byte order
// mark: it reads again at the end of stdin.
func TestAuditOfAlmostNothing(t *testing.T) {
	for stdin, verdict := range map[string]string{"": "nothing to judge", "\n": "nothing to judge", "\n\n": "nothing to judge", "x": "not sound", "xy": "not sound"} {
		t.Run(strconv.Quote(stdin), func(t *testing.T) {
			spoolsIn(t)
			var out, stderr strings.Builder
			ended := make(chan int, 1)
			go func() {
				ended <- run(t.Context(), []string{"audit", "-"}, strings.NewReader(stdin), &out, &stderr, nil)
			}()
			select {
			case code := <-ended:
				if code != cli.ExitInvalid || !strings.Contains(out.String(), verdict) {
					t.Errorf("exit code %d, %s%s", code, out.String(), stderr.String())
				}
			case <-time.After(wait.Most):
				t.Fatal("still running")
			}
		})
	}
}

// A UUIDv7 of another origin looks as if it had a sid: an audit says so.
func TestAuditDoubtsWideIDs(t *testing.T) {
	spoolsIn(t)
	_, ids, _ := allocator("new", "3", "--kind", "uuid")
	var out, stderr strings.Builder
	if code := run(t.Context(), []string{"audit", "-"}, strings.NewReader(ids), &out, &stderr, nil); code != cli.ExitOK ||
		!strings.Contains(out.String(), "3 of these are ULIDs and UUIDs: they have a sid only if they were issued in this space") {
		t.Errorf("exit code %d, %s%s", code, out.String(), stderr.String())
	}
}

// TestAuditShowsGivenForm: an ID that came twice can be searched for in the logs as it is shown.
func TestAuditShowsGivenForm(t *testing.T) {
	spoolsIn(t)
	for _, id := range []string{"1541815603606036480", "0x1565AD4A5E400000", "1AWPQ9D5T0000"} {
		var out, stderr strings.Builder
		code := run(t.Context(), []string{"audit", "-"}, strings.NewReader(id+"\n"+id+"\n"), &out, &stderr, nil)
		if code != cli.ExitInvalid || !strings.Contains(out.String(), " "+id+"  ") {
			t.Errorf("exit code %d, %s%s", code, out.String(), stderr.String())
		}
	}
}
