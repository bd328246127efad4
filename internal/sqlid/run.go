package sqlid

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/userdb"
	"github.com/flakelease/allocator/worker"
)

// Config says what a Runner does.
type Config struct {
	Database Database
	Name     string // People know this process by it, and two runners have different ones.
	Client   client.Options
	Every    time.Duration // A slice is written this often, and is as long.
	Hold     time.Duration // A slice may be used for so long.
	Log      *slog.Logger
}

// writer is what a Database does for a Runner, and holder what a worker does. Tests have others.
type (
	writer interface {
		Write(context.Context, Shape, Slice, time.Duration, string) (Written, error)
		End(ctx context.Context, last int64) (server int64, err error)
	}
	holder interface {
		Permit(unixMs int64) error
		Err() error
		Lost() <-chan struct{}
		Close() error
	}
)

// Runner writes the slices of one database.
type Runner struct {
	cfg Config
	db  writer

	sent int64 // The first word of the last slice that was sent; hold has it.

	mu    sync.Mutex // guards the rest
	stats Stats
	uses  uses
	said  text.Said
}

// Stats are what a Runner has done.
type Stats struct {
	SID      int   // -1: it holds no worker number
	StopMs   int64 // The database makes no ID above this time.
	Slices   int64
	Failures int64
	Err      error // why the last slice was not written; nil: it was
}

// NewRunner returns a Runner that does nothing yet.
func NewRunner(cfg Config) *Runner { return &Runner{cfg: cfg, db: cfg.Database, stats: Stats{SID: -1}} }

// Database returns the name of its database.
func (r *Runner) Database() string { return r.cfg.Database.String() }

// Stats returns what it has done. It is safe for concurrent use.
func (r *Runner) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// again is how long a Runner waits after it got no worker number.
const again = 2 * time.Second

// Run holds a worker number and writes slices until ctx ends. Then it ends the last slice and gives the number back.
func (r *Runner) Run(ctx context.Context) {
	r.cfg.Log.Info("asks the nodes for a worker number", "database", r.cfg.Database.String(),
		"nodes", strings.Join(r.cfg.Client.Targets, ","))
	for ctx.Err() == nil {
		if err := r.hold(ctx); err != nil && ctx.Err() == nil {
			r.failed(err)
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
		}
	}
}

// failed notes an error, and logs its kind once a minute while no slice is written.
func (r *Runner) failed(err error) {
	r.mu.Lock()
	if r.stats.Err == nil {
		r.said = nil
	}
	r.stats.Err = err
	r.stats.Failures++
	log := r.said.New(err.Error(), time.Now())
	r.mu.Unlock()
	if log {
		r.cfg.Log.Warn("no slice was written", "database", r.cfg.Database.String(), "error", err)
	}
}

// hold acquires a worker number, and writes slices until it is lost or ctx ends.
func (r *Runner) hold(ctx context.Context) error {
	f, err := r.cfg.Database.Format(ctx)
	if err != nil {
		return err
	}
	if err := r.check(ctx, f); err != nil {
		return err
	}
	w, err := worker.Open(ctx, worker.Config{
		Name:   r.cfg.Name,
		Client: r.cfg.Client,
		Unit:   time.Duration(f.Layout.Unit()) * time.Millisecond,
		Floor:  r.floor,
	})
	if err != nil {
		return err
	}
	shape := Shape{Format: f, SID: flake.SID(w.Number())}
	r.begin(shape)
	r.cfg.Log.Info("holds a worker number", "database", r.cfg.Database.String(), "worker", w.Number())
	return r.keep(ctx, w, shape)
}

// keep writes slices of w until it is lost or ctx ends.
func (r *Runner) keep(ctx context.Context, w holder, shape Shape) (err error) {
	defer func() {
		r.mu.Lock()
		r.stats.SID = -1
		r.mu.Unlock()
	}()
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	var after int64 // Unix ms: slices of this number before it were cut
	for {
		if after, err = r.slice(context.WithoutCancel(ctx), w, shape, after); err != nil && ctx.Err() == nil {
			r.failed(err)
		}
		select {
		case <-tick.C:
		case <-w.Lost():
			_, _ = r.db.End(ctx, r.sent) // What it made is still this worker's: others follow above.
			_ = w.Close()                // It closes the connections: what is lost cannot be given back.
			return fmt.Errorf("the worker number is lost: %w", w.Err())
		case <-ctx.Done():
			return r.end(context.WithoutCancel(ctx), w)
		}
	}
}

// begin begins with a worker number: it sent no slice yet.
func (r *Runner) begin(shape Shape) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.SID = int(shape.SID)
	r.uses.number()
	r.sent = int64(shape.SID)
}

// margin is added to the time for which a slice may be used: clocks do not run alike.
const margin = time.Second

// end ends the last slice and gives the number back, unless a slice may be in use still, or be written yet. Then the
// number is left to expire, and the watermark waits until its interval has passed: the process ends next.
func (r *Runner) end(ctx context.Context, w holder) error {
	server, err := r.db.End(ctx, r.sent)
	r.mu.Lock()
	over := r.uses.onlyOn(server, time.Now())
	r.mu.Unlock()
	if over {
		return w.Close()
	}
	r.cfg.Log.Warn("a slice may be in use still: the worker number stays reserved until its interval has passed",
		"database", r.cfg.Database.String(), "error", err)
	return nil
}

// check compares the space of the nodes with the format of the schema.
func (r *Runner) check(ctx context.Context, f flake.Format) error {
	c, err := client.New(r.cfg.Client)
	if err != nil {
		return err
	}
	return errors.Join(r.compare(ctx, c, f), c.Close())
}

func (r *Runner) compare(ctx context.Context, c *client.Client, f flake.Format) error {
	b, err := c.Block(ctx, 1)
	if err == nil && b.Format != f {
		err = userdb.Setup("the schema of %s makes IDs of %v, and the space has %v: give --addr of its space, "+
			"or drop the schema and make it again", r.cfg.Database, f, b.Format)
	}
	return err
}

// maxAhead is how far the last slice of another runner may lie ahead of this machine's clock.
const maxAhead = time.Minute

// slice cuts a slice from after on and writes it. It returns from where the next one may be cut: a slice counts as used
// from when it is sent.
func (r *Runner) slice(ctx context.Context, w holder, shape Shape, after int64) (int64, error) {
	now, n, s, err := r.cut(shape, after)
	if err != nil {
		return after, err
	}
	// The database may use it for the hold: that ends within the interval too, so before the watermark can pass.
	unit := shape.Format.Layout.Unit()
	last := max(s.ToMs-unit, s.FromMs+r.cfg.Hold.Milliseconds()/unit*unit)
	var did Written
	sent := false
	if err = errors.Join(w.Permit(s.FromMs), w.Permit(last)); err == nil {
		sent, r.sent = true, s.First
		did, err = r.db.Write(ctx, shape, s, r.cfg.Hold, r.cfg.Name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.uses.wrote(n, did.Server)
	case !did.Unknown:
		r.uses.refused(n)
	}
	switch {
	case !sent:
		return after, short(err, w.Err(), r.cfg.Hold)
	case errors.Is(err, ErrBelow):
		least := shape.Format.UnixMilli(flake.ID(did.Least))
		if ahead := least - now.UnixMilli(); ahead > maxAhead.Milliseconds() {
			return s.ToMs, userdb.Setup("the last slice of %s ends at %v, far ahead: a clock was wrong; "+
				"drop the schema and make it again", r.cfg.Database, time.UnixMilli(least).UTC().Format(time.RFC3339))
		}
		return max(s.ToMs, least), fmt.Errorf("%s: %w: this one begins there", r.cfg.Database, err)
	case err != nil:
		return s.ToMs, err
	}
	if r.stats.Err != nil || r.stats.Slices == 0 {
		r.cfg.Log.Info("writes slices", "database", r.cfg.Database.String(), "worker", int(shape.SID))
	}
	r.stats.StopMs, r.stats.Err = s.ToMs, nil
	r.stats.Slices++
	return s.ToMs, nil
}

// short returns why a slice was not permitted. While the interval is extended as it should be, it ends too early only
// if it is too short for the hold; it is extended when a third of it has passed.
func short(refused, extending error, hold time.Duration) error {
	if extending == nil && errors.Is(refused, worker.ErrExpired) {
		return userdb.Setup("worker.window of the nodes is too short for a --hold of %v: it has to be %v at "+
			"least, or --hold shorter", hold, hold*3/2)
	}
	return refused
}

// cut cuts a slice, and notes that it may be in use from now on.
func (r *Runner) cut(shape Shape, after int64) (now time.Time, n int, s Slice, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now = time.Now()
	if s, err = shape.Cut(now.UnixMilli(), max(after, r.uses.told), r.cfg.Every); err == nil {
		n = r.uses.add(s.FromMs, now.Add(callTimeout+r.cfg.Hold+margin))
	}
	return now, n, s, err
}

// floor is what the watermark is told.
func (r *Runner) floor() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.uses.floor(time.Now())
}
