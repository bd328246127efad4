package ids

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/audit/spool"
)

// reader reads logs for a command until ctx ends, and shows progress.
type reader struct {
	ctx  context.Context
	in   io.Reader // "-"
	show *cli.Progress

	read, spooled, compared int64 // bytes: of logs, and of the spool as it was written and as it was read again
}

// report prints what read finds in logs, for programs or by print. The command fails if that is not sound.
func report[R any](a *cli.App, cmd *cobra.Command, format *cli.Choice, print func(io.Writer, R),
	read func(r *reader, spool audit.Spool) (found R, sound bool, err error)) (err error) {
	r := &reader{ctx: cmd.Context(), in: a.In, show: a.Progress()}
	dir, err := spool.NewDir("", r.spooling)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	found, sound, err := read(r, dir)
	r.show.End()
	if err != nil {
		return err
	}
	out := a.Output(cmd.Context())
	if format.JSON() {
		err = cli.PrintLine(out, found)
	} else {
		print(out, found)
	}
	return cli.Ended(out, err, !sound)
}

// spooling is called while the spool is written and read.
func (r *reader) spooling(wrote, read int) error {
	r.spooled += int64(wrote)
	if r.compared += int64(read); read > 0 {
		r.show.Set("%d MiB read, %d %% compared", r.read>>20, 100*r.compared/max(r.spooled, 1))
	}
	if r.ctx.Err() != nil {
		return cli.ErrInterrupted
	}
	return nil
}

// file has one log read.
func (r *reader) file(path string, read func(name string, in io.Reader) error) error {
	name, in := path, io.Reader(nil)
	if path == "-" {
		name, in = "stdin", &source{ctx: r.ctx, in: r.in, before: func() error { return nil }}
	} else {
		f, err := os.Open(path)
		if err != nil {
			return cli.Exit(cli.ExitUsage, err)
		}
		defer f.Close()
		in = f
	}
	err := read(name, r.watched(in, func(n int) {
		r.read += int64(n)
		r.show.Set("%d MiB read, now %s", r.read>>20, name)
	}))
	if err == nil || errors.Is(err, cli.ErrInterrupted) {
		return err
	}
	return cli.Exit(cli.ExitUsage, fmt.Errorf("read %s: %w", name, err))
}

// watched returns in until ctx ends, and calls seen with how many bytes each read gave.
func (r *reader) watched(in io.Reader, seen func(n int)) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		if r.ctx.Err() != nil {
			return 0, cli.ErrInterrupted
		}
		n, err := in.Read(b)
		seen(n)
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
