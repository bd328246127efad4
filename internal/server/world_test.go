package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// start is where clocks of tests stand: 2026-02-01T00:00:00Z.
const start clock.Millis = 1_769_904_000_000

// zeros draws 0 always, so that what is issued depends on nothing but requests
// that were served.
type zeros struct{}

func (zeros) Uint64() uint64 { return 0 }

// world is a node that holds sid 7, and all its surfaces.
type world struct {
	t      testing.TB
	clock  *clock.Manual
	node   *node.Node
	server *server.Server
	http   http.Handler
	dir    *directory

	dial func() *grpc.ClientConn
}

// maxLead is the lead of nodes in tests: with it the largest block has 98,304 IDs.
const maxLead clock.Millis = 3

func newWorld(t testing.TB, change ...func(*server.Config)) *world {
	t.Helper()
	w := &world{t: t, clock: clock.NewManual(start), dir: &directory{}}
	w.node = node.New(node.Config{
		Name: "node-a", Instance: "a-1",
		Gen:     gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: maxLead},
		MaxSkew: 250 * time.Millisecond,
	}, w.clock, zeros{})
	w.node.Begin(lease.Grant{SID: 7, Term: 1, Base: start, Ceil: start + 30_000})
	w.node.Report(lease.Status{Phase: lease.Holding, Held: true, EverHeld: true, PoolSize: 32, PoolHeld: 3,
		Grant: lease.Grant{SID: 7, Term: 1, Base: start, Ceil: start + 30_000},
		Space: lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool-1"}, Era: lease.Era{Number: 1}})
	cfg := server.Config{
		Node: w.node, Directory: w.dir, Space: "test", Version: "v0", Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if w.server, err = server.New(cfg); err != nil {
		t.Fatal(err)
	}
	w.http = w.server.HTTP()
	w.dial = sync.OnceValue(w.serveGRPC)
	return w
}

// serveGRPC serves until the test ends and returns a connection.
func (w *world) serveGRPC() *grpc.ClientConn {
	l := bufconn.Listen(1 << 16)
	g := w.server.NewGRPC()
	go func() { _ = g.Serve(l) }()
	w.t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///node",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *world) client() pb.AllocatorServiceClient { return pb.NewAllocatorServiceClient(w.dial()) }

// do sends a request to the HTTP handler. With -exchanges the answer is recorded,
// for chaos/interop to validate against the contract.
func (w *world) do(method, target, body string, header ...string) *http.Response {
	w.t.Helper()
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	if body == "" {
		req = httptest.NewRequest(method, target, nil)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return w.send(req)
}

func (w *world) send(req *http.Request) *http.Response {
	w.t.Helper()
	rec := httptest.NewRecorder()
	w.http.ServeHTTP(rec, req)
	res := rec.Result()
	if res.Header.Get("X-Content-Type-Options") != "nosniff" {
		w.t.Errorf("%s %s: no X-Content-Type-Options", req.Method, req.URL)
	}
	record(w.t, req, res, rec.Body.Bytes())
	res.Body = io.NopCloser(bytes.NewReader(rec.Body.Bytes()))
	return res
}

// decodeBody reads a JSON answer into a T.
func decodeBody[T any](t testing.TB, res *http.Response) T {
	t.Helper()
	var v T
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
		t.Fatalf("answer %d is no JSON: %v", res.StatusCode, err)
	}
	return v
}

// directory is a store that answers as told.
type directory struct {
	mu     sync.Mutex // guards all below
	view   lease.View
	tenure *lease.LedgerLine
	err    error
	hang   bool          // until the caller's deadline
	gate   chan struct{} // if set, Load waits until it is closed
	loads  int
	asked  []flake.SID
}

func (d *directory) set(f func(*directory)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

func (d *directory) Load(ctx context.Context) (lease.View, error) {
	d.mu.Lock()
	d.loads++
	view, err, hang, gate := d.view, d.err, d.hang, d.gate
	d.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return lease.View{}, ctx.Err()
		}
	}
	if hang {
		<-ctx.Done()
		return lease.View{}, ctx.Err()
	}
	return view, err
}

func (d *directory) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error) {
	d.mu.Lock()
	d.asked = append(d.asked, sid)
	tenure, err, hang := d.tenure, d.err, d.hang
	d.mu.Unlock()
	switch {
	case hang:
		<-ctx.Done()
		return lease.LedgerLine{}, false, ctx.Err()
	case err != nil:
		return lease.LedgerLine{}, false, err
	case tenure == nil || at < tenure.Since:
		return lease.LedgerLine{}, false, nil
	}
	return *tenure, true, nil
}

var errAway = errors.New("etcd is away")
