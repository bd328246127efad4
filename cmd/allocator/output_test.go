package main

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRelative(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "just now", -999 * time.Millisecond: "just now", -time.Second: "1 second ago", 59 * time.Second: "in 59 seconds",
		-3 * time.Minute: "3 minutes ago", time.Hour: "in 1 hour", -25 * time.Hour: "1 day ago", -366 * 24 * time.Hour: "1 year ago",
	} {
		if got := relative(now.Add(d), now); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestTimesFarOff(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for ms, want := range map[int64]string{0: "56 years ago", 1<<48 - 1: "year 10889", 253402300799999: "year 9999"} {
		if got := string(appendTimes(nil, ms, now)); !strings.Contains(got, want) {
			t.Errorf("%d: got %q, want %q in it", ms, got, want)
		}
	}
}

// ceaseless is lines without end, or rather of 100 MB; n counts what was read.
type ceaseless struct {
	line string // of 14 bytes; "" is an ID
	n    int
}

func (e *ceaseless) Read(p []byte) (int, error) {
	if e.n > 100<<20 {
		return 0, io.EOF
	}
	e.n += copy(p, strings.Repeat(cmp.Or(e.line, "02MVQDZ9NFSQ0\n"), len(p)/14+1))
	return len(p), nil
}

// A reader that leaves ends a filter without a word and without reading on.
func TestBrokenPipe(t *testing.T) {
	in := &ceaseless{}
	var stderr strings.Builder
	out := &closing{after: 1 << 20}
	if code := run(t.Context(), []string{"validate", "-"}, in, out, &stderr, nil); code != exitOK || stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
	if in.n > 2<<20 {
		t.Errorf("read %d bytes after the reader left", in.n)
	}
}

// Where nobody reads the messages any more, a stream of faults ends too, and
// what was wrong until then shows in the exit code.
func TestBrokenPipeOfMessages(t *testing.T) {
	for args, want := range map[string]int{
		"parse --kind uuid":                exitInvalid,
		"parse --lenient --kind uuid":      exitInvalid,
		"parse --lenient --epoch 0":        exitOK,
		"validate --lenient --format json": exitOK,
	} {
		in := &ceaseless{line: "O2MVQDZ9NFSQO\n"}
		if code := run(t.Context(), strings.Fields(args), in, io.Discard, &closing{after: 1 << 10}, nil); code != want {
			t.Errorf("%s: exit code %d, want %d", args, code, want)
		}
		if in.n > 2<<20 {
			t.Errorf("%s: read %d bytes after the reader left", args, in.n)
		}
	}
}

// closing takes so many bytes and then is a closed pipe.
type closing struct{ after int }

func (c *closing) Write(p []byte) (int, error) {
	if c.after -= len(p); c.after < 0 {
		return 0, syscall.EPIPE
	}
	return len(p), nil
}

// Lines come out as they go in, not when stdin ends.
func TestStdinIsAnsweredAtOnce(t *testing.T) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan int)
	go func() { ended <- run(t.Context(), []string{"validate", "-"}, inR, outW, io.Discard, nil) }()
	lines := bufio.NewScanner(outR)
	for range 3 {
		if _, err := io.WriteString(inW, "02MVQDZ9NFSQ0\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != "valid    02MVQDZ9NFSQ0  flake" {
			t.Fatalf("got %q, %v", lines.Text(), lines.Err())
		}
	}
	_ = inW.Close()
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestStdinErrors(t *testing.T) {
	broken := io.MultiReader(strings.NewReader("02MVQDZ9NFSQ0\n"), errReader{})
	var out, stderr strings.Builder
	if code := run(t.Context(), []string{"validate", "-"}, broken, &out, &stderr, nil); code != exitInvalid || !strings.Contains(stderr.String(), "read stdin") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// The machine's zone, whatever it is, and at the end of the calendar too.
func TestLocal(t *testing.T) {
	defer func(zone *time.Location) { time.Local = zone }(time.Local)
	for _, c := range []struct {
		offset int
		ms     int64
		want   string
	}{
		{9 * 3600, 1469922850259, "2016-07-31 08:54:10.259 +0900"},
		{-(3*3600 + 30*60), 1469922850259, "2016-07-30 20:24:10.259 -0330"},
		{12*3600 + 45*60, 0, "1970-01-01 12:45:00.000 +1245"},
		{3600, 253402300799999, "10000-01-01 00:59:59.999 +0100"},
	} {
		time.Local = time.FixedZone("", c.offset)
		if got := string(appendLocal(nil, time.UnixMilli(c.ms))); got != c.want {
			t.Errorf("%d: %s, want %s", c.ms, got, c.want)
		}
	}
}
