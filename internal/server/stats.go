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
	GRPCWatermark // its streams too
	GRPCOther     // reflection, if it was refused
	HTTPIDs
	HTTPDecode
	HTTPCluster
	HTTPEvents
	HTTPWatermark
	HTTPWorker
	HTTPOther // openapi.yaml, and requests without a route
	RESPIDs
	RESPDecode
	RESPOther // all other commands, and unknown ones
	numSurfaces
)

var surfaceNames = [numSurfaces]string{
	"grpc_allocate", "grpc_stream", "grpc_describe", "grpc_cluster", "grpc_drain", "grpc_undrain", "grpc_worker",
	"grpc_events", "grpc_watermark", "grpc_other",
	"http_ids", "http_decode", "http_cluster", "http_events", "http_watermark", "http_worker", "http_other",
	"resp_ids", "resp_decode", "resp_other",
}

// Surfaces returns the labels of all surfaces.
func Surfaces() []string { return surfaceNames[:] }

// Issuing returns the labels of the surfaces whose requests are for IDs.
func Issuing() []string {
	return []string{GRPCAllocate.String(), GRPCStream.String(), HTTPIDs.String(), RESPIDs.String()}
}

// String returns the surface's label.
func (s Surface) String() string { return surfaceNames[s] }

// outcome is how a request ended: the reason of its refusal, 0 if it was answered, or
// one of the two below.
type outcome int

const (
	answered outcome = 0
	// canceled: the caller left, or its deadline passed. Nothing was issued.
	canceled = outcome(node.NumReasons)
	// notFound: there is no such path, method or command.
	notFound = canceled + 1

	numOutcomes = int(notFound) + 1
)

// String returns the outcome's label.
func (o outcome) String() string {
	switch o {
	case answered:
		return "OK"
	case canceled:
		return "CANCELED"
	case notFound:
		return "NOT_FOUND"
	}
	return node.Reason(o).String()
}

// stats counts requests. The zero value is ready, and safe for concurrent use.
type stats struct {
	counts [numSurfaces][numOutcomes]atomic.Int64
}

// outcomeOf returns how a request with err ended.
func outcomeOf(err error) outcome {
	if err == nil {
		return answered
	}
	if r, ok := errors.AsType[*node.Refusal](err); ok {
		return outcome(r.Reason)
	}
	return canceled
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
		for o := range outcome(numOutcomes) {
			list = append(list, Count{on.String(), o.String(), s.stats.counts[on][o].Load()})
		}
	}
	return list
}

// Begin returns the time at which a request begins, for Done; zero if nobody
// observes.
func (s *Service) Begin() clock.Mono {
	if s.cfg.Observe == nil {
		return 0
	}
	return s.issuer.Clock().Now().Mono
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
func (s *Service) NotFound(on Surface, began clock.Mono) { s.done(on, notFound, 1, began) }

func (s *Service) done(on Surface, o outcome, n int, began clock.Mono) {
	s.stats.counts[on][o].Add(int64(n))
	if s.cfg.Observe != nil {
		s.cfg.Observe(on.String(), s.issuer.Clock().Now().Mono.Sub(began))
	}
}
