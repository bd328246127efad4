package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/watermark"
)

// Marks returns what reads the watermark.
func (s *Service) Marks() *watermark.Reader { return s.marks }

// Watermark returns the watermark when it is above after, or as it is when wait has passed or
// the node stops. valid is called before it waits, if the request is a valid one. Of a client, some
// may wait at once.
//
// The error is a *node.Refusal, which is counted, or ctx's.
func (s *Service) Watermark(ctx context.Context, client string, after flake.ID, wait time.Duration,
	valid func()) (watermark.Answer, error) {
	if bad := s.marks.Check(after, wait); bad != nil {
		return watermark.Answer{}, s.issuer.Refused(bad)
	}
	if wait > 0 {
		if full := s.waits.take(client); full != nil {
			return watermark.Answer{}, s.issuer.Refused(full)
		}
		defer s.waits.give(client)
	}
	valid()
	a, err := s.marks.Wait(ctx, after, wait)
	return a, counted(s.issuer, err)
}

// WatchWatermark calls send with the watermark, and again when it changes and, with due, at each
// tick, until ctx ends or the node stops. The error is send's, a *node.Refusal, which is counted, or
// ctx's. A client may have some at once.
func (s *Service) WatchWatermark(ctx context.Context, client string, tick <-chan time.Time,
	send func(a *watermark.Shared, due bool) error) error {
	if full := s.streams.take(client); full != nil {
		return s.issuer.Refused(full)
	}
	defer s.streams.give(client)
	var last *watermark.Shared
	for due := true; ; {
		a, changed, err := s.marks.Watch()
		if err != nil {
			return counted(s.issuer, err)
		}
		if due || a.Differs(last) {
			if err := send(a, due); err != nil {
				return err
			}
			last, due = a, false
		}
		select {
		case <-changed:
		case <-tick:
			due = true
		case <-s.marks.Ended():
			return s.issuer.Refused(&node.Refusal{Reason: node.Draining,
				Message: "the node is stopping: use another node"})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ParseAfter returns the flake of an ID of the space in any form, or the refusal INVALID_ID,
// not counted yet.
func (s *Service) ParseAfter(text string) (flake.ID, *node.Refusal) {
	id, err := parseAfter(text, s.limits.Format)
	if err != nil {
		return 0, BadID("after: "+err.Error(), describe.Class(err))
	}
	return id, nil
}

// places bounds how many callers may have something at once: of one client, and of all.
type places struct {
	what      string
	each, all int

	mu    sync.Mutex // guards the rest
	taken int
	of    map[string]int // taken by a client
}

// take takes a place of a client, or returns the refusal.
func (p *places) take(client string) *node.Refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.all || p.of[client] >= p.each {
		return &node.Refusal{Reason: node.RateLimited, RetryAfter: 5 * time.Second,
			Message: fmt.Sprintf("the node allows %d %s of a client, and %d in all: end some, or use another node",
				p.each, p.what, p.all)}
	}
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.taken++
	p.of[client]++
	return nil
}

func (p *places) give(client string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[client]--; p.of[client] == 0 {
		delete(p.of, client)
	}
}
