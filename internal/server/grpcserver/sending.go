package grpcserver

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// slowAfter is how long a message may wait for the client to read those before it.
const slowAfter = 5 * time.Second

var (
	errSlow = status.Errorf(codes.ResourceExhausted,
		"the stream was not read for %v: call again with after, the id of the latest event", slowAfter)
	errUnread = status.Errorf(codes.ResourceExhausted, "the files were not read for %v: call again", slowAfter)
)

// sending runs what sends the messages of a stream, each by a call of send, until it returns, ctx ends, or a message
// waits too long for the client; the error is then slow. A message that still waits ends when the method of the
// stream returns, as it must at once.
func sending(ctx context.Context, slow error,
	run func(ctx context.Context, send func(func() error) error) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(slowAfter, func() { cancel(slow) })
	late.Stop()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, func(message func() error) error {
			late.Reset(slowAfter)
			defer late.Stop()
			return message()
		})
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		if cause := context.Cause(ctx); errors.Is(cause, slow) {
			return cause
		}
		return status.FromContextError(ctx.Err()).Err()
	}
}
