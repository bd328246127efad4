// Package load sends allocation requests to nodes, measures them and checks the
// IDs that come back.
//
// It serves the benchmarks and the chaos harness. A Client is one way to ask: by gRPC, by a
// gRPC stream, by HTTP, by the Redis protocol, by the Go SDK, or by any function. A Worker
// is one caller: it sends one request at a time to its targets. A Run is the workers
// together, in a closed loop or at a fixed rate, with a histogram of latencies and a check
// of the IDs.
//
// Outcomes are distinguished by error: a *client.Refusal means that nothing was
// issued, ErrContract that an answer is not what the API promises, and after any
// other error it is unknown whether IDs were issued.
package load

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// ErrContract is wrapped by errors about answers that break the API's contract:
// of another size than requested, not in one block, or not in order.
var ErrContract = errors.New("broken contract")

// Request is one allocation request.
type Request struct {
	Count int
	After flake.ID // IDs have to be greater; 0: any will do
}

// Client sends requests. One goroutine uses it at a time, except for a client of
// the SDK, which workers may share.
type Client interface {
	// Allocate returns a block of r.Count IDs. Its Stride is 0 where the answer is
	// a single ID whose layout is not known, and Node is empty where the answer
	// does not name it.
	Allocate(ctx context.Context, r Request) (client.Block, error)
	Close()
}

// Func is a Client that needs no closing.
type Func func(context.Context, Request) (client.Block, error)

// Allocate calls f.
func (f Func) Allocate(ctx context.Context, r Request) (client.Block, error) { return f(ctx, r) }

// Close does nothing.
func (Func) Close() {}

// Outcome is the class of a request's result.
type Outcome uint8

// The outcomes.
const (
	OK      Outcome = iota // IDs came
	Refused                // nothing was issued
	Broken                 // the answer breaks the contract
	Unknown                // there is no answer: IDs may have been issued
)

// OutcomeOf returns the class of an error, and a reason: a refusal's, or one of
// "timeout", "canceled" and "connection".
func OutcomeOf(err error) (Outcome, string) {
	if err == nil {
		return OK, ""
	}
	if r, ok := errors.AsType[*client.Refusal](err); ok {
		return Refused, string(r.Reason)
	}
	code := status.Code(err)
	switch {
	case errors.Is(err, ErrContract):
		return Broken, ErrContract.Error()
	case errors.Is(err, context.DeadlineExceeded) || code == codes.DeadlineExceeded:
		return Unknown, "timeout"
	case errors.Is(err, context.Canceled) || code == codes.Canceled:
		return Unknown, "canceled"
	}
	return Unknown, "connection"
}
