package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/fence"
)

// processes is how many processes of writers run at a time, and each how many writers.
const (
	processes = 4
	each      = 4
)

// writersOf is the variable of the environment that makes a program a process of writers: the URLs of
// the databases, and how late they may insert.
const writersOf = "FENCE_WRITERS"

// Writers reports whether this process was started as Config.Program. It then writes until it is
// killed, or the test has ended, with IDs from next.
func Writers(next func(context.Context) (flake.ID, error)) bool {
	set := strings.Fields(os.Getenv(writersOf))
	if len(set) != 3 {
		return false
	}
	late, err := time.ParseDuration(set[2])
	if err != nil {
		panic(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	r := &run{Config: Config{Next: next, Late: late}, urls: [2]string(set[:2])}
	var all sync.WaitGroup
	for range each {
		all.Go(func() {
			for {
				r.write(context.Background(), context.Background())
			}
		})
	}
	all.Wait()
	return true
}

// process runs processes of writers one after the other. Each is stopped some times, and killed.
func (r *run) process(writing context.Context) {
	for writing.Err() == nil {
		cmd := exec.Command(r.Program[0], r.Program[1:]...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %v", writersOf, r.urls[0], r.urls[1], r.Late))
		var log bytes.Buffer
		cmd.Stderr = &log
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			r.Error(err)
			return
		}
		for n := 1 + rand.IntN(4); n > 0 && writing.Err() == nil; n-- {
			Sleep(writing, 4*time.Second)
			_ = cmd.Process.Signal(syscall.SIGSTOP)
			Sleep(writing, 2*time.Second)
			_ = cmd.Process.Signal(syscall.SIGCONT)
			r.stopped.Add(1)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = stdin.Close()
		if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() {
			r.Errorf("a process of writers ended by itself: %v, %s", cmd.ProcessState, log.String())
			return
		}
		r.killed.Add(1)
	}
}

// write is a transaction, on a connection of its own. One that began goes on after writing
// has ended.
func (r *run) write(ctx, writing context.Context) {
	db := rand.IntN(2)
	c, err := pgx.Connect(ctx, r.urls[db])
	if err != nil {
		Sleep(writing, 200*time.Millisecond)
		return
	}
	defer func() { _ = c.Close(ctx) }()
	for writing.Err() == nil {
		err := r.transaction(ctx, writing, c)
		var e *pgconn.PgError
		switch {
		case err == nil:
			r.committed.Add(1)
		case errors.As(err, &e) && e.Code == fence.Refused:
			r.refused.Add(1)
		case !errors.Is(err, errRolledBack):
			r.failed.Add(1)
		}
		if c.IsClosed() {
			return
		}
		if err != nil {
			_, _ = c.Exec(ctx, "ROLLBACK")
		}
	}
}

var errRolledBack = errors.New("rolled back")

func (r *run) transaction(ctx, writing context.Context, c *pgx.Conn) error {
	table := []string{whole, whole, whole, noWait, noTrigger}[rand.IntN(5)]
	early := rand.IntN(3) == 0 // Some transactions have their snapshot before they draw the ID.
	begin := "BEGIN ISOLATION LEVEL " + []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}[rand.IntN(3)]
	if early {
		if _, err := c.Exec(ctx, begin+"; SELECT txid_current()"); err != nil {
			return err
		}
	}
	id, err := r.Next(ctx)
	if err != nil {
		Sleep(writing, 200*time.Millisecond)
		return err
	}
	Sleep(writing, pause)
	if table == noTrigger || rand.IntN(8) == 0 { // Only late rows show what the trigger is for.
		Sleep(writing, r.Late)
	}
	if !early {
		if _, err := c.Exec(ctx, begin); err != nil {
			return err
		}
	}
	switch rand.IntN(4) {
	case 0:
		_, err = c.PgConn().CopyFrom(ctx, strings.NewReader(fmt.Sprintln(id.Int64())), "COPY "+table+" FROM STDIN")
	case 1:
		_, err = c.Exec(ctx, fmt.Sprintf("SAVEPOINT a; INSERT INTO %s VALUES (%d); RELEASE a", table, id.Int64()))
	case 2:
		_, err = c.Exec(ctx, fmt.Sprintf("INSERT INTO %s VALUES (%d) ON CONFLICT DO NOTHING", table, id.Int64()))
	default:
		_, err = c.Exec(ctx, "INSERT INTO "+table+" VALUES ($1)", id.Int64()) // a prepared statement
	}
	if err != nil {
		return err
	}
	Sleep(writing, pause)
	if table == noWait { // Only transactions that stay open show what the wait is for.
		Sleep(writing, r.Late)
	}
	switch rand.IntN(10) {
	case 0:
		_, err := c.Exec(ctx, "ROLLBACK")
		return errors.Join(errRolledBack, err)
	case 1:
		if _, err := c.Exec(ctx, fmt.Sprintf("PREPARE TRANSACTION '%d'", id.Int64())); err != nil {
			return err
		}
		Sleep(writing, pause)
		_, err = c.Exec(ctx, fmt.Sprintf("COMMIT PREPARED '%d'", id.Int64()))
	default:
		_, err = c.Exec(ctx, "COMMIT")
	}
	return err
}
