package load

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	allocatorv1 "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// The history of the SDK names the node that answered and what each call had to
// exceed; a call that failed is one whose outcome nobody knows.
func TestSDK(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	allocatorv1.RegisterAllocatorServiceServer(srv, &streams{})
	go func() { _ = srv.Serve(lis) }()
	defer srv.Stop()
	node := func(name, addr string) *Node {
		return &Node{Name: name, GRPC: addr, MayAnswer: func() func() string { return func() string { return name + "#1" } }}
	}
	run := func(nodes ...*Node) (ops []history.Op) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began, calls := time.Now(), 0
		count := func() func() string { // the third call is the last
			if calls++; calls == 3 {
				cancel()
			}
			return func() string { return "n1#1" }
		}
		nodes[0].MayAnswer = count
		var out bytes.Buffer
		l := &Load{History: history.NewWriter(&out, history.WriterConfig{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }}), Format: flake.Default,
			Dial: new(net.Dialer).DialContext, Broken: func(err error) { t.Error(err) }}
		l.Run(ctx, 7, Client{Via: SDK, Counts: []int{1}, Nodes: nodes, Session: "s"})
		if err := l.History.Flush(); err != nil {
			t.Fatal(err)
		}
		for r := history.NewReader(&out); ; {
			var op history.Op
			if err := r.Read(&op); errors.Is(err, io.EOF) {
				return ops
			} else if err != nil {
				t.Fatal(err)
			}
			ops = append(ops, op)
		}
	}
	ops := run(node("n1", "127.0.0.1:1"), node("n2", lis.Addr().String()))
	if len(ops) != 6 {
		t.Fatalf("%d ops: %+v", len(ops), ops)
	}
	var last flake.ID
	for i, op := range ops {
		switch {
		case op.Via != SDK || op.Session != "s" || op.Process != "7":
			t.Errorf("op %d: %+v", i, op)
		case i%2 == 0 && (op.Type != history.Invoke || op.After != last):
			t.Errorf("op %d: %+v after %v", i, op, last)
		case i%2 == 1 && (op.Type != history.OK || op.Node != "n2" || op.Run != "n2#1" || op.Block.First <= last):
			t.Errorf("op %d: %+v after %v", i, op, last)
		case i%2 == 1:
			last = op.Block.Last()
		}
	}
	if ops := run(node("n1", "127.0.0.1:1")); len(ops) != 6 || ops[1].Type != history.Info || ops[1].Reason != "timeout" || ops[1].Run != "" {
		t.Errorf("with no node: %+v", ops)
	}
}
