package client

import (
	"context"
	"errors"

	"google.golang.org/grpc"
)

// ErrStream is the error of a stream over Client.Conn.
var ErrStream = errors.New("client: Conn has no streams")

// Conn returns the cluster as one connection, for services of the API that Client has no
// methods for:
//
//	workers := pb.NewWorkerServiceClient(c.Conn())
//
// A call goes to one node after the other, as calls of the client do, until one serves
// it, until a node refuses for a reason that all nodes share, until its context ends, or
// until Options.Timeout has passed. A node may have served it before, and the answer was
// lost: make only calls that may be repeated. The errors are those of the client. There
// are no streams.
func (c *Client) Conn() grpc.ClientConnInterface { return conn{c} }

type conn struct{ c *Client }

// Invoke calls a method.
func (n conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if !n.c.enter() {
		return ErrClosed
	}
	defer n.c.calls.Done()
	return n.c.ask(ctx, false, nil, func(e *endpoint) error {
		return e.attempt(ctx, false, 0, func(ctx context.Context, over *grpc.ClientConn) error {
			return e.invoke(ctx, over, method, args, reply, opts...)
		})
	})
}

// NewStream returns ErrStream.
func (n conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, ErrStream
}
