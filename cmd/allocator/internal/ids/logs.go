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

// reader reads logs for a command: it opens files, stops when ctx ends, and shows
// progress.
type reader struct {
	ctx  context.Context
	in   io.Reader // "-"
	show *cli.Progress

	ids           int64
	read, written int64 // bytes of the spool
}

// report prints what read finds in logs, for programs or by print. The command fails if that is not sound.
func report[R any](a *cli.App, cmd *cobra.Command, format *cli.Choice, print func(io.Writer, R),
	read func(r *reader, spool audit.Spool) (found R, sound bool, err error)) (err error) {
	dir, err := spool.NewDir("")
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	r := &reader{ctx: cmd.Context(), in: a.In, show: a.Progress()}
	found, sound, err := read(r, watchedSpool{dir, r})
	r.show.End()
	if err != nil {
		return err
	}
	out := a.Output(cmd.Context())
	if format.Value == "json" {
		err = cli.PrintLine(out, found)
	} else {
		print(out, found)
	}
	return cli.Ended(out, err, !sound)
}

// reading is called while logs are read.
func (r *reader) reading(log string, ids int64) error {
	r.ids = ids
	r.show.Set("%d IDs read, now %s", ids, log)
	if r.ctx.Err() != nil {
		return cli.ErrInterrupted
	}
	return nil
}

// file has one log read.
func (r *reader) file(path string, read func(name string, in io.Reader) error) error {
	name := path
	var in io.Reader
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
	err := read(name, in)
	if err == nil || errors.Is(err, cli.ErrInterrupted) {
		return err
	}
	return cli.Exit(cli.ExitUsage, fmt.Errorf("read %s: %w", name, err))
}

// watchedSpool is the spool of a reader.
type watchedSpool struct {
	audit.Spool
	reader *reader
}

func (w watchedSpool) Create() (audit.Spooled, error) {
	s, err := w.Spool.Create()
	return &watchedFile{s, w.reader}, err
}

type watchedFile struct {
	audit.Spooled
	reader *reader
}

func (f *watchedFile) Write(b []byte) (int, error) {
	f.reader.written += int64(len(b))
	if f.reader.ctx.Err() != nil {
		return 0, cli.ErrInterrupted
	}
	return f.Spooled.Write(b)
}

func (f *watchedFile) Open() (io.ReadCloser, error) {
	in, err := f.Spooled.Open()
	return &watchedReader{in, f.reader}, err
}

type watchedReader struct {
	io.ReadCloser
	reader *reader
}

func (w *watchedReader) Read(b []byte) (int, error) {
	r := w.reader
	if r.ctx.Err() != nil {
		return 0, cli.ErrInterrupted
	}
	n, err := w.ReadCloser.Read(b)
	r.read += int64(n)
	r.show.Set("%d IDs read, %d %% compared", r.ids, 100*r.read/max(r.written, 1))
	return n, err
}
