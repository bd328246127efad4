package grpcserver

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/flakelease/allocator/internal/quota"
)

// WithQuota returns credentials that do what c does, and count what the connections of a
// [quota.Listener] cost.
func WithQuota(c credentials.TransportCredentials) credentials.TransportCredentials {
	return counting{c}
}

type counting struct {
	credentials.TransportCredentials
}

// ServerHandshake does the handshake, and puts the counter of frames above it.
func (c counting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if q := quota.Of(raw); q != nil && err == nil {
		return q.Frames(conn), connInfo{info, q}, nil
	}
	return conn, info, err
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
