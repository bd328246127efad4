package client

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

// Reason is why a node refused. The values are the names of the reasons in
// allocator.proto, without their prefix.
type Reason string

// The reasons.
const (
	Starting         Reason = "STARTING"
	Draining         Reason = "DRAINING"
	NoSID            Reason = "NO_SID"
	WindowExhausted  Reason = "WINDOW_EXHAUSTED"
	ClockSkew        Reason = "CLOCK_SKEW"
	ClockUnverified  Reason = "CLOCK_UNVERIFIED"
	ClockRegression  Reason = "CLOCK_REGRESSION"
	EntropyOverflow  Reason = "ENTROPY_OVERFLOW"
	AfterTooFar      Reason = "AFTER_TOO_FAR"
	HistoryRewound   Reason = "HISTORY_REWOUND"
	InvalidCount     Reason = "INVALID_COUNT"
	InvalidFormat    Reason = "INVALID_FORMAT"
	InvalidID        Reason = "INVALID_ID"
	Unauthenticated  Reason = "UNAUTHENTICATED"
	PermissionDenied Reason = "PERMISSION_DENIED"
	RateLimited      Reason = "RATE_LIMITED"
	WorkersOff       Reason = "WORKERS_OFF"
	NoWorker         Reason = "NO_WORKER"
	UnknownWorker    Reason = "UNKNOWN_WORKER"
	WorkerQuota      Reason = "WORKER_QUOTA"
	CallerClock      Reason = "CALLER_CLOCK"
	EtcdUnavailable  Reason = "ETCD_UNAVAILABLE"
)

// reasonPrefix is what the names of the enum have in front.
const reasonPrefix = "REASON_"

// callerError reports whether the request is wrong: another node would refuse it
// too.
func (r Reason) callerError() bool {
	switch r {
	case InvalidCount, InvalidFormat, InvalidID, Unauthenticated, PermissionDenied, UnknownWorker, WorkerQuota, CallerClock:
		return true
	}
	return false
}

// Errors of the package. They come wrapped with what to do; test with errors.Is.
var (
	// ErrClosed means that the client was closed before the call.
	ErrClosed = errors.New("client: closed")
	// ErrUnavailable means that no node answered in time.
	ErrUnavailable = errors.New("client: no node answered")
)

// Refusal is a node's answer that it issued nothing, and why.
type Refusal struct {
	Reason  Reason // for programs
	Message string // the node's, for a person
	// RetryAfter is the time after which the same node may serve the same request;
	// 0: waiting does not help.
	RetryAfter time.Duration
	// Metadata holds the values behind the message.
	Metadata map[string]string
	Node     string // the address that refused, as host:port; "": this process
}

// Error returns the reason, the message and the node.
func (r *Refusal) Error() string {
	if r.Node == "" {
		return fmt.Sprintf("%s: %s", r.Reason, r.Message)
	}
	return fmt.Sprintf("client: %s refused: %s: %s", r.Node, r.Reason, r.Message)
}

// Is makes errors.Is(err, &Refusal{Reason: x}) compare only the reason.
func (r *Refusal) Is(target error) bool {
	t, ok := target.(*Refusal)
	return ok && t.Reason == r.Reason
}

// permanent reports whether retrying does not help: the client's last ID is too far
// ahead.
func (r *Refusal) permanent() bool { return r.Reason == AfterTooFar && r.RetryAfter == 0 }

// RefusalOf returns the refusal in an error of the generated gRPC client, or nil if
// it holds none: then it is unknown whether the request was served. node is the
// address that was asked.
func RefusalOf(err error, node string) *Refusal {
	s, ok := status.FromError(err)
	if !ok || s.Code() == codes.OK {
		return nil
	}
	r := &Refusal{Message: s.Message(), Node: node}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			r.Reason, r.Metadata = Reason(d.GetReason()), d.GetMetadata()
		case *errdetails.RetryInfo:
			r.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	if r.Reason == "" { // of a proxy, which knows no reasons
		switch s.Code() {
		case codes.Unauthenticated:
			r.Reason = Unauthenticated
		case codes.PermissionDenied:
			r.Reason = PermissionDenied
		default:
			return nil
		}
	}
	return r
}

// refusalIn returns the refusal in an answer of a stream.
func refusalIn(p *pb.Refusal, node string) *Refusal {
	return &Refusal{
		Reason:     Reason(strings.TrimPrefix(p.GetReason().String(), reasonPrefix)),
		Message:    p.GetMessage(),
		RetryAfter: time.Duration(p.GetRetryAfterMs()) * time.Millisecond,
		Metadata:   p.GetMetadata(),
		Node:       node,
	}
}

// contractError is the error of an answer that breaks the contract of the API. Its
// IDs are not used.
type contractError struct{ node, what string }

func (e *contractError) Error() string {
	return fmt.Sprintf("client: %s broke the contract: %s: check that all targets are nodes of one space, in compatible versions", e.node, e.what)
}

// gaveUp returns the error of a call that failed after retries. cause is the
// context's error, or nil if Options.Timeout ended it; last is the error of the
// last attempt, if there was one.
func gaveUp(cause, last error, after time.Duration) error {
	var refusal *Refusal
	switch {
	case errors.As(last, &refusal) && cause != nil:
		return fmt.Errorf("%w: no node served: %w", cause, last)
	case errors.As(last, &refusal):
		return fmt.Errorf("no node served within %v: %w", after, last)
	case last != nil && cause != nil:
		return fmt.Errorf("%w: %w: %w", cause, ErrUnavailable, last)
	case last != nil:
		return fmt.Errorf("%w within %v: %w", ErrUnavailable, after, last)
	case cause != nil:
		return fmt.Errorf("%w: %w: none is connected yet: check the targets, TLS and the network", cause, ErrUnavailable)
	default:
		return fmt.Errorf("%w within %v: none is connected: check the targets, TLS and the network", ErrUnavailable, after)
	}
}
