package fence

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/text"
)

// Config is what moves fences. All fields are required.
type Config struct {
	Tables   []*Table
	Source   Source
	Interval time.Duration // A mark is asked for so often.
	Name     string        // Movers of another name stand by while this one works.
	Log      *slog.Logger
}

// Stats is what a mover has done for a table since it began.
type Stats struct {
	Mark, Floor, Readable int64 // in Unix milliseconds; 0 before the first
	Moves                 int64
	Failures              int64
	Waited                time.Duration // the time that all moves waited for transactions
	BlockedBy             []Holder      // what the move in progress waits for
	Ahead                 Ahead         // rows of the future, as of a minute ago at most
	Err                   error         // the last call failed with it; nil if it did not
}

// Movers moves the fences of tables. All of them follow one mark, and none waits for another.
type Movers struct {
	cfg    Config
	tables []*tableMover
}

type tableMover struct {
	*Table
	log   *slog.Logger
	marks chan Mark // the latest mark that was not taken yet

	looked time.Time // when rows of the future were looked for; run owns it

	mu    sync.Mutex // guards the rest
	stats Stats
	quiet time.Time // when a wait may be logged again
	said  text.Said // errors
}

// NewMovers returns movers that have done nothing yet.
func NewMovers(cfg Config) *Movers {
	m := &Movers{cfg: cfg}
	for _, t := range cfg.Tables {
		m.tables = append(m.tables, &tableMover{
			Table: t,
			log:   cfg.Log.With("database", t.Database(), "table", t.String()),
			marks: make(chan Mark, 1),
		})
	}
	return m
}

// Stats calls yield for each table. It is safe for concurrent use.
func (m *Movers) Stats(yield func(*Table, Stats)) {
	for _, t := range m.tables {
		t.mu.Lock()
		s := t.stats
		t.mu.Unlock()
		yield(t.Table, s)
	}
}

// Run moves fences until ctx ends. It may end at any moment, and be started again: each
// statement leaves the fence as sound as it was. Errors are logged, counted and tried again.
func (m *Movers) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, t := range m.tables {
		all.Go(func() { t.run(ctx, m.cfg.Name) })
	}
	ticker := time.NewTicker(m.cfg.Interval)
	defer ticker.Stop()
	defer all.Wait()
	for {
		mark, err := m.cfg.Source.Watermark(ctx)
		for _, t := range m.tables {
			if err != nil {
				t.failed(ctx, "no watermark", err)
				continue
			}
			t.update(func(s *Stats) { s.Mark = mark.UnixMs })
			select {
			case <-t.marks: // A newer one takes its place.
			default:
			}
			t.marks <- mark
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (t *tableMover) update(change func(*Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.stats)
}

// logAfter is how long a wait lasts before it is logged, and logEvery how often that is.
const (
	logAfter = 5 * time.Second
	logEvery = 30 * time.Second
	// Rows of the future are looked for so often.
	lookEvery = time.Minute
)

func (t *tableMover) run(ctx context.Context, by string) {
	for {
		var mark Mark
		select {
		case <-ctx.Done():
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = t.Leave(within, by) // Another one takes over all the same, later.
			return
		case mark = <-t.marks:
		}
		if err := t.move(ctx, by, mark); err != nil {
			t.failed(ctx, "fence not moved", err)
		}
	}
}

func (t *tableMover) move(ctx context.Context, by string, mark Mark) error {
	floor, err := t.Raise(ctx, by, mark)
	if err != nil {
		return err
	}
	t.update(func(s *Stats) { s.Floor = floor.UnixMs })
	began := time.Now()
	if !floor.Readable {
		if err := t.Wait(ctx, floor, func(left []Holder) { t.waits(began, left) }); err != nil {
			return err
		}
		waited := time.Since(began)
		if err := t.Publish(ctx, floor); err != nil {
			return err
		}
		t.update(func(s *Stats) { s.Moves, s.Waited = s.Moves+1, s.Waited+waited })
	}
	t.update(func(s *Stats) { s.Readable, s.Err = floor.UnixMs, nil })
	if began.Sub(t.looked) < lookEvery {
		return nil
	}
	t.looked = began
	ahead, err := t.Ahead(ctx)
	t.update(func(s *Stats) { s.Ahead = ahead })
	if ahead.Rows > 0 {
		t.log.Warn("rows of the future", "problem", ahead.of(t.Table))
	}
	return err
}

// waits reports what a move waits for that began then.
func (t *tableMover) waits(began time.Time, left []Holder) {
	now := time.Now()
	t.mu.Lock()
	t.stats.BlockedBy = left
	log := len(left) > 0 && now.Sub(began) > logAfter && now.After(t.quiet)
	if log {
		t.quiet = now.Add(logEvery)
	}
	t.mu.Unlock()
	if log {
		t.log.Warn("waits for transactions that began before the floor was raised", "transactions", len(left),
			"oldest", left[0].String(), "since", left[0].Since, "query_since", left[0].QuerySince)
	}
}

// failed counts and logs an error. Another mover is none: this one stands by.
func (t *tableMover) failed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	now, level := time.Now(), slog.LevelInfo
	t.mu.Lock()
	if t.stats.Err == nil {
		t.said = nil
	}
	log := t.said.New(err.Error(), now)
	t.stats.Err, t.stats.BlockedBy = err, nil
	if !errors.Is(err, ErrOtherMover) {
		t.stats.Failures++
		level = slog.LevelError
	}
	t.mu.Unlock()
	if log {
		t.log.Log(ctx, level, what, "err", err)
	}
}
