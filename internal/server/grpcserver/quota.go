package grpcserver

import (
	"context"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
)

// WithQuota returns credentials that do what c does, and count what the connections of a
// [quota.Listener] cost.
func WithQuota(c credentials.TransportCredentials) credentials.TransportCredentials {
	return counting{c}
}

type counting struct {
	credentials.TransportCredentials
}

// ServerHandshake does the handshake, and puts the counter of frames above the connection. A client of
// another protocol gets an answer in that protocol.
func (c counting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	first := make([]byte, 3) // gRPC limits the time.
	if _, err := io.ReadFull(raw, first); err != nil {
		return nil, nil, err
	}
	if answer := otherProtocol(first); answer != nil {
		_, _ = raw.Write(answer)
		// The end of a connection with unread bytes would overtake the answer.
		_, _ = raw.Read(make([]byte, maxHeaders))
		return nil, nil, errors.New("grpcserver: the client speaks another protocol")
	}
	conn, info, err := c.TransportCredentials.ServerHandshake(&begun{raw, first})
	if q := quota.Of(raw); q != nil && err == nil {
		return q.Frames(conn), connInfo{info, q}, nil
	}
	return conn, info, err
}

// otherProtocol returns the answer to a client that begins with these bytes; nil if they may be gRPC's or TLS's.
func otherProtocol(first []byte) []byte {
	switch {
	case server.IsHTTP(first):
		return server.NotHTTP("the gRPC port (listen.grpc)")
	case first[0] == '*' && first[2] == '\r':
		return []byte("-ERR this is the gRPC port (listen.grpc): Redis clients have listen.resp\r\n")
	}
	return nil
}

// begun is a connection whose first bytes were read already.
type begun struct {
	net.Conn
	first []byte // owned by the reader
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}

// Clone returns a copy.
func (c counting) Clone() credentials.TransportCredentials {
	return counting{c.TransportCredentials.Clone()}
}

// connInfo is what is known of the client of a connection, and the connection.
type connInfo struct {
	credentials.AuthInfo
	conn *quota.Conn
}

// connOf returns the connection of a call; nil without a quota.
func connOf(ctx context.Context) *quota.Conn {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(connInfo); ok {
			return info.conn
		}
	}
	return nil
}
