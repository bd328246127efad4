package server

import (
	"context"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
	"github.com/flakelease/allocator/internal/worker/broker"
)

// Workers serves the calls of workers; what it gets comes from a listener, which has
// admitted the caller with the scope Worker. Errors are *node.Refusals, which are counted,
// or ctx's.
type Workers struct{ s *Service }

// Acquire takes a sid for a worker. The request says Name, Secret, Clock and TellsFloor.
func (w Workers) Acquire(ctx context.Context, c access.Caller, req worker.Acquire) (worker.Worker, error) {
	switch err := worker.CheckName(req.Name); {
	case err != nil:
		return worker.Worker{}, w.invalid(err)
	case req.Clock < 0:
		return worker.Worker{}, w.negative("clock_unix_ms")
	}
	if req.Secret != "" {
		if err := worker.CheckSecret(req.Secret); err != nil {
			return worker.Worker{}, w.invalid(err)
		}
	}
	got, err := w.s.cfg.Broker.Acquire(ctx, w.client(c), req)
	return got, counted(w.s.issuer, err)
}

// Extend extends a worker. id, unless it is empty, has to be that of the handle. The request
// says NotAfter and Floor.
func (w Workers) Extend(ctx context.Context, c access.Caller, id, handle string,
	req worker.Extend) (worker.Worker, error) {
	h, err := w.handle(id, handle)
	switch {
	case err != nil:
		return worker.Worker{}, err
	case req.NotAfter < 0:
		return worker.Worker{}, w.negative("not_after_unix_ms")
	case req.Floor < 0:
		return worker.Worker{}, w.negative("floor_unix_ms")
	}
	req.Handle = h
	got, err := w.s.cfg.Broker.Extend(ctx, w.client(c), req)
	return got, counted(w.s.issuer, err)
}

// Release gives a worker back, and returns from when on its number can be used again.
func (w Workers) Release(ctx context.Context, c access.Caller, id, handle string,
	usedUntilMs int64) (clock.Millis, error) {
	h, err := w.handle(id, handle)
	if err != nil {
		return 0, err
	}
	if usedUntilMs < 0 {
		return 0, w.negative("used_until_unix_ms")
	}
	reusable, err := w.s.cfg.Broker.Release(ctx, w.client(c), h, clock.Millis(usedUntilMs))
	return reusable, counted(w.s.issuer, err)
}

func (w Workers) handle(id, text string) (worker.Handle, error) {
	h, err := worker.ParseHandle(text)
	if err == nil && id != "" && h.ID() != id {
		err = worker.ErrID
	}
	if err != nil {
		return worker.Handle{}, w.invalid(err)
	}
	return h, nil
}

func (w Workers) client(c access.Caller) broker.Client {
	return broker.Client{Owner: c.Owner(), Quota: w.s.cfg.Guard.Workers(c, w.s.cfg.WorkersPerClient)}
}

// invalid returns the refusal of a request that is wrong. Nothing of a secret is in it.
func (w Workers) invalid(err error) error { return w.s.issuer.Refused(Malformed("%v", err)) }

// negative returns the refusal of a request with a time that is negative.
func (w Workers) negative(name string) error {
	return w.s.issuer.Refused(Malformed("%s is negative: send Unix milliseconds, or 0", name))
}

// counted counts a refusal that i did not decide, and returns err.
func counted(i Issuer, err error) error {
	if r, ok := err.(*node.Refusal); ok {
		return i.Refused(r)
	}
	return err
}
