package keeper

import (
	"context"
	"sync"

	"github.com/flakelease/allocator/internal/lease"
)

// mostWatched is how many reports and changes wait for the loop. With more, what
// waits is dropped, and the machine reads everything again.
const mostWatched = 4096

// watched has the reports of the watch that the loop has not taken yet. signal has room
// for one element, which is there while there is something to take.
type watched struct {
	signal chan struct{}

	mu sync.Mutex // It guards all below.
	// waiting has lease.Watched alone: as many reports and changes in them as size says.
	waiting []lease.Event
	size    int
	// stop ends the watch under way. It is nil without one.
	stop context.CancelFunc
}

// watch keeps a watch open until ctx ends.
func (k *Keeper) watch(ctx context.Context) {
	for ctx.Err() == nil {
		one, stop := context.WithCancel(ctx)
		k.watched.mu.Lock()
		k.watched.stop = stop
		k.watched.mu.Unlock()
		_ = k.cfg.Store.Watch(one, k.cfg.Machine.ProgressEvery(), k.watched.add)
		stop()
	}
}

func (w *watched) add(ev lease.Watched) {
	w.mu.Lock()
	if w.size += 1 + len(ev.Changes); w.size > mostWatched {
		// The rest of the watch is whole from here on.
		ev, w.waiting, w.size = lease.Watched{Opened: true, Revision: ev.Revision}, nil, 1
	}
	w.waiting = append(w.waiting, ev)
	w.mu.Unlock()
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (w *watched) take() []lease.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.waiting
	w.waiting, w.size = nil, 0
	return out
}

// restart has the watch opened again.
func (w *watched) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.stop()
	}
}
