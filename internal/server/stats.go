package server

import (
	"errors"
	"sync/atomic"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// Surface is one kind of request of one listener. It is a label of metrics, so the
// set is closed.
type Surface uint8

// The surfaces.
const (
	GRPCAllocate Surface = iota
	GRPCStream           // each request of a stream
	GRPCDescribe
	GRPCCluster
	GRPCDrain
	GRPCUndrain
	GRPCWorker // acquire, extend and release
	GRPCEvents
	GRPCOther // reflection, if it was refused
	HTTPIDs
	HTTPDecode
	HTTPCluster
	HTTPEvents
	HTTPWorker
	HTTPOther // openapi.yaml, and requests without a route
	RESPIDs
	RESPDecode
	RESPOther // all other commands, and unknown ones
	numSurfaces
)

var surfaceNames = [numSurfaces]string{
	"grpc_allocate", "grpc_stream", "grpc_describe", "grpc_cluster", "grpc_drain", "grpc_undrain", "grpc_worker", "grpc_events", "grpc_other",
	"http_ids", "http_decode", "http_cluster", "http_events", "http_worker", "http_other",
	"resp_ids", "resp_decode", "resp_other",
}

// String returns the surface's label.
func (s Surface) String() string { return surfaceNames[s] }

// Outcomes of requests besides the reasons of refusals.
const (
	outcomeOK       = "OK"
	outcomeCanceled = "CANCELED"  // the caller left, or its deadline passed: nothing was issued
	outcomeNotFound = "NOT_FOUND" // no such path, method or command
)

// outcomes lists every outcome: the three above, and the reasons.
var outcomes = func() []string {
	list := []string{outcomeOK, outcomeCanceled, outcomeNotFound}
	for _, r := range node.Reasons {
		list = append(list, string(r))
	}
	return list
}()

// numOutcomes is len(outcomes), as a constant for the array of counters.
const numOutcomes = 3 + 22

// stats counts requests. The zero value is ready, and safe for concurrent use.
type stats struct {
	counts [numSurfaces][numOutcomes]atomic.Int64
}

// outcomeOf returns the label of how a request ended.
func outcomeOf(err error) string {
	if err == nil {
		return outcomeOK
	}
	if r, ok := errors.AsType[*node.Refusal](err); ok {
		return string(r.Reason)
	}
	return outcomeCanceled
}

func (s *stats) add(on Surface, outcome string, n int) {
	for i, o := range outcomes {
		if o == outcome {
			s.counts[on][i].Add(int64(n))
			return
		}
	}
	panic("server: outcome " + outcome + " is not in the list")
}

// Count is how many requests of a surface had an outcome.
type Count struct {
	Surface  string
	Outcome  string // OK, CANCELED, NOT_FOUND, or the name of a reason
	Requests int64
}

// Stats returns the count of each surface and outcome, zeros included, always
// in the same order.
func (s *Service) Stats() []Count {
	list := make([]Count, 0, int(numSurfaces)*numOutcomes)
	for on := range numSurfaces {
		for i, o := range outcomes {
			list = append(list, Count{on.String(), o, s.stats.counts[on][i].Load()})
		}
	}
	return list
}

// Begin returns the time at which a request begins, for Done; zero if nobody
// observes.
func (s *Service) Begin() clock.Mono {
	if s.observe == nil {
		return 0
	}
	return s.node.Clock().Now().Mono
}

// Done counts a request that ended with err: nil, a *node.Refusal, or any other
// error for a caller that has left.
func (s *Service) Done(on Surface, err error, began clock.Mono) { s.done(on, outcomeOf(err), 1, began) }

// DoneAll counts n pipelined requests that began together and ended with err. Their
// duration is observed once, since they were one call of the node.
func (s *Service) DoneAll(on Surface, n int, err error, began clock.Mono) {
	s.done(on, outcomeOf(err), n, began)
}

// NotFound counts a request for a path, method or command that does not exist.
func (s *Service) NotFound(on Surface, began clock.Mono) { s.done(on, outcomeNotFound, 1, began) }

func (s *Service) done(on Surface, outcome string, n int, began clock.Mono) {
	s.stats.add(on, outcome, n)
	if s.observe != nil {
		s.observe(on.String(), s.node.Clock().Now().Mono.Sub(began))
	}
}
