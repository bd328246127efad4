// Package servertest is a node that holds sid 7, with its gRPC and HTTP listeners, on a
// clock that is moved by hand and a store that answers as set. Only tests import it.
package servertest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/respserver"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/watermark"
	"github.com/flakelease/allocator/internal/worker/broker"
	"github.com/flakelease/allocator/ulid"
)

// Start is the first time of every clock: 2026-02-01T00:00:00Z.
const Start clock.Millis = 1_769_904_000_000

// MaxLead is the largest lead of the node. With it the largest block has 98,304 IDs.
const MaxLead clock.Millis = 3

// zeros always returns 0, so that the IDs depend only on the served requests.
type zeros struct{}

func (zeros) Uint64() uint64 { return 0 }

// Config is what a test can choose. Its zero value is valid.
type Config struct {
	MaxTextCount int
	Guard        *access.Guard
	Workers      func(*node.Node) *broker.Broker // serves workers, each client 2; nil: none
	Observe      func(surface string, took time.Duration)
	Clocks       func() clock.Report
	// Drain releases the sid, and Undrain lets the node acquire one; nil: nothing.
	Drain   func(ctx context.Context) error
	Undrain func()
	Debug   grpcserver.Debug // nil: it sends one file with the length of the profile
	From    netip.Addr       // address of all clients; invalid: this machine
	Hosts   *httpserver.Hosts
	Log     io.Writer // what requests log, as text; nil: nothing
}

// Env is a node that holds sid 7, and its listeners.
type Env struct {
	T       testing.TB
	Clock   *clocktest.Manual
	Node    *node.Node
	Dir     *Directory
	Service *server.Service
	Reader  *status.Reader
	Feed    *feed.Feed
	Drainer *operate.Drainer
	GRPC    *grpcserver.Server
	HTTP    http.Handler
	Dial    func() *grpc.ClientConn // the connection to GRPC, which is served from the first call on
}

// New returns an Env that serves until the test ends.
func New(t testing.TB, change ...func(*Config)) *Env {
	t.Helper()
	src := clocktest.NewManual(Start)
	n := node.New(node.Config{
		Name:     "node-a",
		Instance: "a-1",
		Gen:      gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: MaxLead},
		MaxSkew:  250 * time.Millisecond,
	}, src, zeros{})
	n.Begin(lease.Grant{SID: 7, Term: 1, Base: Start, Ceil: Start + 30_000})
	n.Report(lease.Status{
		Phase:    lease.Holding,
		Held:     true,
		EverHeld: true,
		SIDs:     lease.SIDRange{To: 32},
		Pool:     lease.Pool{Size: 32, Held: 3},
		Grant:    lease.Grant{SID: 7, Term: 1, Base: Start, Ceil: Start + 30_000},
		Space:    lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: Pool, Named: true},
		Era:      lease.Era{Number: 1},
	})
	e := NewOn(t, n, change...)
	e.Clock = src
	return e
}

// NewOn is New with another node. The Env has no Clock.
func NewOn(t testing.TB, n *node.Node, change ...func(*Config)) *Env {
	t.Helper()
	var cfg Config
	for _, f := range change {
		f(&cfg)
	}
	e := &Env{T: t, Node: n, Dir: &Directory{}, Feed: feed.New(feed.Config{Boot: "boot"})}
	log, grpcLog := slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler)
	if cfg.Log != nil {
		grpcLog = slog.New(slog.NewTextHandler(cfg.Log, nil))
	}
	if cfg.Drain == nil {
		cfg.Drain = func(context.Context) error { return nil }
	}
	if cfg.Undrain == nil {
		cfg.Undrain = func() {}
	}
	var workers *broker.Broker
	if cfg.Workers != nil {
		workers = cfg.Workers(n)
	}
	e.Service = server.New(server.Config{
		Node:             n,
		Guard:            cfg.Guard,
		MaxTextCount:     cfg.MaxTextCount,
		Observe:          cfg.Observe,
		Broker:           workers,
		WorkersPerClient: 2,
		Logger:           grpcLog,
		Watermark: watermark.Config{
			Interval: 5 * time.Second,
			Reload:   30 * time.Second,
			Vanished: 45 * time.Second,
		},
	})
	e.Reader = status.New(status.Config{
		Node:      n,
		Directory: e.Dir,
		Space:     "test",
		Version:   "v0",
		Logger:    log,
		Clocks:    cfg.Clocks,
		Marks:     e.Service.Marks(),
		Bounds:    lease.Bounds{Window: time.Minute},
	})
	e.Drainer = operate.NewDrainer(operate.DrainConfig{
		Node:    n,
		Release: cfg.Drain,
		Resume:  cfg.Undrain,
		Window:  e.Reader.Window,
	})
	if cfg.Debug == nil {
		cfg.Debug = func(_ context.Context, profile time.Duration, send func(string, []byte) error) error {
			return send("profile.txt", []byte(profile.String()))
		}
	}
	e.GRPC = grpcserver.New(grpcserver.Config{
		Service: e.Service,
		Reader:  e.Reader,
		Drainer: e.Drainer,
		Logger:  grpcLog,
		Feed:    e.Feed,
		Debug:   cfg.Debug,
	})
	e.HTTP = httpserver.New(httpserver.Config{
		Service: e.Service,
		Reader:  e.Reader,
		Hosts:   cfg.Hosts,
		Feed:    e.Feed,
	})
	if !cfg.From.IsValid() {
		cfg.From = netip.MustParseAddr("127.0.0.1")
	}
	e.Dial = sync.OnceValue(func() *grpc.ClientConn { return dial(t, e.GRPC.GRPC(), cfg.From) })
	return e
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Dial serves g in memory until the test ends and returns a connection to it.
func Dial(t testing.TB, g *grpc.Server) *grpc.ClientConn {
	return dial(t, g, netip.MustParseAddr("127.0.0.1"))
}

// listener has connections in memory that seem to come from an address.
type listener struct {
	*bufconn.Listener
	from netip.Addr
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return connection{c, l.from}, err
}

type connection struct {
	net.Conn
	from netip.Addr
}

func (c connection) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.from, 1))
}

func dial(t testing.TB, g *grpc.Server, from netip.Addr) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	go func() { _ = g.Serve(listener{l, from}) }()
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	fatal.If(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Observe has the feed observe the node now.
func (e *Env) Observe() {
	e.Feed.Observe(feed.State{Node: e.Node.Stats(), Refusing: e.Node.Ready()})
}

// Client returns a client of the service.
func (e *Env) Client() pb.AllocatorServiceClient { return pb.NewAllocatorServiceClient(e.Dial()) }

// Admin returns a client of the operator's service.
func (e *Env) Admin() pb.AdminServiceClient { return pb.NewAdminServiceClient(e.Dial()) }

// Do sends a request to the HTTP handler. With the flag -exchanges the answer is recorded,
// and chaos/real/interop compares it with openapi.yaml.
func (e *Env) Do(method, target, body string, header ...string) *http.Response {
	e.T.Helper()
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	if body == "" {
		req = httptest.NewRequest(method, target, nil)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return e.Send(req)
}

// Send is Do for a request that the test has made.
func (e *Env) Send(req *http.Request) *http.Response {
	e.T.Helper()
	rec := httptest.NewRecorder()
	e.HTTP.ServeHTTP(rec, req)
	res := rec.Result()
	if res.Header.Get("X-Content-Type-Options") != "nosniff" {
		e.T.Errorf("%s %s: no X-Content-Type-Options", req.Method, req.URL)
	}
	record(e.T, req, res, rec.Body.Bytes())
	res.Body = io.NopCloser(bytes.NewReader(rec.Body.Bytes()))
	return res
}

// Redis sends a line to a RESP listener and returns a reader of the answer.
func (e *Env) Redis(line string) *bufio.Reader {
	e.T.Helper()
	listener := respserver.New(respserver.Config{
		Service: e.Service,
		Reader:  e.Reader,
		Logger:  slog.New(slog.DiscardHandler),
	})
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	ended := make(chan error, 1)
	go func() { ended <- listener.Serve(l) }()
	c := must(net.Dial("tcp", l.Addr().String()))
	e.T.Cleanup(func() {
		_ = c.Close()
		if err := listener.Shutdown(context.Background()); err != nil {
			e.T.Error(err)
		}
		<-ended
	})
	must(io.WriteString(c, line+"\r\n"))
	return bufio.NewReaderSize(c, 1<<16)
}

// Body decodes a JSON answer.
func Body[T any](t testing.TB, res *http.Response) T {
	t.Helper()
	var v T
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
		t.Fatalf("answer %d is no JSON: %v", res.StatusCode, err)
	}
	return v
}

// Issued is an HTTP answer with IDs.
type Issued struct {
	IDs  []string `json:"ids"`
	Node string   `json:"node"`
	SID  int      `json:"sid"`
}

// Problem is an HTTP error.
type Problem struct {
	Type         string            `json:"type"`
	Title        string            `json:"title"`
	Status       int               `json:"status"`
	Detail       string            `json:"detail"`
	Reason       string            `json:"reason"`
	Metadata     map[string]string `json:"metadata"`
	RetryAfterMs int64             `json:"retry_after_ms"`
	Help         string            `json:"help"`
}

// At returns the ID with time ms and the other bits as given.
func At(ms clock.Millis, low int64) flake.ID {
	return flake.ID((int64(ms)-flake.DefaultEpoch)<<20 | low)
}

// What tells the space from others.
const (
	Pool           = "0c9e0b8e-63a5-4f3b-8d2c-5a4c1b2f7e10"
	SpaceID uint64 = 0x0c9e0b8e63a54f3b
)

// Decimal returns the decimal form of an ID.
func Decimal(id flake.ID) string { return string(id.AppendInt(nil)) }

// Wide returns a wide form of an ID, with all random bits set.
func Wide(id flake.ID) ulid.ID { return must(ulid.FromFlake(flake.Default, id, 0x3FFFFFFFFFFFFF)) }

// Directory is a store that answers as set.
type Directory struct {
	mu     sync.Mutex // guards all below
	View   lease.View
	Tenure *lease.LedgerLine
	Err    error
	Hang   bool          // hang until the caller's deadline
	Gate   chan struct{} // if set, Load waits until it is closed
	Loads  int
	Asked  []flake.SID
}

// Set changes the answers.
func (d *Directory) Set(f func(*Directory)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

// Load returns View or Err.
func (d *Directory) Load(ctx context.Context) (lease.View, error) {
	d.mu.Lock()
	d.Loads++
	view, err, hang, gate := d.View, d.Err, d.Hang, d.Gate
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

// Holder returns Tenure or Err.
func (d *Directory) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error) {
	d.mu.Lock()
	d.Asked = append(d.Asked, sid)
	tenure, err, hang := d.Tenure, d.Err, d.Hang
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

// ErrAway is an error of the store.
var ErrAway = errors.New("etcd is away")
