package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	allocatorv1 "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/load"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// record runs a client until its requests, counted at the first node, are so many,
// and returns the history and what was reported as broken.
func record(t *testing.T, requests int, c Client) (ops []history.Op, broken []error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, n := range c.Nodes {
		n.MayAnswer = func() func() string { return func() string { return n.Name + "#1" } }
	}
	sent := 0
	c.Nodes[0].MayAnswer = func() func() string {
		if sent++; sent == requests {
			cancel()
		}
		return func() string { return c.Nodes[0].Name + "#1" }
	}
	var out bytes.Buffer
	began := time.Now()
	r := &Recorder{History: history.NewWriter(&out, history.WriterConfig{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }}), Format: flake.Default,
		Dial: new(net.Dialer).DialContext, Broken: func(err error) { broken = append(broken, err) }}
	r.Run(ctx, 7, c)
	fatal.If(t, r.History.Flush())
	for in := history.NewReader(&out); ; {
		var op history.Op
		if err := in.Read(&op); errors.Is(err, io.EOF) {
			return ops, broken
		} else if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
}

// overHTTP records a client of a server that answers with h.
func overHTTP(t *testing.T, requests int, c Client, h http.HandlerFunc) (ops []history.Op, broken []error) {
	t.Helper()
	srv := httptest.NewServer(h)
	defer srv.Close()
	c.Via, c.Nodes = load.HTTP, []*Node{{Name: "n1", HTTP: strings.TrimPrefix(srv.URL, "http://")}}
	return record(t, requests, c)
}

func id(t *testing.T, ms int64) flake.ID {
	t.Helper()
	id, err := flake.Default.Make(flake.Default.Epoch+ms, 5, 3)
	fatal.If(t, err)
	return id
}

func TestAnswersBecomeHistory(t *testing.T) {
	at := int64(1000)
	ops, broken := overHTTP(t, 2, Client{Counts: []int{3, 1}, Session: "s"}, func(w http.ResponseWriter, r *http.Request) {
		n := 1
		if r.URL.Query().Get("count") == "3" {
			n = 3
		}
		at += 10
		for i := range n {
			fmt.Fprintln(w, id(t, at)+flake.ID(32*i))
		}
	})
	if len(broken) > 0 {
		t.Errorf("found broken: %v", broken)
	}
	if len(ops) != 4 || ops[0].Type != history.Invoke || ops[0].Block.Count != 3 || ops[1].Type != history.OK || ops[1].Node != "n1" || ops[1].Run != "n1#1" || ops[1].Process != "7" {
		t.Fatalf("history %+v", ops)
	}
	if got, want := ops[1].Block, (history.Block{First: id(t, 1010), Count: 3, Stride: 32}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// The second request of the session names the last ID of the first.
	if want := ops[1].Block.Last(); ops[2].After != want {
		t.Errorf("after %v in the history, want %v", ops[2].After, want)
	}
}

// TestOutcomes: a refusal is a failure in the history; of any other error, and of
// an answer that breaks the contract, nobody knows the outcome.
func TestOutcomes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    history.Op
		broken  bool
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"reason":"NO_SID"}`)
		}, history.Op{Type: history.Fail, Reason: "NO_SID", Retry: 2 * time.Second}, false},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_ = conn.Close()
			}
		}, history.Op{Type: history.Info, Reason: "connection"}, false},
		{"too many", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%v\n%v\n", id(t, 1), id(t, 1)+32) },
			history.Op{Type: history.Info, Reason: "broken contract"}, true},
		{"not above", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, id(t, 1)) },
			history.Op{Type: history.OK}, true},
	} {
		ops, broken := overHTTP(t, 2, Client{Counts: []int{1}, Session: "s"}, tc.handler)
		if got := len(broken) > 0; got != tc.broken || got && !errors.Is(broken[0], load.ErrContract) {
			t.Errorf("%s: found broken: %v", tc.name, broken)
		}
		if len(ops) != 4 || ops[1].Type != tc.want.Type || ops[1].Reason != tc.want.Reason || ops[1].Retry != tc.want.Retry {
			t.Errorf("%s: history %+v, want %+v", tc.name, ops, tc.want)
		}
	}
}

// next answers each request of a stream with the next ID.
type next struct {
	allocatorv1.UnimplementedAllocatorServiceServer
}

func (next) AllocateStream(stream allocatorv1.AllocatorService_AllocateStreamServer) error {
	first, _ := flake.Default.Make(flake.Default.Epoch+1000, 5, 3)
	for n := flake.ID(0); ; n++ {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(&allocatorv1.AllocateStreamResponse{Sequence: req.GetSequence(), Result: &allocatorv1.AllocateStreamResponse_Response{
			Response: &allocatorv1.AllocateResponse{First: int64(first + 32*n), Count: req.GetRequest().GetCount(), Stride: 32,
				Node: "n2", Layout: allocatorv1.Layout_LAYOUT_SCALABLE, EpochUnixMs: flake.DefaultEpoch}}}); err != nil {
			return err
		}
	}
}

// TestSDK: the history of the SDK names the node that answered and what each
// request had to exceed; the outcome of a request that failed is unknown.
func TestSDK(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	srv := grpc.NewServer()
	allocatorv1.RegisterAllocatorServiceServer(srv, next{})
	go func() { _ = srv.Serve(lis) }()
	defer srv.Stop()
	c := Client{Via: load.SDK, Counts: []int{1}, Session: "s", Nodes: []*Node{{Name: "n1", GRPC: "127.0.0.1:1"}, {Name: "n2", GRPC: lis.Addr().String()}}}
	ops, broken := record(t, 3, c)
	if len(ops) != 6 || len(broken) > 0 {
		t.Fatalf("%d ops: %+v; broken: %v", len(ops), ops, broken)
	}
	var last flake.ID
	for i, op := range ops {
		switch {
		case op.Via != load.SDK || op.Session != "s" || op.Process != "7":
			t.Errorf("op %d: %+v", i, op)
		case i%2 == 0 && (op.Type != history.Invoke || op.After != last):
			t.Errorf("op %d: %+v after %v", i, op, last)
		case i%2 == 1 && (op.Type != history.OK || op.Node != "n2" || op.Run != "n2#1" || op.Block.First <= last):
			t.Errorf("op %d: %+v after %v", i, op, last)
		case i%2 == 1:
			last = op.Block.Last()
		}
	}
	c.Nodes, c.Timeout = c.Nodes[:1], 200*time.Millisecond
	if ops, _ := record(t, 1, c); len(ops) != 2 || ops[1].Type != history.Info || ops[1].Reason != "timeout" || ops[1].Run != "" {
		t.Errorf("with no node: %+v", ops)
	}
}
