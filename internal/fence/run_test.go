package fence

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
)

// silent returns a database that accepts connections and never answers.
func silent(t *testing.T) Database {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	d, err := Open("postgres://" + l.Addr().String() + "/db?sslmode=disable")
	fatal.If(t, err)
	t.Cleanup(d.Close)
	return d
}

// counting is a source of marks that says how many it was asked for.
type counting chan int64

func (c counting) Watermark(context.Context) (Mark, error) {
	n := <-c
	c <- n + 1
	return Mark{UnixMs: n}, nil
}

// TestSlowTables: while the database of a table does not answer, marks are asked for, and the latest one is
// what the table gets next.
func TestSlowTables(t *testing.T) {
	asked := make(counting, 1)
	asked <- 1
	m := NewMovers(Config{
		Tables:   []*Table{{db: silent(t), schema: "public", name: "events"}},
		Source:   asked,
		Interval: time.Millisecond,
		Name:     "test",
		Log:      slog.New(slog.DiscardHandler),
	})
	stop := running(t, m)
	mark := func() (at int64) {
		m.Stats(func(_ *Table, s Stats) { at = s.Mark })
		return at
	}
	wait.Until(t, "the source is asked ten times, while a table waits", func() bool { return mark() >= 10 })
	if next := <-m.tables[0].marks; next.UnixMs < 9 {
		t.Errorf("after 10 marks the table gets number %d", next.UnixMs)
	}
	stop()
}

// running runs m until it is told to stop, which returns when it has.
func running(t *testing.T, m *Movers) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// TestFailuresOfATable: what a move waited for is not shown any more once it has failed, and a mover that
// stands by has not failed.
func TestFailuresOfATable(t *testing.T) {
	table := &Table{db: silent(t), schema: "public", name: "events"}
	m := NewMovers(Config{Tables: []*Table{table}, Log: slog.New(slog.DiscardHandler)})
	stats := func() (s Stats) {
		m.Stats(func(_ *Table, of Stats) { s = of })
		return s
	}
	one := m.tables[0]
	one.waits(time.Now(), []Holder{{PID: 7}})
	if s := stats(); len(s.BlockedBy) != 1 {
		t.Errorf("while it waits: %+v", s)
	}
	one.failed(t.Context(), "fence not moved", ErrOtherMover)
	if s := stats(); len(s.BlockedBy) != 0 || s.Failures != 0 || !errors.Is(s.Err, ErrOtherMover) {
		t.Errorf("beside another mover: %+v", s)
	}
	one.failed(t.Context(), "fence not moved", ErrUnfenced)
	if s := stats(); s.Failures != 1 || !errors.Is(s.Err, ErrUnfenced) {
		t.Errorf("after a failure: %+v", s)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	one.failed(ended, "fence not moved", context.Canceled)
	if s := stats(); s.Failures != 1 {
		t.Errorf("at its end: %+v", s)
	}
}
