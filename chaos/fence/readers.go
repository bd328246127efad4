package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

// readers returns three of the whole fence in each database, one of both, and those that lose
// rows.
func (r *run) readers() (all []*reader) {
	for i := range r.urls {
		for range 3 {
			all = append(all, &reader{of: []int{i}, table: whole, view: whole + "_complete"})
		}
		all = append(all, &reader{of: []int{i}, table: whole, view: whole, loses: true})
	}
	return append(all,
		&reader{of: []int{0, 1}, table: noWait, view: noWait + "_complete", loses: true},
		&reader{of: []int{0, 1}, table: noTrigger, view: noTrigger + "_complete", loses: true},
		&reader{of: []int{0, 1}, table: whole, view: whole + "_complete"})
}

// reader reads views of some databases and merges what they have.
type reader struct {
	of    []int
	table string
	view  string // The view is the table for a reader without a fence.
	loses bool

	got    []int64
	behind []time.Duration // The IDs were so old when they were read.
	poll   []time.Duration // Ends of the view were so old when a read first saw them.
	past   atomic.Int64    // The next read begins after it.
}

func (to *reader) String() string { return fmt.Sprintf("reader of %s in %v", to.view, to.of) }

func (to *reader) run(ctx context.Context, r *run) {
	conns := map[int]*pgx.Conn{}
	defer func() {
		for _, c := range conns {
			_ = c.Close(context.WithoutCancel(ctx))
		}
	}()
	for ; ctx.Err() == nil; Sleep(ctx, 50*time.Millisecond) {
		for _, i := range to.of {
			if conns[i] == nil || conns[i].IsClosed() {
				conns[i], _ = pgx.Connect(ctx, r.urls[i])
			}
		}
		_ = to.read(ctx, conns) // After an error it reads from the same place.
	}
}

// read reads what is new, up to where all databases are complete.
func (to *reader) read(ctx context.Context, conns map[int]*pgx.Conn) error {
	past, cut := to.past.Load(), int64(1)<<62
	var ids []int64
	for _, i := range to.of {
		if conns[i] == nil {
			return errors.New("not connected")
		}
		if to.view == to.table {
			continue
		}
		var end int64
		var age *time.Duration // NULL: it was not moved yet
		err := conns[i].QueryRow(ctx, "SELECT readable, clock_timestamp() - readable_at FROM "+to.table+"_fence").
			Scan(&end, &age)
		if err != nil {
			return err
		}
		if cut = min(cut, end); age != nil && len(to.of) == 1 && end > past+1 {
			to.poll = append(to.poll, *age)
		}
	}
	for _, i := range to.of {
		rows, err := conns[i].Query(ctx, "SELECT id FROM "+to.view+" WHERE id > $1 AND id < $2 ORDER BY id", past, cut)
		if err != nil {
			return err
		}
		some, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		ids = append(ids, some...)
	}
	slices.Sort(ids)
	for _, id := range ids {
		to.behind = append(to.behind, time.Since(time.UnixMilli(flake.Default.UnixMilli(flake.ID(id)))))
	}
	to.got = append(to.got, ids...)
	switch {
	case to.view != to.table:
		to.past.Store(max(past, cut-1))
	case len(ids) > 0:
		to.past.Store(ids[len(ids)-1])
	}
	return nil
}

// judge compares what a reader got with what is in the tables.
func (r *run) judge(to *reader) {
	var want []int64
	for _, i := range to.of {
		rows, err := r.pool[i].Query(r.Context(), "SELECT id FROM "+to.table)
		fatal.If(r, err)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		fatal.If(r, err)
		want = append(want, ids...)
	}
	slices.Sort(want)
	lost := 0
	for _, id := range want {
		if !slices.Contains(to.got, id) {
			lost++
		}
	}
	r.Logf("%v: lost %d of %d rows; age of an ID when read: %s", to, lost, len(want), Percentiles(to.behind))
	switch {
	case to.loses && lost == 0:
		r.Errorf("%v lost nothing: the run shows nothing", to)
	case !to.loses && !slices.Equal(to.got, want):
		r.Errorf("%v got %d rows, lost %d, of %d; in order: %v", to, len(to.got), lost, len(want),
			slices.IsSorted(to.got))
	}
}
