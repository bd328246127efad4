// Package session keeps a node's etcd lease, with the node's registration on it.
//
// A session is in one of three states:
//
//	none ────────granted──────▶ registered ──deleted──▶ unregistered
//	 ▲                             │  ▲                   │   │
//	 │                             │  └────registered─────┘   │
//	 └────────gone, revoked────────┴──────────────────────────┘
//
// In none it asks for a lease, once the space is known; in registered it renews
// the lease; in unregistered it puts the registration on the lease again. One request is
// outstanding at most.
//
// A holder's key is on the lease too. Uniqueness never depends on the lease: a node whose
// lease is gone issues on, and takes another lease.
package session

import (
	"errors"
	"fmt"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

type state uint8

const (
	none state = iota
	registered
	unregistered
)

// Session is the lease of one process. It is owned by one goroutine.
type Session struct {
	cfg   lease.Config
	state state
	id    lease.LeaseID // It is 0 in none.
	// until is the end of the lease if it is never renewed.
	until clock.Mono
	// sent is when a lease or a renewal was last asked for. No request is sent before next,
	// or while one is outstanding, when busy is set.
	sent    clock.Mono
	next    clock.Mono
	busy    bool
	retries lease.Retries
}

// New returns a session in state none.
func New(cfg lease.Config) Session { return Session{cfg: cfg} }

// ID returns the lease, or 0 in none.
func (s *Session) ID() lease.LeaseID { return s.id }

// Until returns when the lease ends if it is never renewed. It counts from when the
// latest renewal was sent, since the store may have acted at any time since.
func (s *Session) Until() clock.Mono { return s.until }

// Busy reports whether a request is outstanding.
func (s *Session) Busy() bool { return s.busy }

// Next returns the request to send at now, or nil. known says that the store has the
// space that this node is configured for: before, no lease is taken.
func (s *Session) Next(now clock.Mono, known bool) lease.Action {
	var a lease.Action
	switch {
	case s.busy || now < s.next:
		return nil
	case s.state == unregistered:
		s.busy = true
		return lease.Register{Lease: s.id, TTL: s.cfg.TTL, Registration: s.cfg.Registration}
	case s.state == registered:
		a = lease.KeepAlive{Lease: s.id}
	case known:
		a = lease.Register{TTL: s.cfg.TTL, Registration: s.cfg.Registration}
	default:
		s.next = now.Add(lease.SlowRetry)
		return nil
	}
	s.busy, s.sent = true, now
	return a
}

// End returns the request that ends the session, or nil. done says that it has ended.
func (s *Session) End() (a lease.Action, done bool) {
	if s.busy || s.state == none {
		return nil, !s.busy
	}
	s.busy = true
	return lease.Revoke{Lease: s.id}, false
}

// Answered takes the answer to the outstanding request: a Registered, KeptAlive or
// Revoked. A node that holds a sid retries sooner.
//
// It returns lease.ErrLeaseGone if the lease was found gone, and an error for people if
// the node is not registered and could not be.
func (s *Session) Answered(now clock.Mono, ev lease.Event, holds bool) error {
	s.busy = false
	switch ev := ev.(type) {
	case lease.Registered:
		switch {
		case errors.Is(ev.Err, lease.ErrLeaseGone): // The answer to a write may have shown it before.
			s.Gone(now)
			return lease.ErrLeaseGone
		case ev.Err != nil:
			most := lease.SlowestRetry
			if holds {
				most = lease.SlowRetry
			}
			s.next = now.Add(s.retries.Pause(s.cfg.RetryAfter, most, s.cfg.Jitter))
			return fmt.Errorf("registration in etcd failed: %w", ev.Err)
		case s.state == none:
			s.id = ev.Lease
			s.renewed(now)
		default: // It was put on the lease that there is, which is not renewed by that.
			s.next = now
		}
		s.state, s.retries = registered, lease.Retries{}
	case lease.KeptAlive:
		switch {
		case errors.Is(ev.Err, lease.ErrLeaseGone):
			s.Gone(now)
			return lease.ErrLeaseGone
		case ev.Err != nil:
			s.next = now.Add(s.cfg.RetryAfter)
		default:
			s.renewed(now)
		}
	case lease.Revoked: // A lease that could not be revoked expires by itself.
		s.state, s.id = none, 0
	}
	return nil
}

func (s *Session) renewed(now clock.Mono) {
	s.until = s.sent.Add(s.cfg.TTL)
	s.next = max(now, s.sent.Add(s.cfg.KeepAliveEvery))
}

// Gone notes that the lease has ended, and every key on it: another is taken at once.
func (s *Session) Gone(now clock.Mono) { s.state, s.id, s.next = none, 0, now }

// Hurry has the next request sent at once: the space was found to be the configured one.
func (s *Session) Hurry(now clock.Mono) { s.next = now }

// Listed notes who was registered in a list that was asked for while the session's lease
// was asked: 0 for none. If that is the present lease and this process is not among them,
// somebody deleted the registration. Peers count who is registered, and so must find this
// process there.
func (s *Session) Listed(now clock.Mono, asked lease.LeaseID, missing bool) {
	if missing && s.state != none && asked == s.id {
		s.state, s.next = unregistered, now
	}
}

// Wake returns when the session next wants to send a request, if none is outstanding.
func (s *Session) Wake() clock.Mono { return s.next }
