package client

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client/internal/balance"
)

// Reason is why a node refused: the name of a value of the enum Reason in
// allocator.proto, without its prefix.
type Reason string

// callerError reports whether the request is wrong: another node would refuse it
// too.
func (r Reason) callerError() bool {
	switch r {
	case InvalidCount, InvalidFormat, InvalidID, Unauthenticated, PermissionDenied, UnknownWorker, WorkerQuota,
		CallerClock:
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

// outcome returns what the refusal shows about the node. own is that of Client.ask.
func (r *Refusal) outcome(own bool) balance.Outcome {
	o := balance.Outcome{Kind: balance.Refused, Retry: r.RetryAfter, Err: r}
	switch {
	case r.Reason.callerError(), r.Reason == AfterTooFar && !own:
		o.Kind = balance.OfCall
	case r.Reason == AfterTooFar:
		o.Kind = balance.TooFar
	}
	return o
}

// RefusalOf returns the refusal in an error of the generated gRPC client, or nil if
// it holds none: then it is unknown whether the request was served. node is the
// address that was asked.
func RefusalOf(err error, node string) *Refusal {
	s := status.Convert(err)
	r := &Refusal{Message: s.Message(), Node: node}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			r.Reason, r.Metadata = Reason(d.GetReason()), d.GetMetadata()
		case *errdetails.RetryInfo:
			r.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	if r.Reason == "" { // A proxy refused, which knows no reasons.
		r.Message += hint(s.Message())
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
		Reason:     Reason(strings.TrimPrefix(p.GetReason().String(), "REASON_")), // one of a later version: its number
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
	return fmt.Sprintf("client: %s broke the contract: %s: check that all targets are nodes of one space, in "+
		"compatible versions", e.node, e.what)
}

// gaveUp returns the error of a call that failed after retries. cause is the
// context's error, or nil if Options.Timeout, which is within, ended it; last is the
// error of the last attempt, if there was one.
func gaveUp(cause, last error, within time.Duration) error {
	what := ErrUnavailable
	if r := (*Refusal)(nil); errors.As(last, &r) {
		what = errRefused
	}
	last = cmp.Or(last, errNotConnected)
	if cause != nil {
		return fmt.Errorf("%w: %w: %w", cause, what, last)
	}
	return fmt.Errorf("%w within %v: %w", what, within, last)
}

var (
	errRefused      = errors.New("no node served")
	errNotConnected = errors.New("none is connected: check the targets, TLS and the network")
)
