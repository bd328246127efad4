package broker

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// listFresh is for how long a list of the space serves acquisitions. An old one costs
// an attempt: every write compares.
const listFresh = time.Second

// list is the space as last listed, for all calls together. Any number of acquisitions
// reads the space a few times a second.
type list struct {
	load func() (lease.View, error)
	now  func() clock.Mono

	mu    sync.Mutex // guards the rest
	view  lease.View // shared with calls: its map is replaced, never written
	at    clock.Mono // when the read of view began
	read  bool       // there is a view
	under *reading   // the read under way; nil: none
	next  *reading   // that begins when that ends; nil: nobody waits for one
}

// reading is one read of the space.
type reading struct {
	done chan struct{} // closed when view and err are set
	view lease.View
	err  error
}

// get returns the space: as last listed, or with fresh by a read that begins after the
// call of get.
func (l *list) get(ctx context.Context, fresh bool) (lease.View, error) {
	l.mu.Lock()
	if !fresh && l.read && l.now().Sub(l.at) < listFresh {
		defer l.mu.Unlock()
		return l.view, nil
	}
	r := l.under
	if fresh || r == nil {
		if l.next == nil {
			l.next = &reading{done: make(chan struct{})}
		}
		r = l.next
		if l.under == nil {
			l.begin()
		}
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.view, r.err
	case <-ctx.Done():
		return lease.View{}, ctx.Err()
	}
}

// begin starts the read that is waited for. mu is held.
func (l *list) begin() {
	r, began := l.next, l.now()
	l.under, l.next = r, nil
	go func() {
		r.view, r.err = l.load()
		l.mu.Lock()
		defer l.mu.Unlock()
		close(r.done)
		if l.under = nil; r.err == nil {
			l.view, l.at, l.read = r.view, began, true
		}
		if l.next != nil {
			l.begin()
		}
	}()
}

// note brings the list up to date with the answer to a write.
func (l *list) note(sid flake.SID, v lease.View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.read || v.Revision <= l.view.Revision {
		return
	}
	l.view.SIDs = maps.Clone(l.view.SIDs)
	l.view.SIDs[sid] = v.SIDs[sid]
}
