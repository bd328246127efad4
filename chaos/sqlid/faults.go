package sqlid

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fence"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/internal/sqlid"
)

// faults are those of servers and runners.
func (r *Run) faults() []Fault {
	return []Fault{
		{"kill -9 of a process of the server", r.crash},
		{"kill -9 of all processes of the server", func(context.Context) error {
			r.main.Kill(r.T)
			return nil
		}},
		{"the server is shut down and started", func(context.Context) error {
			r.main.Restart(r.T, "fast")
			return nil
		}},
		{"kill -9 of a runner", func(context.Context) error {
			return r.each(Process.Kill, func(p Process) error { return p.Start() })
		}},
		{"SIGSTOP of a runner, for longer than the hold", func(context.Context) error {
			return r.each(Process.Pause, Process.Resume)
		}},
		{"SIGSTOP of both runners, until the hold is over", func(context.Context) error {
			a, b := r.main.runners[0], r.main.runners[1]
			err := errors.Join(a.Pause(), b.Pause())
			r.Until(sqlid.Expired)
			return errors.Join(err, a.Resume(), b.Resume())
		}},
		{"a base backup is started as a second primary", func(context.Context) error {
			r.slice(r.main)
			r.beside((*postgres.Server).Backup)
			return nil
		}},
		{"a copy of the files is started", func(context.Context) error {
			r.slice(r.main)
			r.beside((*postgres.Server).Copy)
			return nil
		}},
		{"a standby is promoted beside its primary", r.promote},
	}
}

// each does something to one runner of the main server after the other, and undoes it once the other one has written
// slices for a while.
func (r *Run) each(do, undo func(Process) error) error {
	for _, p := range r.main.runners {
		if err := do(p); err != nil {
			return err
		}
		time.Sleep(r.Hold + time.Second)
		r.Issues(r.main, "a fault of a runner")
		if err := undo(p); err != nil {
			return err
		}
	}
	return nil
}

// crash kills a process: the server ends all others and recovers, in the same process of its own.
func (r *Run) crash(ctx context.Context) error {
	c, err := r.main.pools[0].Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	pid, err := fence.Backend(ctx, r.main.pools[1])
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	r.until("the server ends its other processes", func() bool { return c.Conn().Ping(ctx) != nil })
	return nil
}

// beside has a copy of the main server beside it for a while.
func (r *Run) beside(of func(*postgres.Server, *testing.T) *postgres.Server) {
	s := r.server(of(r.main.Server, r.T))
	r.begin(s)
	r.remove(s)
}

// promote promotes a standby. Both servers take writes for a while, and the old primary ends.
func (r *Run) promote(context.Context) error {
	s := r.server(r.main.Standby(r.T))
	stop := r.slice(r.main)
	r.until("the standby has the slice", func() bool {
		var has int64
		err := s.pools[0].QueryRow(r.ctx, "SELECT last_value FROM logged.stop").Scan(&has)
		return err == nil && has == stop
	})
	if err := s.Promote(); err != nil {
		return err
	}
	old := r.main
	r.begin(s)
	r.main = s
	r.remove(old)
	return nil
}

// begin has writers use a copy of the main server, which makes no ID before it has a slice of its own.
func (r *Run) begin(s *server) {
	for db, pool := range s.pools {
		var id int64
		err := pool.QueryRow(r.ctx, "SELECT allocator.next_id()").Scan(&id)
		if sqlState(err) != sqlid.NoSlice {
			r.Errorf("%s/%s has no slice yet: ID %d, %v", s.name, databases[db], id, err)
		}
		r.say(err)
	}
	r.drawTwice(r.main, s)
	r.serve(s)
	r.Issues(r.main, "a copy began beside it")
	r.Issues(s, "its beginning")
}

// stopped stops a process for up to a time.
func stopped(ctx context.Context, pid int, limit time.Duration) {
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	fence.Sleep(ctx, limit)
	_ = syscall.Kill(pid, syscall.SIGCONT)
}
