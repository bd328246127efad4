package server

import (
	"sync/atomic"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// Surface is a way to ask: a closed set, so that it can be a metric's label.
type Surface uint8

// The surfaces.
const (
	GRPCAllocate Surface = iota
	GRPCStream           // each request of a stream
	GRPCDescribe
	GRPCCluster
	GRPCDrain
	GRPCOther // reflection, where it is refused
	HTTPIDs
	HTTPDecode
	HTTPCluster
	HTTPOther // openapi.yaml, and routes that do not exist
	RESPIDs
	RESPDecode
	RESPOther // all other commands, and those that do not exist
	numSurfaces
)

var surfaceNames = [numSurfaces]string{
	"grpc_allocate", "grpc_stream", "grpc_describe", "grpc_cluster", "grpc_drain", "grpc_other",
	"http_ids", "http_decode", "http_cluster", "http_other",
	"resp_ids", "resp_decode", "resp_other",
}

// String returns the surface's label.
func (s Surface) String() string { return surfaceNames[s] }

// Outcomes of requests that no reason covers.
const (
	outcomeOK       = "OK"
	outcomeCanceled = "CANCELED"  // the caller left or its deadline passed: nothing was issued
	outcomeNoRoute  = "NOT_FOUND" // no such path, method or command
)

// outcomes lists every label of an outcome: the reasons, and the three above.
var outcomes = func() []string {
	list := []string{outcomeOK, outcomeCanceled, outcomeNoRoute}
	for _, r := range node.Reasons {
		list = append(list, string(r))
	}
	return list
}()

// numOutcomes is len(outcomes), as a constant for the counters.
const numOutcomes = 3 + 16

// stats counts requests. The zero value is ready, and safe for concurrent use.
type stats struct {
	counts [numSurfaces][numOutcomes]atomic.Int64
}

func (s *stats) add(on Surface, outcome string) { s.addN(on, outcome, 1) }

func (s *stats) addN(on Surface, outcome string, n int64) {
	for i, o := range outcomes {
		if o == outcome {
			s.counts[on][i].Add(n)
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
func (s *Server) Stats() []Count {
	list := make([]Count, 0, int(numSurfaces)*numOutcomes)
	for on := range numSurfaces {
		for i, o := range outcomes {
			list = append(list, Count{on.String(), o, s.stats.counts[on][i].Load()})
		}
	}
	return list
}

// began returns the time a request began, for done; zero if nobody observes.
func (s *Server) began() clock.Mono {
	if s.cfg.Observe == nil {
		return 0
	}
	return s.clock.Now().Mono
}

// done counts a request that ended with outcome.
func (s *Server) done(on Surface, outcome string, began clock.Mono) {
	s.stats.add(on, outcome)
	if s.cfg.Observe != nil {
		s.cfg.Observe(on.String(), s.clock.Now().Mono.Sub(began))
	}
}
