package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
)

var stdinIDs = flag.Int("stdin-ids", 500_000, "IDs on stdin of the test of constant memory")

const longestLine = 4096 // bytes, of a line of stdin

// A line that is too long is one invalid input, not the end: it is counted,
// named by its beginning, and does not become another ID by being cut.
func TestLongLineIsOneError(t *testing.T) {
	for _, flags := range [][]string{{}, {"--lenient"}, {"--kind", "int"}} {
		id := "02MVQDZ9NFSQ0"
		if len(flags) == 2 {
			id = "95551895313258176"
		}
		cut := id + strings.Repeat("-", longestLine) + "X" // lenient reading would see the ID in the first 4096 bytes
		stdin := id + "\n" + cut + "\n" + strings.Repeat("0", 1<<20) + "\n" + id + "\n"
		var out, stderr strings.Builder
		code := run(t.Context(), append([]string{"validate", "--format", "json"}, flags...), strings.NewReader(stdin), &out, &stderr, nil)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if code != cli.ExitInvalid || len(lines) != 4 || !strings.Contains(lines[0], `"valid":true`) || lines[3] != lines[0] || stderr.Len() > 0 {
			t.Fatalf("%v: exit code %d, %.300q, stderr %q", flags, code, lines, stderr.String())
		}
		for _, line := range lines[1:3] {
			if !strings.Contains(line, `"class":"bad_length"`) || len(line) > longestLine+200 {
				t.Errorf("%v: %d bytes, %.100s", flags, len(line), line)
			}
		}
	}
}

// What a message repeats of an input is harmless.
func TestInputsAreShownHarmless(t *testing.T) {
	var out, stderr strings.Builder
	run(t.Context(), []string{"validate", "\x1b[2Jboo\nvalid    x"}, nil, &out, &stderr, nil)
	run(t.Context(), []string{"parse", "\x1b[2Jboo\nvalid    x"}, nil, &out, &stderr, nil)
	if text := out.String() + stderr.String(); strings.Count(text, "\n") != 2 || strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
}

// An answer does not wait for the rest of the next line.
func TestHalfALineIsNotWaitedFor(t *testing.T) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan int)
	go func() { ended <- run(t.Context(), []string{"parse", "--only", "sid"}, inR, outW, io.Discard, nil) }()
	lines := bufio.NewScanner(outR)
	for _, part := range []string{"02MVQDZ9NFSQ0\n02MVQ", "DZ9NFSQ1\n0", "2MVQDZ9NFSQ2\n"} {
		if _, err := io.WriteString(inW, part); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
	}
	_ = inW.Close()
	if code := <-ended; code != cli.ExitOK || lines.Text() != "2" {
		t.Errorf("exit code %d, last line %q", code, lines.Text())
	}
}

// An interrupt ends a filter that waits for input, and a generator.
func TestInterrupt(t *testing.T) {
	for _, args := range []string{"parse -", "validate", "new 1000000000000", "monotonic 1000000000000", "new 1000000000000 --kind flake --layout fleet"} {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe() // never written to
		out := &counting{}
		ended := make(chan int)
		var stderr strings.Builder
		go func() { ended <- run(ctx, strings.Fields(args), r, out, &stderr, nil) }()
		time.AfterFunc(20*time.Millisecond, cancel)
		if code := <-ended; code != cli.ExitInterrupted || stderr.Len() > 0 {
			t.Errorf("%s: exit code %d, stderr %q", args, code, stderr.String())
		}
		_ = w.Close()
	}
}

type counting struct{ n int }

func (c *counting) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

// A disk that is full is an error, unlike a reader that left.
func TestFullDisk(t *testing.T) {
	for _, args := range []string{"new 100000", "new", "parse 02MVQDZ9NFSQ0", "validate 02MVQDZ9NFSQ0", "--help", "parse --help", "help parse", "completion bash"} {
		var stderr strings.Builder
		if code := run(t.Context(), strings.Fields(args), nil, full{}, &stderr, nil); code != cli.ExitInvalid || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%s: exit code %d, stderr %q", args, code, stderr.String())
		}
	}
	for _, args := range []string{"new 100000", "new", "monotonic 100000", "parse 02MVQDZ9NFSQ0", "--help"} {
		var stderr strings.Builder
		if code := run(t.Context(), strings.Fields(args), nil, &closing{}, &stderr, nil); code != cli.ExitOK || stderr.Len() > 0 {
			t.Errorf("%s: exit code %d, stderr %q", args, code, stderr.String())
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// TestConstantMemory sends IDs to the program itself and reads how much memory
// it ever had: not more for twenty times as many.
func TestConstantMemory(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("not run: there is no /proc/PID/status")
	}
	for _, args := range []string{"parse --format json", "parse", "validate"} {
		few, many := peak(t, args, *stdinIDs/20), peak(t, args, *stdinIDs)
		t.Logf("%s: %d KiB after %d IDs, %d KiB after %d", args, few, *stdinIDs/20, many, *stdinIDs)
		if many > few+16<<10 {
			t.Errorf("%s: %d KiB after %d IDs, %d KiB after %d", args, few, *stdinIDs/20, many, *stdinIDs)
		}
	}
}

// peak returns the most memory in KiB that a command ever had that was sent n IDs.
func peak(t *testing.T, args string, n int) int {
	t.Helper()
	cmd := exec.Command("allocator", strings.Fields(args)...)
	in, err := cmd.StdinPipe()
	fatal.If(t, err)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	fatal.If(t, err)
	fatal.If(t, cmd.Start())
	// The last is distinct, so that all the others are known to be through
	// while the program still runs.
	began, read, last := time.Now(), make(chan int), []byte("7ZZZZZZZZZZZZ")
	go func() {
		lines := bufio.NewScanner(out)
		seen, told := 0, false
		for lines.Scan() {
			seen++
			if !told && (bytes.Contains(lines.Bytes(), last) || bytes.HasPrefix(lines.Bytes(), []byte("2302-"))) {
				told = true
				read <- seen
			}
		}
		read <- seen
	}()
	w := bufio.NewWriterSize(in, cli.BufferSize)
	var line []byte
	for i := range n - 1 {
		line, _ = flake.ID(i * 1_234_567 << 16 & (1<<62 - 1)).AppendText(line[:0])
		if _, err := w.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(w, "%s\n", last)
	fatal.If(t, w.Flush())
	<-read
	took := time.Since(began)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	fatal.If(t, err)
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	fatal.If(t, err)
	_ = in.Close()
	lines := <-read
	if err := cmd.Wait(); err != nil || lines < n {
		t.Fatalf("%s: %d lines of %d IDs, %v", args, lines, n, err)
	}
	t.Logf("%s: %d IDs in %v", args, n, took.Round(time.Millisecond))
	return kib
}
