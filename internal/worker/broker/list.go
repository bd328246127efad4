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

	mu sync.Mutex // It guards the rest.
	// If read is set there is a view, of which the read began at that time. Calls share it:
	// its map is replaced, never written.
	view lease.View
	at   clock.Mono
	read bool
	// under is the read under way, and next the one that begins when that ends. They are
	// nil if there is none, and if nobody waits for one.
	under *reading
	next  *reading
}

// reading is one read of the space. done is closed when view and err are set.
type reading struct {
	done chan struct{}
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
