package server

import (
	"context"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
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
		if full := s.take(&s.waits, client, "callers that wait for the watermark"); full != nil {
			return watermark.Answer{}, full
		}
		defer s.waits.Give(client)
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
	if full := s.take(&s.streams, client, "streams of the watermark"); full != nil {
		return full
	}
	defer s.streams.Give(client)
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

// take takes a place of a client, or returns the refusal, which is counted. what says what there are places for.
func (s *Service) take(p *access.Places[string], client, what string) *node.Refusal {
	if p.Take(client) {
		return nil
	}
	return s.issuer.Refused(&node.Refusal{Reason: node.RateLimited, RetryAfter: 5 * time.Second,
		Message: fmt.Sprintf("the node allows %d %s of a client, and %d in all: end some, or use another node",
			p.Each, what, p.All)})
}
