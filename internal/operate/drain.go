package operate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// drainTimeout bounds a drain: the release of the sid is a write and a revoke, each with
// retries.
const drainTimeout = 15 * time.Second

// Errors of a drain.
var (
	// ErrUndone: an Undrain ended the drain.
	ErrUndone = errors.New("the drain was undone by another call before it ended")
	// ErrStopping: the node stops, and is drained for good.
	ErrStopping = errors.New("the node is stopping: start it again")
	// ErrNotReleased: the node refuses requests, and its sid may not be released.
	ErrNotReleased = errors.New("the node refuses requests now")
)

// DrainConfig is what a Drainer needs. All fields are required.
type DrainConfig struct {
	Node *node.Node
	// Release gives the node's sid back, and keeps it from acquiring another. The node
	// refuses requests by then. It returns when etcd has confirmed that, or at once if the
	// node holds no sid, and may be called again.
	Release func(context.Context) error
	// Resume lets the node acquire a sid again.
	Resume func()
	// Window reads a sid's record from etcd.
	Window func(context.Context, flake.SID) (lease.Entry[lease.Window], error)
}

// Drainer takes a node out of service and puts it back. All methods are safe for
// concurrent use.
type Drainer struct {
	cfg    DrainConfig
	drains singleflight.Group
	change sync.Mutex // A drain and an undrain hold it: they are one after the other.

	mu       sync.Mutex // guards the rest
	draining chan struct{}
	stopping bool
	before   *lease.Status      // at the first drain
	giveUp   context.CancelFunc // ends the latest drain
}

// NewDrainer returns a Drainer of a node in service.
func NewDrainer(cfg DrainConfig) *Drainer { return &Drainer{cfg: cfg, draining: make(chan struct{})} }

// Draining returns the channel that is closed when the node begins to drain. After an
// Undrain there is another one.
func (d *Drainer) Draining() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.draining
}

// Stop makes the node refuse every later request for good. Requests accepted before are
// finished; the caller stops the listeners.
func (d *Drainer) Stop() {
	d.mu.Lock()
	d.stopping = true
	d.mu.Unlock()
	d.refuse()
}

// Drained is the state after a drain, as etcd has it.
type Drained struct {
	Held     bool // The node held a sid at the first drain. Else the fields of it are zero.
	SID      flake.SID
	Term     int64
	Released bool
	Ceil     clock.Millis // 0 if another node holds the sid by now.
	Issued   int64        // IDs of the process
}

// Drain makes the node refuse, and gives its sid back. Concurrent calls share one drain. It
// goes on when the callers leave, so that no drain stops halfway. The node stays drained,
// whatever is returned, until Undrain.
//
// It returns ErrNotReleased, ErrUndone, or the error of ctx.
func (d *Drainer) Drain(ctx context.Context) (Drained, error) {
	result := d.drains.DoChan("", func() (any, error) {
		d.change.Lock()
		defer d.change.Unlock()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		before := d.begin(cancel)
		d.refuse() // First: a window cannot be released while IDs are issued from it.
		err := d.cfg.Release(ctx)
		switch {
		case context.Cause(ctx) == context.Canceled:
			return Drained{}, ErrUndone
		case err != nil:
			return Drained{}, fmt.Errorf("%w, but the release of its sid failed: %v; stop the process, or wait for "+
				"its lease to expire", ErrNotReleased, err)
		}
		return d.after(ctx, before)
	})
	select {
	case r := <-result:
		return r.Val.(Drained), r.Err
	case <-ctx.Done():
		return Drained{}, ctx.Err()
	}
}

// begin returns the state at the first drain, and keeps what ends this one.
func (d *Drainer) begin(giveUp context.CancelFunc) lease.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.giveUp = giveUp
	if d.before == nil {
		before := d.cfg.Node.Stats().Lease
		d.before = &before
	}
	return *d.before
}

// after returns the state in etcd, which is what the next holder reads.
func (d *Drainer) after(ctx context.Context, before lease.Status) (Drained, error) {
	out := Drained{Issued: d.cfg.Node.Stats().Issued}
	if !before.Held {
		return out, nil
	}
	out.Held, out.SID, out.Term = true, before.Grant.SID, before.Grant.Term
	w, err := d.cfg.Window(ctx, before.Grant.SID)
	if err != nil {
		return out, fmt.Errorf("%w, but whether its sid %d was released is unknown: the read from etcd failed: %v; "+
			"drain it again", ErrNotReleased, before.Grant.SID, err)
	}
	switch {
	case w.Err != nil || !w.Exists():
	case w.Value.Term > before.Grant.Term: // Another holder has acquired it since.
		out.Released = true
	case w.Value.Term == before.Grant.Term && w.Value.Instance == d.cfg.Node.Config().Instance &&
		w.Value.State == lease.Released:
		out.Released, out.Ceil = true, w.Value.Ceil
	}
	return out, nil
}

// Undrain undoes Drain, and ends one that is under way. It reports whether the node was
// drained. It returns ErrStopping.
func (d *Drainer) Undrain() (was bool, err error) {
	d.mu.Lock()
	if d.giveUp != nil && !d.stopping {
		d.giveUp()
	}
	d.mu.Unlock()
	d.change.Lock() // A drain has ended.
	defer d.change.Unlock()
	was = d.cfg.Node.Stats().Draining
	if !d.readmit() {
		return false, ErrStopping
	}
	if was {
		d.cfg.Resume()
	}
	return was, nil
}

// refuse makes the node refuse, until readmit.
func (d *Drainer) refuse() {
	d.cfg.Node.Drain()
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.draining:
	default:
		close(d.draining)
	}
}

// readmit undoes refuse, unless the node stops.
func (d *Drainer) readmit() (ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return false
	}
	select {
	case <-d.draining:
		d.draining = make(chan struct{})
	default:
	}
	d.before = nil
	d.cfg.Node.Undrain()
	return true
}
