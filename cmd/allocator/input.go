package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/flakelease/allocator/flake"
)

// maxLine bounds a line of stdin, in bytes: no ID has a hundred.
const maxLine = 4096

// chunk is how much is read and written at a time, in bytes: what a pipe holds.
const chunk = 64 << 10

// errLong is the error of a line that was not read to its end.
var errLong = fmt.Errorf("%w: a line of over %d bytes", flake.ErrLength, maxLine)

// inputs are the IDs of a command line.
type inputs struct {
	args []string
	in   io.Reader
	// A filter and a person who types are answered alike: flush runs before
	// every read of stdin, so nothing is held back while there is nothing to do.
	flush func() error
}

// each calls f for every argument, and for "-" for every line of stdin that is
// not blank, one at a time. Blanks around an ID do not count, nor does a byte
// order mark in front of the first. A line that is too
// long comes as its first bytes, with an error of class bad_length.
//
// An error of f ends it. Without arguments it reads stdin, unless that is a
// terminal or empty: then nobody can have meant it, and it is a usage error.
func (i inputs) each(ctx context.Context, f func(input string, err error) error) error {
	args, seen := i.args, 0
	if len(args) == 0 {
		if terminal(i.in) {
			return errNoInput
		}
		args = []string{"-"}
	}
	for _, arg := range args {
		if arg != "-" {
			seen++
			if err := f(arg, nil); err != nil {
				return err
			}
			continue
		}
		n, err := i.lines(ctx, f)
		if seen += n; err != nil {
			return err
		}
	}
	if seen == 0 && len(i.args) == 0 {
		return errNoInput
	}
	return i.flush()
}

var errNoInput = usage("no ID is given: name some, or send them to stdin, one a line")

// byteOrderMark is what some editors and shells put in front of a file.
var byteOrderMark = []byte("\ufeff")

// lines calls f for the lines of stdin and returns how many it was called for.
func (i inputs) lines(ctx context.Context, f func(string, error) error) (n int, err error) {
	first := true
	r := bufio.NewReaderSize(&source{ctx: ctx, in: i.in, before: i.flush}, chunk)
	for {
		line, err := r.ReadSlice('\n')
		line = bytes.TrimSuffix(line, []byte("\n"))
		if first {
			line, first = bytes.TrimPrefix(line, byteOrderMark), false
		}
		if len(line) > maxLine {
			n++
			if ferr := f(string(line[:maxLine]), errLong); ferr != nil {
				return n, ferr
			}
			for err == bufio.ErrBufferFull {
				_, err = r.ReadSlice('\n')
			}
		} else if line = bytes.TrimSpace(line); len(line) > 0 {
			n++
			if ferr := f(string(line), nil); ferr != nil {
				return n, ferr
			}
		}
		switch {
		case err == io.EOF:
			return n, nil
		case err != nil && ctx.Err() != nil:
			return n, err
		case err != nil:
			return n, fmt.Errorf("read stdin: %w", err)
		}
	}
}

// source reads stdin until ctx ends, which a read of a pipe does not heed. After
// that it must not be read again.
type source struct {
	ctx    context.Context
	in     io.Reader
	before func() error // runs before each read

	buf  []byte // belongs to the reading goroutine from asked to told
	ask  chan struct{}
	told chan result
}

type result struct {
	n   int
	err error
}

func (s *source) Read(p []byte) (int, error) {
	if err := s.before(); err != nil {
		return 0, err
	}
	if s.ask == nil {
		s.ask, s.told, s.buf = make(chan struct{}, 1), make(chan result, 1), make([]byte, chunk)
		go func() {
			for range s.ask {
				n, err := s.in.Read(s.buf)
				s.told <- result{n, err}
				if err != nil {
					return
				}
			}
		}()
	}
	// bufio asks for what its buffer has room for, up to a whole one: what does
	// not fit now must not be lost.
	s.buf = s.buf[:min(len(p), cap(s.buf))]
	s.ask <- struct{}{}
	select {
	case r := <-s.told:
		return copy(p, s.buf[:r.n]), r.err
	case <-s.ctx.Done():
		return 0, errInterrupted
	}
}

// errInterrupted ends a command that was asked to stop, without another word.
var errInterrupted = &exitError{code: exitInterrupted}

// sink is stdout until ctx ends.
type sink struct {
	ctx context.Context
	out io.Writer
}

func (s sink) Write(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, errInterrupted
	}
	return s.out.Write(p)
}

// output returns stdout for a command that may print many lines. It is to be
// flushed.
func (a *app) output(ctx context.Context) *bufio.Writer {
	return bufio.NewWriterSize(sink{ctx, a.out}, chunk)
}

// terminal reports whether somebody would have to type what is read from r.
// /dev/null counts as one: it has no ID either.
func terminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// shown is how much of an invalid input a message for people repeats, in bytes.
const shown = 80

// show returns an input as a message may repeat it: short, and with nothing in
// it that a terminal would obey.
func show(input string) string {
	cut := ""
	if len(input) > shown {
		input, cut = input[:shown], "…"
	}
	for i := range len(input) {
		if c := input[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return strconv.QuoteToASCII(input) + cut
		}
	}
	if input == "" {
		return `""`
	}
	return input + cut
}
