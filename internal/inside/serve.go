package inside

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
)

// Prepare writes what Serve runs with.
func (d Dir) Prepare(r member.Run) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	return meet.WriteJSON(d.run(), r)
}

// running returns what Prepare wrote.
func (d Dir) running() (run member.Run, err error) {
	text, err := os.ReadFile(d.run())
	if err == nil {
		err = json.Unmarshal(text, &run)
	}
	return run, err
}

// niceness is the priority of the member, where it may be raised: it uses little of the processor,
// and needs that little at once.
const niceness = -10

// Server runs a member with the data in a directory until ctx ends, and calls started once it runs.
// etcdserver.Run is the one.
type Server func(ctx context.Context, r member.Run, dir string, started func()) error

// Serve runs the member of d until ctx ends. It is the child's whole work.
func Serve(ctx context.Context, d Dir, server Server) error {
	release, pid, err := hold(d.etcdLock(), time.Second)
	if errors.Is(err, errTaken) {
		return d.unfit("has a member that runs (process %d)", pid)
	}
	if err != nil {
		return d.unfit("cannot be locked: %v", err)
	}
	defer release()
	// A restore looks for a member that runs after it has prepared the data, so one of both sees the
	// other. The node takes the data over, and starts the member again.
	if d.prepared() {
		return errPrepared
	}
	run, err := d.running()
	if err != nil {
		return d.unfit("has no run.json: %v; \"allocator serve --etcd.inside\" writes it", err)
	}
	ahead(niceness)
	return server(ctx, run, d.Data(), func() { ahead(niceness) }) // the threads that came meanwhile
}
