package server

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/feed"
	"github.com/flakelease/allocator/internal/node"
)

// ErrorDomain is the domain of all reasons in gRPC's ErrorInfo, and part of the
// URIs of problem types in HTTP.
const ErrorDomain = "github.com/flakelease/allocator"

// Wire is the form of a reason in each protocol.
type Wire struct {
	Reason pb.Reason
	Code   codes.Code // of gRPC
	Status int        // of HTTP
	Title  string
	Help   string // what the caller can do
}

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
	case node.InvalidCount, node.InvalidFormat, node.InvalidID, node.Unauthenticated, node.PermissionDenied, node.RateLimited, node.WorkersOff, node.UnknownWorker:
		return false
	}
	return true
}

// wires is the one map from reasons to the wire. A test compares it with
// node.Reasons and with the enum of the proto file.
var wires = map[node.Reason]Wire{
	node.Starting:        {pb.Reason_REASON_STARTING, codes.Unavailable, 503, "The node is starting", "Retry after the delay, or try another node."},
	node.Draining:        {pb.Reason_REASON_DRAINING, codes.Unavailable, 503, "The node is draining", "Try another node."},
	node.NoSID:           {pb.Reason_REASON_NO_SID, codes.Unavailable, 503, "The node holds no sid", "Try another node; this node acquires a sid when one is free."},
	node.WindowExhausted: {pb.Reason_REASON_WINDOW_EXHAUSTED, codes.Unavailable, 503, "The reserved window is used up", "Retry after the delay, or try another node; etcd has not confirmed a new window."},
	node.ClockSkew:       {pb.Reason_REASON_CLOCK_SKEW, codes.Unavailable, 503, "Clocks disagree", "Try another node; this node resumes when its clock agrees with the others."},
	node.ClockUnverified: {pb.Reason_REASON_CLOCK_UNVERIFIED, codes.Unavailable, 503, "The node's clock is not confirmed", "Try another node; this node resumes when its peers confirm its clock."},
	node.ClockRegression: {pb.Reason_REASON_CLOCK_REGRESSION, codes.Unavailable, 503, "The clock went back", "Retry after the delay, or try another node."},
	node.EntropyOverflow: {pb.Reason_REASON_ENTROPY_OVERFLOW, codes.ResourceExhausted, 429, "More IDs were requested than the clock allows", "Retry after the delay, or use more nodes."},
	node.AfterTooFar:     {pb.Reason_REASON_AFTER_TOO_FAR, codes.FailedPrecondition, 409, "The ID given as after is too far ahead", "If the answer has a delay, retry after it. If not, the ID given as after is not of this space: correct it."},
	node.HistoryRewound:  {pb.Reason_REASON_HISTORY_REWOUND, codes.Unavailable, 503, "etcd's history went back", "Alert an operator, who has to recover the space."},

	node.InvalidCount:  {pb.Reason_REASON_INVALID_COUNT, codes.InvalidArgument, 400, "The count is not allowed", "Request a count within the limit; send several requests for more."},
	node.InvalidFormat: {pb.Reason_REASON_INVALID_FORMAT, codes.InvalidArgument, 400, "The request is malformed", "GET /openapi.yaml describes the requests."},
	node.InvalidID:     {pb.Reason_REASON_INVALID_ID, codes.InvalidArgument, 400, "The ID is malformed", "Send a flake, an integer, a ULID or a UUID of this space."},

	node.WorkersOff:      {pb.Reason_REASON_WORKERS_OFF, codes.FailedPrecondition, 409, "No sids are set aside for workers", "Tell the operator of the nodes, who sets worker.sid-range."},
	node.NoWorker:        {pb.Reason_REASON_NO_WORKER, codes.Unavailable, 503, "Every sid for workers is held", "Retry after the delay: a sid is free when its worker is released or its interval has passed."},
	node.UnknownWorker:   {pb.Reason_REASON_UNKNOWN_WORKER, codes.NotFound, 404, "The worker is not held", "Stop making IDs with its number at not_after, and acquire another worker."},
	node.WorkerQuota:     {pb.Reason_REASON_WORKER_QUOTA, codes.ResourceExhausted, 429, "The client holds as many workers as it may", "Release some, or have the operator of the nodes raise the quota."},
	node.CallerClock:     {pb.Reason_REASON_CALLER_CLOCK, codes.FailedPrecondition, 409, "The caller's clock is wrong", "Synchronize the clock of the machine that the worker runs on."},
	node.EtcdUnavailable: {pb.Reason_REASON_ETCD_UNAVAILABLE, codes.Unavailable, 503, "etcd did not answer in time", "Send the same call again, to any node: it finds what became of this one."},

	node.Unauthenticated:  {pb.Reason_REASON_UNAUTHENTICATED, codes.Unauthenticated, 401, "No valid credentials", "Send a token that the operator of the nodes gave you."},
	node.PermissionDenied: {pb.Reason_REASON_PERMISSION_DENIED, codes.PermissionDenied, 403, "Permission denied", "Use a token that has the scope of this call."},
	node.RateLimited:      {pb.Reason_REASON_RATE_LIMITED, codes.ResourceExhausted, 429, "Too many requests", "Retry after the delay, and request more IDs at a time."},
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
