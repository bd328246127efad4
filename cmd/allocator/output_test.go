package main

import (
	"cmp"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

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
	if code := run(t.Context(), []string{"validate", "-"}, in, out, &stderr, nil); code != cli.ExitOK || stderr.Len() > 0 {
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
		"parse --kind uuid":                cli.ExitInvalid,
		"parse --lenient --kind uuid":      cli.ExitInvalid,
		"parse --lenient --epoch 0":        cli.ExitOK,
		"validate --lenient --format json": cli.ExitOK,
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

func TestStdinErrors(t *testing.T) {
	broken := io.MultiReader(strings.NewReader("02MVQDZ9NFSQ0\n"), errReader{})
	var out, stderr strings.Builder
	if code := run(t.Context(), []string{"validate", "-"}, broken, &out, &stderr, nil); code != cli.ExitInvalid || !strings.Contains(stderr.String(), "read stdin") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("broken") }
