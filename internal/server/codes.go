package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/node"
)

// errorDomain is the domain of all reasons in gRPC's ErrorInfo: the project.
const errorDomain = "github.com/flakelease/allocator"

// problemTypes precedes a reason in the URI that names its problem type, which
// is where an operator reads about it.
const problemTypes = "https://" + errorDomain + "/blob/main/docs/OPERATIONS.md#"

// wire is how a reason looks outside.
type wire struct {
	reason pb.Reason
	grpc   codes.Code
	http   int
	title  string
	help   string // what the caller can do
}

// wires is the one map from reasons to the wire. A test holds it together with
// node.Reasons and the enum of the wire contract.
var wires = map[node.Reason]wire{
	node.Starting:        {pb.Reason_REASON_STARTING, codes.Unavailable, 503, "The node is starting", "Retry after the delay given, or ask another node."},
	node.Draining:        {pb.Reason_REASON_DRAINING, codes.Unavailable, 503, "The node is shutting down", "Ask another node."},
	node.NoSID:           {pb.Reason_REASON_NO_SID, codes.Unavailable, 503, "The node holds no sid", "Ask another node; this one takes a sid when one is free."},
	node.WindowExhausted: {pb.Reason_REASON_WINDOW_EXHAUSTED, codes.Unavailable, 503, "The reserved window is used up", "Retry after the delay given; etcd does not confirm new windows."},
	node.ClockSkew:       {pb.Reason_REASON_CLOCK_SKEW, codes.Unavailable, 503, "Clocks disagree", "Ask another node; this one resumes when clocks agree."},
	node.ClockUnverified: {pb.Reason_REASON_CLOCK_UNVERIFIED, codes.Unavailable, 503, "The node's clock is not confirmed", "Ask another node; this one resumes when its peers confirm its clock."},
	node.ClockRegression: {pb.Reason_REASON_CLOCK_REGRESSION, codes.Unavailable, 503, "The clock went back", "Retry after the delay given, or ask another node."},
	node.EntropyOverflow: {pb.Reason_REASON_ENTROPY_OVERFLOW, codes.ResourceExhausted, 429, "Demand ran ahead of the clock", "Retry after the delay given, or spread the load over more nodes."},
	node.AfterTooFar:     {pb.Reason_REASON_AFTER_TOO_FAR, codes.FailedPrecondition, 409, "The ID to follow lies in the future", "Retry if a delay is given; else the ID given as after is not of this space."},
	node.HistoryRewound:  {pb.Reason_REASON_HISTORY_REWOUND, codes.Unavailable, 503, "etcd's history went back", "An operator has to recover the space."},

	node.InvalidCount:  {pb.Reason_REASON_INVALID_COUNT, codes.InvalidArgument, 400, "The count is not allowed", "Ask for a count within the limit, in several requests if need be."},
	node.InvalidFormat: {pb.Reason_REASON_INVALID_FORMAT, codes.InvalidArgument, 400, "The request is malformed", "See GET /openapi.yaml."},
	node.InvalidID:     {pb.Reason_REASON_INVALID_ID, codes.InvalidArgument, 400, "The ID is malformed", "Give a flake, an integer, a ULID or a UUID of this space."},

	node.Unauthenticated:  {pb.Reason_REASON_UNAUTHENTICATED, codes.Unauthenticated, 401, "No valid credentials", "Send valid credentials."},
	node.PermissionDenied: {pb.Reason_REASON_PERMISSION_DENIED, codes.PermissionDenied, 403, "Not allowed", "Use credentials that allow this call."},
	node.RateLimited:      {pb.Reason_REASON_RATE_LIMITED, codes.ResourceExhausted, 429, "Too many requests", "Retry after the delay given, and ask for more IDs at a time."},
}

// statusOf returns a refusal as a gRPC status, with ErrorInfo, and RetryInfo
// where waiting helps. Errors that are no refusal come from the caller's
// context.
func statusOf(err error) error {
	r, ok := errors.AsType[*node.Refusal](err)
	if !ok {
		return status.FromContextError(err).Err()
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: string(r.Reason), Domain: errorDomain, Metadata: r.Metadata,
	}}
	if r.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)})
	}
	st, err := status.New(wires[r.Reason].grpc, r.Message).WithDetails(details...)
	if err != nil {
		panic(fmt.Sprintf("server: refusal %v has no wire form: %v", r, err))
	}
	return st.Err()
}

// refusalOf returns a refusal as it is sent within a stream.
func refusalOf(r *node.Refusal) *pb.Refusal {
	return &pb.Refusal{
		Reason:       wires[r.Reason].reason,
		Message:      r.Message,
		RetryAfterMs: millisUp(r.RetryAfter),
		Metadata:     r.Metadata,
	}
}

// millisUp rounds d up to whole milliseconds: a retry before its time would be
// refused again.
func millisUp(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// problem is the body of every HTTP error (RFC 9457).
type problem struct {
	Type         string            `json:"type"`
	Title        string            `json:"title"`
	Status       int               `json:"status"`
	Detail       string            `json:"detail"`
	Reason       node.Reason       `json:"reason,omitempty"` // absent where no request was recognised
	Metadata     map[string]string `json:"metadata,omitempty"`
	RetryAfterMs int64             `json:"retry_after_ms,omitempty"`
	Help         string            `json:"help,omitempty"`
}

// problemOf returns a refusal as an HTTP problem.
func problemOf(r *node.Refusal) problem {
	w := wires[r.Reason]
	return problem{
		Type:         problemTypes + string(r.Reason),
		Title:        w.title,
		Status:       w.http,
		Detail:       r.Message,
		Reason:       r.Reason,
		Metadata:     r.Metadata,
		RetryAfterMs: millisUp(r.RetryAfter),
		Help:         w.help,
	}
}

// write sends the problem. Clients that know Retry-After alone get whole
// seconds, rounded up.
func (p problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("server: problem %+v has no JSON form: %v", p, err))
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.RetryAfterMs > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMs+999)/1000, 10))
	}
	body = append(body, '\n')
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // nobody is left to tell
}
