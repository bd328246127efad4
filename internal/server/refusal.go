package server

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status/feed"
)

// ErrorDomain is the domain of all reasons in gRPC's ErrorInfo, and part of the
// URIs of problem types in HTTP.
const ErrorDomain = "github.com/flakelease/allocator"

// Wire is the form of a reason in each protocol.
type Wire struct {
	Code  codes.Code
	Title string
	Help  string // what the caller can do
}

// statuses are what HTTP has for the codes of gRPC.
var statuses = map[codes.Code]int{
	codes.InvalidArgument: 400, codes.Unauthenticated: 401, codes.PermissionDenied: 403, codes.NotFound: 404,
	codes.FailedPrecondition: 409, codes.ResourceExhausted: 429, codes.Unavailable: 503,
}

// Status returns HTTP's status.
func (w Wire) Status() int { return statuses[w.Code] }

// WireOf returns the form of a reason on the wire.
func WireOf(r node.Reason) Wire { return wires[r] }

// Valid reports whether a request that ended with err was one that its caller may make
// and that was not malformed: the node answered it, or refused it for reasons of its own.
func Valid(err error) bool {
	if err == nil {
		return true
	}
	r, ok := errors.AsType[*node.Refusal](err)
	if !ok {
		return false
	}
	switch r.Reason {
	case node.InvalidCount, node.InvalidFormat, node.InvalidID, node.Unauthenticated, node.PermissionDenied,
		node.RateLimited, node.WorkersOff, node.UnknownWorker:
		return false
	}
	return true
}

// wires is what the protocols make of each reason.
var wires = [node.NumReasons]Wire{
	node.Starting: {
		Code:  codes.Unavailable,
		Title: "The node is starting",
		Help:  "Retry after the delay, or try another node.",
	},
	node.Draining: {
		Code:  codes.Unavailable,
		Title: "The node is draining",
		Help:  "Try another node.",
	},
	node.NoSID: {
		Code:  codes.Unavailable,
		Title: "The node holds no sid",
		Help:  "Try another node; this node acquires a sid when one is free.",
	},
	node.WindowExhausted: {
		Code:  codes.Unavailable,
		Title: "The reserved window is used up",
		Help:  "Retry after the delay, or try another node; etcd has not confirmed a new window.",
	},
	node.ClockSkew: {
		Code:  codes.Unavailable,
		Title: "Clocks disagree",
		Help:  "Try another node; this node resumes when its clock agrees with the others.",
	},
	node.ClockUnverified: {
		Code:  codes.Unavailable,
		Title: "The node's clock is not confirmed",
		Help:  "Try another node; this node resumes when its peers confirm its clock.",
	},
	node.ClockRegression: {
		Code:  codes.Unavailable,
		Title: "The clock went back",
		Help:  "Retry after the delay, or try another node.",
	},
	node.EntropyOverflow: {
		Code:  codes.ResourceExhausted,
		Title: "More IDs were requested than the clock allows",
		Help:  "Retry after the delay, or use more nodes.",
	},
	node.AfterTooFar: {
		Code:  codes.FailedPrecondition,
		Title: "The ID given as after is too far ahead",
		Help: "If the answer has a delay, retry after it. If not, the ID given as after is not of this space: " +
			"correct it.",
	},
	node.HistoryRewound: {
		Code:  codes.Unavailable,
		Title: "etcd's history went back",
		Help:  "Alert an operator, who has to recover the space.",
	},
	node.InvalidCount: {
		Code:  codes.InvalidArgument,
		Title: "The count is not allowed",
		Help:  "Request a count within the limit; send several requests for more.",
	},
	node.InvalidFormat: {
		Code:  codes.InvalidArgument,
		Title: "The request is malformed",
		Help:  "GET /openapi.yaml describes the requests.",
	},
	node.InvalidID: {
		Code:  codes.InvalidArgument,
		Title: "The ID is malformed",
		Help:  "Send a flake, an integer, a ULID or a UUID of this space.",
	},
	node.WorkersOff: {
		Code:  codes.FailedPrecondition,
		Title: "No sids are set aside for workers",
		Help:  "Tell the operator of the nodes, who sets worker.sid-range.",
	},
	node.NoWorker: {
		Code:  codes.Unavailable,
		Title: "Every sid for workers is held",
		Help:  "Retry after the delay: a sid is free when its worker is released or its interval has passed.",
	},
	node.UnknownWorker: {
		Code:  codes.NotFound,
		Title: "The worker is not held",
		Help:  "Stop making IDs with its number at not_after, and acquire another worker.",
	},
	node.WorkerQuota: {
		Code:  codes.ResourceExhausted,
		Title: "The client holds as many workers as it may",
		Help:  "Release some, or have the operator of the nodes raise the quota.",
	},
	node.CallerClock: {
		Code:  codes.FailedPrecondition,
		Title: "The caller's clock is wrong",
		Help:  "Synchronize the clock of the machine that the worker runs on.",
	},
	node.EtcdUnavailable: {
		Code:  codes.Unavailable,
		Title: "etcd did not answer in time",
		Help:  "Send the same call again, to any node: it finds what became of this one.",
	},
	node.NoNode: {
		Code:  codes.Unavailable,
		Title: "The agent reaches no node",
		Help:  "Retry after the delay; the agent tries all nodes that it was given.",
	},
	node.Unauthenticated: {
		Code:  codes.Unauthenticated,
		Title: "No valid credentials",
		Help:  "Send a token that the operator of the nodes gave you.",
	},
	node.PermissionDenied: {
		Code:  codes.PermissionDenied,
		Title: "Permission denied",
		Help:  "Use a token that has the scope of this call.",
	},
	node.RateLimited: {
		Code:  codes.ResourceExhausted,
		Title: "Too many requests",
		Help:  "Retry after the delay, and request more IDs at a time.",
	},
}

// MillisUp rounds d up to whole milliseconds: a retry before its time would be
// refused again.
func MillisUp(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// StreamRefusal returns the refusal for an error of feed.Open.
func StreamRefusal(err error) *node.Refusal {
	if errors.Is(err, feed.ErrFull) {
		return &node.Refusal{Reason: node.RateLimited, RetryAfter: 5 * time.Second,
			Message: "the node has as many streams of events as it allows: close some, or use another node"}
	}
	return &node.Refusal{Reason: node.Draining, Message: "the node is stopping: use another node"}
}
