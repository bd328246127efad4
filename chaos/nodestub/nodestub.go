// Package nodestub starts gRPC servers that answer as a test says, for tests of
// programs that call nodes.
package nodestub

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
)

// Node answers Allocate as its func says.
type Node struct {
	pb.UnimplementedAllocatorServiceServer
	Asked atomic.Int32 // calls

	allocate func(context.Context) error
}

// Allocate answers with the IDs above those asked for.
func (s *Node) Allocate(ctx context.Context, r *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	s.Asked.Add(1)
	if err := s.allocate(ctx); err != nil {
		return nil, err
	}
	return &pb.AllocateResponse{
		First:       r.GetAfter() + 32,
		Count:       r.GetCount(),
		Stride:      32,
		Node:        "stub",
		Layout:      pb.Layout_LAYOUT_SCALABLE,
		EpochUnixMs: 1_704_067_200_000,
	}, nil
}

// Start starts a node and returns its address.
func Start(t *testing.T, allocate func(context.Context) error) (*Node, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	node, server := &Node{allocate: allocate}, grpc.NewServer()
	pb.RegisterAllocatorServiceServer(server, node)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return node, l.Addr().String()
}

// Refusing answers with a refusal of a node: a code, a reason, and when to retry;
// 0 is not to.
func Refusing(t *testing.T, code codes.Code, reason string, retry time.Duration) func(context.Context) error {
	t.Helper()
	st := status.New(code, "because")
	st, err := st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "allocator"})
	if err == nil && retry > 0 {
		st, err = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	fatal.If(t, err)
	return func(context.Context) error { return st.Err() }
}

// Answering answers with IDs.
func Answering(context.Context) error { return nil }

// StartSecure starts a node with TLS and client certificates that takes one token.
func StartSecure(t *testing.T, ca *certstest.Authority, token string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, "node", -time.Hour, time.Hour).TLS(t)},
		ClientCAs:    ca.Pool(),
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	})))
	refuse := Refusing(t, codes.Unauthenticated, "UNAUTHENTICATED", 0)
	pb.RegisterAllocatorServiceServer(server, &Node{
		allocate: func(ctx context.Context) error {
			if v := metadata.ValueFromIncomingContext(ctx, "authorization"); len(v) != 1 || v[0] != "Bearer "+token {
				return refuse(ctx)
			}
			return nil
		},
	})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}
