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

	"github.com/flakelease/allocator/flake"
)

var stdinIDs = flag.Int("stdin-ids", 500_000, "IDs on stdin of the test of constant memory")

// all returns what each gives of arguments and stdin.
func all(t *testing.T, args []string, stdin string) (got []string, err error) {
	t.Helper()
	in := inputs{args, strings.NewReader(stdin), func() error { return nil }}
	err = in.each(t.Context(), func(input string, err error) error {
		if err != nil {
			input = fmt.Sprintf("%d bytes: %v", len(input), err)
		}
		got = append(got, input)
		return nil
	})
	return got, err
}

func TestInputs(t *testing.T) {
	long := strings.Repeat("0", maxLine)
	for _, c := range []struct {
		args  string
		stdin string
		want  []string
	}{
		{"a b", "c\n", []string{"a", "b"}},
		{"a - b", "c\nd", []string{"a", "c", "d", "b"}},
		{"-", "", nil},
		{"", "a\n\n \t\r\n b \r\nc", []string{"a", "b", "c"}},
		{"- -", "a\n", []string{"a"}},
		{"-", "\ufeffa\r\nb\n", []string{"a", "b"}},
		{"-", "\ufeff\na\n\ufeffb", []string{"a", "\ufeffb"}},
		{"-", long + "\nb\n", []string{long, "b"}},
		{"-", long + "0\nb\n", []string{"4096 bytes: " + errLong.Error(), "b"}},
		{"-", "a\n" + strings.Repeat(long, 100) + "\nb", []string{"a", "4096 bytes: " + errLong.Error(), "b"}},
		{"-", strings.Repeat(long, 100), []string{"4096 bytes: " + errLong.Error()}},
	} {
		got, err := all(t, strings.Fields(c.args), c.stdin)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%q, %.20q: %.200q, %v, want %.200q", c.args, c.stdin, got, err, c.want)
		}
	}
	// Nothing at all was hardly meant.
	for _, stdin := range []string{"", "\n \n"} {
		if got, err := all(t, nil, stdin); err != errNoInput || got != nil {
			t.Errorf("%q: %q, %v", stdin, got, err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if !terminal(null) || terminal(strings.NewReader("")) {
		t.Error("/dev/null has IDs, or a pipe has none")
	}
}

// A line that is too long is one invalid input, not the end: it is counted,
// named by its beginning, and does not become another ID by being cut.
func TestLongLineIsOneError(t *testing.T) {
	for _, flags := range [][]string{{}, {"--lenient"}, {"--kind", "int"}} {
		id := "02MVQDZ9NFSQ0"
		if len(flags) == 2 {
			id = "95551895313258176"
		}
		cut := id + strings.Repeat("-", maxLine) + "X" // lenient reading would see the ID in the first 4096 bytes
		stdin := id + "\n" + cut + "\n" + strings.Repeat("0", 1<<20) + "\n" + id + "\n"
		var out, stderr strings.Builder
		code := run(t.Context(), append([]string{"validate", "--format", "json"}, flags...), strings.NewReader(stdin), &out, &stderr, nil)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if code != exitInvalid || len(lines) != 4 || !strings.Contains(lines[0], `"valid":true`) || lines[3] != lines[0] || stderr.Len() > 0 {
			t.Fatalf("%v: exit code %d, %.300q, stderr %q", flags, code, lines, stderr.String())
		}
		for _, line := range lines[1:3] {
			if !strings.Contains(line, `"class":"bad_length"`) || len(line) > maxLine+200 {
				t.Errorf("%v: %d bytes, %.100s", flags, len(line), line)
			}
		}
	}
}

// What a message repeats of an input is short and harmless.
func TestShow(t *testing.T) {
	for in, want := range map[string]string{
		"02MVQDZ9NFSQ0": "02MVQDZ9NFSQ0", "": `""`, "a b": `"a b"`, "\x1b[31mred": `"\x1b[31mred"`, "ß": `"\u00df"`, `"`: `"\""`, "\xff": `"\xff"`,
		strings.Repeat("x", 81): strings.Repeat("x", 80) + "…",
	} {
		if got := show(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
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
	if code := <-ended; code != exitOK || lines.Text() != "2" {
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
		if code := <-ended; code != exitInterrupted || stderr.Len() > 0 {
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
		if code := run(t.Context(), strings.Fields(args), nil, full{}, &stderr, nil); code != exitInvalid || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%s: exit code %d, stderr %q", args, code, stderr.String())
		}
	}
	for _, args := range []string{"new 100000", "new", "monotonic 100000", "parse 02MVQDZ9NFSQ0", "--help"} {
		var stderr strings.Builder
		if code := run(t.Context(), strings.Fields(args), nil, &closing{}, &stderr, nil); code != exitOK || stderr.Len() > 0 {
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
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The last is told apart, so that all the others are known to be through
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
	w := bufio.NewWriterSize(in, chunk)
	var line []byte
	for i := range n - 1 {
		line, _ = flake.ID(i * 1_234_567 << 16 & (1<<62 - 1)).AppendText(line[:0])
		if _, err := w.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(w, "%s\n", last)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	<-read
	took := time.Since(began)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	lines := <-read
	if err := cmd.Wait(); err != nil || lines < n {
		t.Fatalf("%s: %d lines of %d IDs, %v", args, lines, n, err)
	}
	t.Logf("%s: %d IDs in %v", args, n, took.Round(time.Millisecond))
	return kib
}

// FuzzInputs: the same lines come out as go in, blanks and long ones apart,
// wherever the reads fall.
func FuzzInputs(f *testing.F) {
	f.Add([]byte("a\nb"), uint16(1))
	f.Add([]byte("\r\n\n \xff\n"+strings.Repeat("0", maxLine+1)+"\nx"), uint16(100))
	f.Add([]byte("0-0\n\x00\n\n"), uint16(4095))
	f.Fuzz(func(t *testing.T, stdin []byte, step uint16) {
		var want []string
		for line := range bytes.SplitAfterSeq(stdin, []byte("\n")) {
			if line = bytes.TrimSuffix(line, []byte("\n")); len(line) > maxLine {
				want = append(want, "long "+string(line[:maxLine]))
			} else if line = bytes.TrimSpace(line); len(line) > 0 {
				want = append(want, string(line))
			}
		}
		in := inputs{[]string{"-"}, &stepping{stdin, int(step) + 1}, func() error { return nil }}
		err := in.each(t.Context(), func(got string, err error) error {
			if err != nil {
				got = "long " + got
			}
			if len(want) == 0 || got != want[0] {
				t.Fatalf("got %.80q, want %.80q", got, want)
			}
			want = want[1:]
			return nil
		})
		if err != nil || len(want) > 0 {
			t.Fatalf("%v, and %d did not come", err, len(want))
		}
	})
}

// stepping gives so many bytes at a time.
type stepping struct {
	rest []byte
	step int
}

func (s *stepping) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.step)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}
