package ids

import (
	"context"
	"fmt"
	"io"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/audit"
)

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
// long comes as its first bytes, with an error of class bad_length. What is gzipped is unpacked.
//
// An error of f ends it. Without arguments it reads stdin, unless that is a
// terminal or empty: that is a usage error.
func (i inputs) each(ctx context.Context, f func(input string, err error) error) error {
	args, seen := i.args, 0
	if len(args) == 0 {
		if cli.Terminal(i.in) {
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
		var failed error
		stdin := &source{ctx: ctx, in: i.in, before: i.flush}
		err := audit.EachLine(stdin, func(_ int64, line []byte, err error) error {
			seen++
			failed = f(string(line), err)
			return failed
		})
		if err != nil && failed == nil && ctx.Err() == nil {
			return fmt.Errorf("read stdin: %w", err)
		} else if err != nil {
			return err
		}
	}
	if seen == 0 && len(i.args) == 0 {
		return errNoInput
	}
	return i.flush()
}

var errNoInput = cli.UsageError("no ID is given: name some, or send them to stdin, one a line")

// source reads stdin until ctx ends, which a read of a pipe does not heed. Its
// first error, io.EOF among them, is the answer of each later read too.
type source struct {
	ctx    context.Context
	in     io.Reader
	before func() error // runs before each read
	err    error        // the first one; a read may still be going on then
	buf    []byte       // It belongs to the read that goes on.
}

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if err := s.before(); err != nil {
		return 0, err
	}
	if s.buf == nil {
		s.buf = make([]byte, cli.BufferSize)
	}
	// bufio asks for what its buffer has room for, up to a whole one: what does
	// not fit now must not be lost.
	part, n, read := s.buf[:min(len(p), len(s.buf))], 0, make(chan error, 1)
	go func() {
		var err error
		n, err = s.in.Read(part)
		read <- err
	}()
	select {
	case s.err = <-read:
		return copy(p, part[:n]), s.err
	case <-s.ctx.Done():
		s.err = cli.ErrInterrupted
		return 0, s.err
	}
}
