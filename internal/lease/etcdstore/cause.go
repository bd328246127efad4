package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/internal/lease"
)

// attempts keeps why the latest attempt of a call reached no etcd. etcd's client waits
// for a connection until the context ends, and then returns the error of the context
// alone: without the attempts nobody learns that the port is closed or uses TLS.
type attempts struct {
	mu   sync.Mutex // It guards last.
	last string
}

type attemptsKey struct{}

// withAttempts returns ctx with a place for attempts, if it has none.
func withAttempts(ctx context.Context) context.Context {
	if _, ok := ctx.Value(attemptsKey{}).(*attempts); ok {
		return ctx
	}
	return context.WithValue(ctx, attemptsKey{}, &attempts{})
}

// keepAttempt is the interceptor of each attempt. It runs within that of etcd's
// client, which repeats attempts.
func keepAttempt(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	call grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	err := call(ctx, method, req, reply, conn, opts...)
	if a, ok := ctx.Value(attemptsKey{}).(*attempts); ok && err != nil {
		if _, desc, ok := strings.Cut(status.Convert(err).Message(), "connection error: desc = "); ok {
			a.mu.Lock()
			a.last = connectError(strings.Trim(desc, `"`))
			a.mu.Unlock()
		}
	}
	return err
}

// refusal is an error with which etcd answered. It is lease.ErrRefused too.
type refusal struct{ error }

func (r refusal) Is(target error) bool { return target == lease.ErrRefused }
func (r refusal) Unwrap() error        { return r.error }

// because returns err with the reason of the latest attempt, where err only states
// that time ran out, and says of errors of etcd itself that they are refusals.
func because(ctx context.Context, err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return refusal{fmt.Errorf("%w: \"allocator doctor\" says how to make room", err)}
	}
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		switch e.Code() {
		case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		default:
			return refusal{err}
		}
	}
	a, ok := ctx.Value(attemptsKey{}).(*attempts)
	if err == nil || !ok || !strings.HasSuffix(err.Error(), context.DeadlineExceeded.Error()) {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, a.last)
}

// connectError returns a message of gRPC about a connection without the names of
// gRPC's own layers.
func connectError(message string) string {
	message = strings.TrimPrefix(message, "transport: ")
	message = strings.TrimPrefix(message, "Error while dialing: ")
	switch {
	case strings.Contains(message, "first record does not look like a TLS handshake"):
		return message + ": the endpoint does not use TLS, or is not etcd's: check the scheme"
	case strings.HasSuffix(message, "authentication handshake failed: EOF"):
		return message + ": the endpoint ended the connection at the first message of TLS, " +
			"as servers without TLS do: check the scheme"
	case strings.Contains(message, "looked like an HTTP/1.1 header"):
		return "an HTTP/1.1 server answers: this is no client port of etcd"
	case strings.Contains(message, "error reading server preface"):
		return message + ": the endpoint uses TLS, or is not etcd's: check the scheme"
	}
	return message
}
