package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/ulid"
)

// audit reads logs of IDs and holds every ID against every other.
type audit struct {
	kind    describe.Kind
	space   flake.Format
	order   string // none, file or global
	byFlake bool
	files   []string
	in      io.Reader // «-»
	err     io.Writer
	spool   *watched

	narrow, wide *history.Merge // of 64 and of 128 bits: no two of different widths are one
	found        auditReport
	from, to     int64 // Unix ms, once there is an ID
	wideKind     describe.Kind
	last         lastID
	shown        time.Time // when progress was
}

// lastID is the ID of the line before.
type lastID struct {
	any, wide bool
	key       history.Key
	file      int
	line      int64
}

// A position is a file and a line.
const (
	lineBits  = 48
	mostFiles = 1 << (64 - lineBits)
)

func position(file int, line int64) uint64 { return uint64(file)<<lineBits | uint64(line) }

func (au *audit) place(pos uint64) string {
	return au.name(int(pos>>lineBits)) + ":" + strconv.FormatUint(pos&(1<<lineBits-1), 10)
}

func (au *audit) name(file int) string {
	if au.files[file] == "-" {
		return "stdin"
	}
	return au.files[file]
}

// progressEvery is how often a long audit says on stderr how far it is.
const progressEvery = 5 * time.Second

func (au *audit) progress(format string, args ...any) {
	if now := time.Now(); now.Sub(au.shown) >= progressEvery {
		au.shown = now
		fmt.Fprintf(au.err, "audit: "+format+"\n", args...)
	}
}

func (au *audit) merging(read, written int64) {
	au.progress("%d IDs read, %d %% compared", au.found.IDs, 100*read/max(written, 1))
}

// read reads all files.
func (au *audit) read(ctx context.Context) error {
	au.shown = time.Now()
	au.found.Twice, au.found.Below, au.found.Bad = []twice{}, []below{}, []badLine{} // lists in JSON, also when empty
	au.found.sids = make([]int64, max(au.space.Layout.Holders(), 1))
	au.from, au.to = math.MaxInt64, math.MinInt64
	for n, name := range au.files {
		if au.order == "file" {
			au.last = lastID{}
		}
		if err := au.file(ctx, n, name); err != nil {
			return err
		}
		au.found.Files++
	}
	return nil
}

// file reads one log, of whatever shape it is.
func (au *audit) file(ctx context.Context, n int, name string) (err error) {
	unread := func(err error) error {
		if err == nil || errors.Is(err, errInterrupted) {
			return err
		}
		return &exitError{exitUsage, fmt.Errorf("read %s: %w", au.name(n), err)}
	}
	in := io.Reader(&source{ctx: ctx, in: au.in, before: func() error { return nil }})
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		defer f.Close()
		in = f
	}
	r := bufio.NewReaderSize(in, chunk)
	if magic, err := r.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(r)
		if err != nil {
			return unread(err)
		}
		r = bufio.NewReaderSize(z, chunk)
	}
	if mark, _ := r.Peek(len(byteOrderMark)); bytes.Equal(mark, byteOrderMark) {
		_, _ = r.Discard(len(mark))
	}
	line := int64(0) // of blank ones before the first
	for {
		b, err := r.Peek(1)
		if err != nil && err != io.EOF {
			return unread(err)
		}
		if err == io.EOF || len(bytes.TrimSpace(b)) > 0 {
			break
		}
		if b[0] == '\n' {
			line++
		}
		_, _ = r.Discard(1)
	}
	if b, _ := r.Peek(1); len(b) > 0 && b[0] == '{' {
		return unread(au.history(ctx, n, line, r))
	}
	return unread(au.lines(ctx, n, line, r))
}

// lines reads a log of one ID a line.
func (au *audit) lines(ctx context.Context, n int, line int64, r *bufio.Reader) error {
	for {
		text, err := r.ReadSlice('\n')
		if len(text) > 0 {
			line++
		}
		if line&(1<<14-1) == 0 {
			if ctx.Err() != nil {
				return errInterrupted
			}
			au.progress("%d IDs read, now %s", au.found.IDs, au.name(n))
		}
		if len(text) > maxLine {
			au.invalid(n, line, errLong)
			for err == bufio.ErrBufferFull {
				_, err = r.ReadSlice('\n')
			}
		} else if text = bytes.TrimSpace(text); len(text) > 0 {
			id, perr := describe.Parse(string(text), au.kind, au.space)
			if perr != nil {
				au.invalid(n, line, perr)
			} else if err := au.one(n, line, id); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (au *audit) invalid(n int, line int64, err error) {
	au.found.Invalid++
	if len(au.found.Bad) < mostShown {
		au.found.Bad = append(au.found.Bad, badLine{au.place(position(n, line)), classError{describe.Class(err), err.Error()}})
	}
}

// one takes the ID of a line.
func (au *audit) one(n int, line int64, id describe.ID) error {
	f, err := id.AsFlake(au.space.Epoch)
	derived := err == nil
	switch {
	case derived:
		ms := au.space.UnixMilli(f)
		au.from, au.to = min(au.from, ms), max(au.to, ms)
		if s := int(au.space.SID(f)); s < len(au.found.sids) {
			au.found.sids[s]++
		}
	case au.byFlake:
		au.invalid(n, line, err)
		return nil
	default:
		if id.Kind == describe.ULID || id.Wide.IsV7() { // other UUIDs have no time
			ms := id.Wide.UnixMilli()
			au.from, au.to = min(au.from, ms), max(au.to, ms)
		}
		au.found.NoSID++
	}
	au.found.IDs++
	pos := position(n, line)
	if !id.IsWide() || au.byFlake {
		key := history.Key{Lo: uint64(f)}
		au.rising(n, line, false, key)
		return au.narrow.Add(key, pos)
	}
	if au.wideKind == "" {
		au.wideKind = id.Kind
	}
	b := id.Wide.Bytes()
	key := history.Key{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
	au.rising(n, line, true, key)
	return au.wide.Add(key, pos)
}

// rising holds an ID against the line before. The same ID again is a duplicate
// and no disorder; IDs of different widths are not compared.
func (au *audit) rising(n int, line int64, wide bool, key history.Key) {
	if au.order == "none" {
		return
	}
	if l := au.last; l.any && l.wide == wide && key.Compare(l.key) < 0 {
		au.found.Disorder++
		if len(au.found.Below) < mostShown {
			au.found.Below = append(au.found.Below, below{au.place(position(n, line)),
				fmt.Sprintf("%s is below %s of %s", au.text(key, wide), au.text(l.key, wide), au.place(position(l.file, l.line)))})
		}
	}
	au.last = lastID{true, wide, key, n, line}
}

// text writes an ID as the log had its first one of that width.
func (au *audit) text(k history.Key, wide bool) string {
	if !wide {
		return flake.ID(k.Lo).String()
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], k.Hi)
	binary.BigEndian.PutUint64(b[8:], k.Lo)
	id := ulid.FromArray(b)
	if au.wideKind == describe.UUID {
		return id.UUID()
	}
	return id.String()
}

// history reads a history of the chaos harness.
func (au *audit) history(ctx context.Context, n int, blank int64, r io.Reader) error {
	in, order := history.NewReader(r), history.NewOrder()
	var op history.Op
	format := au.space
	for {
		err := in.Read(&op)
		line := blank + in.Line()
		var damaged *history.LineError
		switch {
		case errors.Is(err, io.EOF):
			if au.order != "none" {
				found := order.Finish()
				au.found.Disorder += found.Count
				for _, v := range found.Violations {
					if len(au.found.Below) < mostShown {
						au.found.Below = append(au.found.Below, below{au.name(n), v.Detail})
					}
				}
			}
			return nil
		case errors.As(err, &damaged):
			au.invalid(n, line, damaged.Err)
			return nil
		case err != nil:
			return err
		}
		if line&(1<<14-1) == 0 {
			if ctx.Err() != nil {
				return errInterrupted
			}
			au.progress("%d IDs read, now %s", au.found.IDs, au.name(n))
		}
		order.Add(&op)
		if op.Setup != nil {
			format = op.Setup.Format()
		}
		if op.Type != history.OK || op.F != history.FAllocate {
			continue
		}
		au.found.IDs += op.Block.Count
		au.from, au.to = min(au.from, format.UnixMilli(op.Block.First)), max(au.to, format.UnixMilli(op.Block.Last()))
		for s := int(format.SID(op.Block.First)); s >= len(au.found.sids); {
			au.found.sids = append(au.found.sids, 0)
		}
		au.found.sids[format.SID(op.Block.First)] += op.Block.Count
		if err := au.narrow.AddBlock(op.Block, position(n, line)); err != nil {
			return err
		}
	}
}

// finish compares what was read.
func (au *audit) finish() (*auditReport, error) {
	r := &au.found
	for i, m := range []*history.Merge{au.narrow, au.wide} {
		wide := i == 1
		n, err := m.Duplicates(func(d history.Duplicate) {
			if len(r.Twice) < mostShown {
				r.Twice = append(r.Twice, twice{au.text(d.First, wide), d.Count, au.place(min(d.A, d.B)), au.place(max(d.A, d.B))})
			}
		})
		if err != nil {
			return nil, err
		}
		r.Duplicates += n
	}
	r.Sound = r.IDs > 0 && r.Duplicates == 0 && r.Disorder == 0 && r.Invalid == 0
	if au.from <= au.to {
		r.From, r.To = describe.Time(au.from), describe.Time(au.to)
	}
	r.SIDs = map[string]int64{}
	for sid, n := range r.sids {
		if n > 0 {
			r.SIDs[strconv.Itoa(sid)] = n
		}
	}
	return r, nil
}
