package sqlid

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/clienttest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
	"github.com/flakelease/allocator/worker"
)

// fakes are a database and a worker that answer what a test wants.
type fakes struct {
	wrote     Written
	err       error // of Write
	permitted time.Duration
	began     time.Time

	slices []Slice
	ended  int64
	closed bool
	server int64 // that End answers; -1: none does
	lost   chan struct{}
	cause  error
}

func (f *fakes) Write(_ context.Context, _ Shape, s Slice, _ time.Duration, _ string) (Written, error) {
	f.slices = append(f.slices, s)
	return f.wrote, f.err
}

func (f *fakes) End(_ context.Context, last int64) (int64, error) {
	f.ended = last
	if f.server < 0 {
		return -1, io.EOF
	}
	return f.server, nil
}

func (f *fakes) Permit(unixMs int64) error {
	if unixMs > f.began.Add(f.permitted).UnixMilli() {
		return worker.ErrExpired
	}
	return nil
}

func (f *fakes) Err() error            { return f.cause }
func (f *fakes) Lost() <-chan struct{} { return f.lost }
func (f *fakes) Close() error          { f.closed = true; return nil }

// TestRunner: what becomes of a slice decides where the next one begins, what the watermark is told, which slice is
// ended at last, and whether the worker number is given back.
func TestRunner(t *testing.T) {
	const here, hold = 7, 10 * time.Second
	for name, c := range map[string]struct {
		wrote     Written
		err       error
		permitted time.Duration // the window from now on
		server    int64         // at the end
		told      time.Duration // The watermark was told this from now on.
		least     time.Duration // after an ErrBelow, from now on

		sent, again, setup, closed bool // again: the next slice begins as this one did
	}{
		"written":                      {wrote: Written{Server: here}, server: here, sent: true, closed: true},
		"written, and told more":       {wrote: Written{Server: here}, server: here, told: 3 * time.Second, sent: true, closed: true},
		"written, and another server":  {wrote: Written{Server: here}, server: 8, sent: true},
		"written, and no answer":       {wrote: Written{Server: here}, server: -1, sent: true},
		"the reply is lost":            {wrote: Written{Unknown: true}, err: io.EOF, server: here, sent: true},
		"refused":                      {err: ErrOccupied, server: here, sent: true, closed: true},
		"below":                        {err: ErrBelow, least: 20 * time.Second, server: here, sent: true, closed: true},
		"below, by a wrong clock":      {err: ErrBelow, least: time.Hour, server: here, sent: true, setup: true, closed: true},
		"a window shorter than a hold": {permitted: 8 * time.Second, server: here, again: true, setup: true, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakes{wrote: c.wrote, err: c.err, server: c.server, permitted: c.permitted, began: time.Now()}
			if f.permitted == 0 {
				f.permitted = time.Hour
			}
			r := &Runner{db: f, cfg: Config{Database: Database{&userdb.DB{}}, Every: time.Second, Hold: hold, Log: slog.New(slog.DiscardHandler)}}
			shape := Shape{Format: scalable, SID: 3}
			r.uses.told = time.Now().Add(time.Hour).UnixMilli() // of another number
			r.begin(shape)
			least, err := scalable.Min(f.began.Add(c.least).UnixMilli())
			fatal.If(t, err)
			f.wrote.Least = int64(least)
			if c.told > 0 {
				r.uses.told = f.began.Add(c.told).UnixMilli()
			}
			after, err := r.slice(t.Context(), f, shape, 1)
			if (err == nil) != (c.err == nil && c.sent) || errors.Is(err, userdb.ErrSetup) != c.setup {
				t.Errorf("error %v", err)
			}
			if c.again != (after == 1) || c.sent != (len(f.slices) == 1) {
				t.Errorf("the next one begins at %d, after %+v", after, f.slices)
			}
			last := int64(shape.SID)
			if c.sent {
				s := f.slices[0]
				last = s.First
				if s.FromMs < f.began.Add(c.told).UnixMilli() || s.FromMs > f.began.Add(c.told+time.Minute).UnixMilli() {
					t.Errorf("it begins %v from now, and the watermark was told %v", time.UnixMilli(s.FromMs).Sub(f.began), c.told)
				}
				if want := max(s.ToMs, f.began.Add(c.least).UnixMilli()); after < s.ToMs || after != want && !c.setup {
					t.Errorf("the next one begins at %d, want %d", after, want)
				}
				if c.wrote != (Written{}) { // It may be used: the server may come to it as late as the call ends.
					if floor := r.floor(); floor != max(s.FromMs, r.uses.told) || floor > s.FromMs {
						t.Errorf("the watermark is told %d of %+v", floor, s)
					}
					if over := r.uses.list[0].over; over.Before(f.began.Add(callTimeout + hold)) {
						t.Errorf("it is thought over after %v", over.Sub(f.began))
					}
				}
			}
			if err := r.end(t.Context(), f); err != nil || f.closed != c.closed || f.ended != last {
				t.Errorf("at the end: %v, given back: %v, ended %d, want %d", err, f.closed, f.ended, last)
			}
		})
	}
}

// TestLostWorker: the last slice of a number that is lost is ended, and its connections are closed.
func TestLostWorker(t *testing.T) {
	f := &fakes{wrote: Written{Server: 7}, permitted: time.Hour, began: time.Now(), lost: make(chan struct{}), cause: worker.ErrLost}
	close(f.lost)
	r := &Runner{db: f, cfg: Config{Database: Database{&userdb.DB{}}, Every: time.Hour, Hold: time.Second, Log: slog.New(slog.DiscardHandler)}}
	shape := Shape{Format: scalable, SID: 3}
	r.begin(shape)
	if err := r.keep(t.Context(), f, shape); !errors.Is(err, worker.ErrLost) || !f.closed || f.ended != f.slices[0].First || r.stats.SID != -1 {
		t.Errorf("%v, closed: %v, ended %d of %+v", err, f.closed, f.ended, f.slices)
	}
}

// TestSpaceOfTheSchema: slices of another layout or epoch than that of the nodes are never written.
func TestSpaceOfTheSchema(t *testing.T) {
	c := clienttest.NewClient(t, client.Options{}, clienttest.NewNode(clienttest.Options{}))
	r := &Runner{cfg: Config{Database: Database{&userdb.DB{}}}}
	later := scalable
	later.Epoch++
	for f, same := range map[flake.Format]bool{scalable: true, later: false, {Layout: flake.Fleet, Epoch: scalable.Epoch}: false} {
		if err := r.compare(t.Context(), c, f); (err == nil) != same || errors.Is(err, userdb.ErrSetup) == same {
			t.Errorf("%v: %v", f, err)
		}
	}
}
