package sqlid

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/flakelease/allocator/chaos/fence"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

var levels = []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}

// What became of the transaction of an ID, as far as the writer knows it.
const (
	committed   = "committed"
	rolledBack  = "rolled back"
	toSavepoint = "rolled back to a savepoint"
)

// pick returns a server that writers use.
func (r *Run) pick() *server {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live[rand.IntN(len(r.live))]
}

// write runs transactions, on one connection after the other.
func (r *Run) write(n int) {
	for i := 0; r.ctx.Err() == nil; i++ {
		s, db := r.pick(), rand.IntN(len(databases))
		c, err := pgx.Connect(r.ctx, s.urls[db])
		if err != nil {
			r.say(err)
			fence.Sleep(r.ctx, 200*time.Millisecond)
			continue
		}
		w := &session{Run: r, server: s, conn: c, process: strconv.Itoa(n)}
		w.run = fmt.Sprintf("%s/%s, session %d of writer %d", s.name, databases[db], i, n)
		for t := 0; t < 200 && r.ctx.Err() == nil && !c.IsClosed(); t++ {
			if err := w.transaction(); err != nil {
				r.say(err)
				_, _ = c.Exec(r.ctx, "ROLLBACK")
				fence.Sleep(r.ctx, 100*time.Millisecond) // The next slice comes soon.
			}
		}
		_ = c.Close(context.WithoutCancel(r.ctx))
	}
}

// session is a connection of a writer.
type session struct {
	*Run
	server       *server
	conn         *pgx.Conn
	process, run string
}

// transaction draws IDs in each way, and commits or rolls back. The IDs of all are noted when they are answered.
func (w *session) transaction() error {
	level := levels[rand.IntN(len(levels))]
	if _, err := w.conn.Exec(w.ctx, "BEGIN ISOLATION LEVEL "+level); err != nil {
		return err
	}
	drawn, fate := 0, committed
	for range 1 + rand.IntN(4) {
		n, err := w.draw()
		if drawn += n; err != nil {
			return err
		}
		if rand.IntN(3) == 0 {
			fence.Sleep(w.ctx, time.Second) // It keeps its snapshot while slices are written.
		}
	}
	if rand.IntN(4) == 0 {
		if _, err := w.conn.Exec(w.ctx, "SAVEPOINT a"); err != nil {
			return err
		}
		n, err := w.draw()
		if err == nil || sqlState(err) != "" { // After a refusal, the transaction goes on from the savepoint.
			_, back := w.conn.Exec(w.ctx, "ROLLBACK TO a")
			w.count(toSavepoint, n)
			err = back
		}
		if err != nil {
			return err
		}
	}
	end := "COMMIT"
	if rand.IntN(3) == 0 {
		end, fate = "ROLLBACK", rolledBack
	}
	if _, err := w.conn.Exec(w.ctx, end); err != nil {
		return err
	}
	w.count(fate, drawn)
	w.count(level, drawn)
	return nil
}

// draw draws IDs in one of the ways to do it.
func (w *session) draw() (n int, err error) {
	sql := []string{
		"SELECT allocator.next_id()",
		"SELECT allocator.next_id() FROM generate_series(1, 20)",
		"INSERT INTO orders DEFAULT VALUES RETURNING id",
		"INSERT INTO orders (at) SELECT generate_series(1, 5) RETURNING id",
		"SELECT allocator.next_flake()",
		"SELECT allocator.next_uuid()::text",
	}[rand.IntN(6)]
	w.Write(history.Op{
		Process: w.process, Type: history.Invoke, F: history.FAllocate, Run: w.run, Block: history.Block{Count: 1},
	})
	rows, err := w.conn.Query(w.ctx, sql)
	if err == nil {
		for rows.Next() {
			var of any
			if err := rows.Scan(&of); err != nil {
				w.Errorf("%s: %v", sql, err)
			}
			w.Write(history.Op{
				Process: w.process, Type: history.OK, F: history.FAllocate, Run: w.run,
				Block: history.Block{First: w.id(of), Count: 1, Stride: 1},
			})
			n++
		}
		err = rows.Err()
	}
	w.server.issued.Add(int64(n))
	if err != nil && n == 0 {
		w.Write(history.Op{
			Process: w.process, Type: history.Info, F: history.FAllocate, Run: w.run, Reason: "no answer",
		})
	}
	return n, err
}

// id reads an ID in each of its forms.
func (w *session) id(of any) flake.ID {
	text, is := of.(string)
	if !is {
		return flake.ID(of.(int64))
	}
	id, err := flake.Parse(text)
	if err != nil {
		var u ulid.ID
		if u, err = ulid.ParseUUID(text); err == nil {
			id, err = u.Flake(w.Format)
		}
	}
	if err != nil {
		w.Errorf("%q: %v", text, err)
	}
	return id
}

func (r *Run) count(what string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[what] += n
}

// say counts a refusal or an error. A key that is there already is an ID that came twice.
func (r *Run) say(err error) {
	state := sqlState(err)
	if state == "23505" {
		history.Violated(r, "I10", "a row with this ID is there: %v", err)
	}
	if state == "" {
		state = "no connection"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said[state]++
}

func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
