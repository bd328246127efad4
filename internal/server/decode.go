package server

import (
	"context"
	"errors"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

const (
	// holderTimeout bounds the read of the ledger: an ID is decoded without it
	// rather than late.
	holderTimeout = time.Second
	// maxLookups is how many reads of the ledger may be under way, so that
	// decoding cannot keep etcd from its work.
	maxLookups = 16
)

// decoded is an ID taken apart, with what the ledger says about it.
type decoded struct {
	id       describe.ID
	flake    flake.ID // if hasFlake
	hasFlake bool
	parts    describe.Description
	holder   *lease.LedgerLine // nil: the ledger does not say, or could not be read
	problem  string            // why it could not be read
}

// describe decodes the text of an ID. The error is a *node.Refusal, INVALID_ID
// with the class of the mistake or INVALID_FORMAT for an unknown kind, or ctx's.
func (s *Server) describe(ctx context.Context, text, kind string) (decoded, error) {
	k, err := describe.ParseKind(kind)
	if err != nil {
		return decoded{}, s.refused(node.InvalidFormat, err.Error(), map[string]string{"class": describe.Class(err)})
	}
	id, err := describe.Parse(text, k, s.format)
	if err != nil {
		return decoded{}, s.badID(err)
	}
	d := decoded{id: id, parts: describe.Describe(id, s.format)}
	d.flake, err = id.AsFlake(s.format.Epoch)
	if d.hasFlake = err == nil; !d.hasFlake || s.format.Layout.SIDBits() == 0 {
		return d, nil // of another origin, or nobody held a sid
	}
	d.holder, d.problem = s.holder(ctx, d.flake)
	return d, ctx.Err()
}

// badID refuses a text that is no ID.
func (s *Server) badID(err error) *node.Refusal {
	return s.refused(node.InvalidID, err.Error(), map[string]string{"class": describe.Class(err)})
}

// holder returns the line of the ledger that covers id, nil if there is none,
// or else why that is not known.
func (s *Server) holder(ctx context.Context, id flake.ID) (*lease.LedgerLine, string) {
	select {
	case s.lookups <- struct{}{}:
		defer func() { <-s.lookups }()
	default:
		return nil, "too many reads of the ledger are under way"
	}
	ctx, cancel := context.WithTimeout(ctx, holderTimeout)
	defer cancel()
	t, found, err := s.cfg.Directory.Holder(ctx, s.format.SID(id), clock.Millis(s.format.UnixMilli(id)))
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, "the ledger could not be read in time"
	case err != nil:
		s.log.Warn("read of the ledger failed", "sid", s.format.SID(id), "error", err)
		return nil, "the ledger could not be read"
	case !found:
		return nil, ""
	}
	return &t, ""
}
