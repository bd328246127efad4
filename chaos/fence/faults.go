package fence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/flakelease/allocator/internal/fence"
)

// mover runs the command, and kills and stops it.
func (r *run) mover(ctx context.Context) {
	args := append(slices.Clone(r.Mover[1:]), "--interval", interval.String(), "--table", whole)
	for _, url := range r.urls {
		args = append(args, "--database", url)
	}
	log, err := os.Create(filepath.Join(r.TempDir(), "mover"))
	if err != nil {
		r.Error(err)
		return
	}
	defer func() { _ = log.Close() }()
	for ctx.Err() == nil {
		cmd := exec.Command(r.Mover[0], args...)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			r.Error(err)
			return
		}
		for n := rand.IntN(4); n >= 0 && ctx.Err() == nil; n-- {
			Sleep(ctx, 2*time.Second)
			_ = cmd.Process.Signal(syscall.SIGSTOP)
			Sleep(ctx, time.Second)
			_ = cmd.Process.Signal(syscall.SIGCONT)
		}
		_ = cmd.Process.Signal([]os.Signal{syscall.SIGKILL, syscall.SIGTERM}[rand.IntN(2)])
		_ = cmd.Wait()
	}
	if r.Failed() {
		text, _ := os.ReadFile(log.Name())
		r.Logf("a mover: %s", text)
	}
}

// move moves the fence of a table that lacks a part, without faults.
func (r *run) move(ctx context.Context, db int, name string) {
	d, err := fence.Open(r.urls[db])
	if err != nil {
		r.Error(err)
		return
	}
	defer d.Close()
	for ; ctx.Err() == nil; Sleep(ctx, interval) {
		table, err := d.Table(ctx, name, "id")
		if err != nil {
			continue
		}
		mark, err := r.Mark(ctx)
		if err != nil {
			continue
		}
		floor, err := table.Raise(ctx, "test", mark)
		if err != nil {
			continue
		}
		if name == noWait {
			_ = table.Publish(ctx, floor)
			continue
		}
		if table.Wait(ctx, floor, func([]fence.Holder) {}) == nil {
			_, _ = r.pool[db].Exec(ctx, "UPDATE no_trigger_fence SET readable = $1 WHERE readable < $1", mark.ID)
		}
	}
}

// faults stops processes of the server for up to a second, and ends prepared transactions
// that nobody ends. Now and then it terminates a process, or kills one, which makes the server
// end all others and recover.
func (r *run) faults(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		Sleep(ctx, 500*time.Millisecond)
		for i := range r.pool {
			r.endPrepared(ctx, i, time.Second)
		}
		pid, err := Backend(ctx, r.pool[n%2])
		if err != nil {
			continue
		}
		switch {
		case n%40 == 20:
			_ = syscall.Kill(pid, syscall.SIGKILL)
			continue
		case n%10 == 5:
			_, _ = r.pool[n%2].Exec(ctx, "SELECT pg_terminate_backend($1)", pid) // It may have ended.
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		Sleep(ctx, time.Second)
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// Judge is the name of applications that no fault stops.
const Judge = "judge"

// Backend returns a random process of the server that serves a client.
func Backend(ctx context.Context, pool *pgxpool.Pool) (pid int, err error) {
	err = pool.QueryRow(ctx, `SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> $1
		ORDER BY random() LIMIT 1`, Judge).Scan(&pid)
	return pid, err
}

func (r *run) endPrepared(ctx context.Context, db int, age time.Duration) {
	rows, err := r.pool[db].Query(ctx, `SELECT gid FROM pg_prepared_xacts
		WHERE database = current_database() AND prepared < clock_timestamp() - $1::interval`, age)
	if err != nil {
		return
	}
	names, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		_, _ = r.pool[db].Exec(ctx, fmt.Sprintf("COMMIT PREPARED '%s'", name)) // Its writer may have ended it.
	}
}
