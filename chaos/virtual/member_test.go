package virtual

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
)

// options are the differences of a node from the default.
type options struct {
	name string        // "" numbers it
	off  time.Duration // of its wall clock at the start
	pace time.Duration // between requests of its client; 0: 250 ms
	set  func(*config.Config)
}

// member is a node with a client that requests IDs from it all the time.
type member struct {
	env    *env
	host   string
	name   string
	clocks *clocktest.Machine
	d      *daemon.Daemon
	log    *output.Text
	pace   time.Duration
	gossip *gossiptest.Transport // nil: none yet, or without gossip

	end  context.CancelFunc // of the daemon
	quit context.CancelFunc // of the client
	done chan struct{}      // closed when both have ended
	dead bool               // it was killed

	mu       sync.Mutex // guards requests
	requests []request
}

// request is one request and its answer.
type request struct {
	begin, end time.Duration
	issued     clock.Millis // of the first ID
	reason     string       // "": issued; else of the refusal, or "connection"
}

// start starts a node, and does not wait for it.
func (e *env) start(o options) *member {
	e.t.Helper()
	n := len(e.nodes) + 1
	m := &member{env: e, host: fmt.Sprintf("host%d", n), name: o.name, log: &output.Text{}, pace: o.pace,
		clocks: clocktest.NewMachine(e.begin, o.off), done: make(chan struct{})}
	if m.name == "" {
		m.name = fmt.Sprintf("node-%d", n)
	}
	if m.pace == 0 {
		m.pace = 250 * time.Millisecond
	}
	cfg := settings(m.host, m.name)
	if o.set != nil {
		o.set(&cfg)
	}
	var err error
	m.d, err = daemon.New(daemon.Config{Settings: cfg, Version: "test", Logger: clocktest.Logger(m.log, e.begin), Host: daemon.Host{
		Clock:  clock.NewSystem(m.clocks),
		Listen: func(_ context.Context, _, at string) (net.Listener, error) { return e.net.Listen(at) },
		Gossip: func(cluster.Config) (cluster.Transport, string, error) {
			m.gossip = e.gossip.Listen()
			return m.gossip, m.gossip.Addr(), nil
		},
		Etcd: []grpc.DialOption{
			grpc.WithContextDialer(e.net.Dialer(m.host)),
			grpc.WithChainUnaryInterceptor(m.recordWindows),
		},
	}})
	fatal.If(e.t, err)
	running, end := context.WithCancel(context.Background())
	requesting, quit := context.WithCancel(context.Background())
	m.end, m.quit = end, quit
	ended := make(chan struct{})
	e.ends.Go(func() {
		defer close(ended)
		if err := m.d.Run(running); err != nil {
			e.t.Errorf("%s: %v", m.name, err)
		}
	})
	e.ends.Go(func() {
		defer close(m.done)
		m.client(requesting)
		<-ended
	})
	e.nodes = append(e.nodes, m)
	<-m.d.Listening()
	return m
}

// startAll starts n plain nodes and waits until they serve.
func (e *env) startAll(n int) []*member {
	e.t.Helper()
	for range n {
		e.start(options{})
	}
	for _, m := range e.nodes[len(e.nodes)-n:] {
		m.untilReady(5 * time.Second)
	}
	return e.nodes[len(e.nodes)-n:]
}

// stop asks a node to stop, with its client still requesting, and waits until it
// has. Of a node that is stopped or was killed it only awaits the end.
func (m *member) stop() {
	m.end()
	if !m.dead {
		// Stopping may take as long as it waits for etcd; a client that goes on
		// gets refusals, and no answer when the port is closed.
		time.Sleep(time.Second)
	}
	m.quit()
	<-m.done
}

// kill ends a node as a crash does: nothing leaves it any more, and it releases
// nothing. Its goroutines end by themselves.
func (m *member) kill() {
	m.dead = true
	m.env.net.Kill(m.host)
	if m.gossip != nil {
		var others []string
		for _, o := range m.env.nodes {
			if o != m && o.gossip != nil {
				others = append(others, o.gossip.Addr())
			}
		}
		m.env.gossip.Partition([]string{m.gossip.Addr()}, others)
	}
	m.quit()
	m.end()
}

func (m *member) id() lease.Instance { return m.d.Node().Stats().Instance }

// recordWindows records the windows that answers of etcd confirm to the node, when
// they arrive, and the watermarks in them.
func (m *member) recordWindows(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	r, ok := reply.(*etcdserverpb.TxnResponse)
	if err != nil || !ok {
		return err
	}
	own := m.id()
	m.env.mu.Lock()
	defer m.env.mu.Unlock()
	for _, op := range r.Responses {
		for _, kv := range op.GetResponseRange().GetKvs() {
			if strings.HasSuffix(string(kv.Key), "/mark") {
				m.env.noteMark(string(kv.Value))
				continue
			}
			_, after, ok := strings.Cut(string(kv.Key), "/window/")
			sid, err := strconv.ParseUint(after, 10, 16)
			if !ok || err != nil {
				continue
			}
			rec, err := lease.Decode[lease.Window](string(kv.Value))
			if err == nil && rec.Instance == own && rec.State == lease.Active {
				m.env.hist.Grants = append(m.env.hist.Grants, history.Grant{
					Process: string(own), SID: flake.SID(sid), Base: rec.Base, Ceil: rec.Ceil, At: clock.Mono(m.env.now()),
				})
			}
		}
	}
	return nil
}

// noteMark records a watermark that a node has read. It is called with mu held.
func (e *env) noteMark(raw string) {
	mark, err := lease.Decode[lease.Mark](raw)
	if err != nil {
		e.t.Errorf("the watermark is unreadable: %v", err)
	}
	if n := len(e.hist.Marks); n == 0 || mark.At > e.hist.Marks[n-1].Below {
		e.hist.Marks = append(e.hist.Marks, history.Mark{Below: mark.At, At: clock.Mono(e.now())})
	}
}

// dial returns a connection to the gRPC API.
func (m *member) dial() *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+m.host+":9000",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(m.env.net.Dialer(clientHost)))
	if err != nil {
		panic(err) // The target or an option is none.
	}
	return conn
}

// client requests IDs over gRPC, one request after the other, and records the
// answers.
func (m *member) client(ctx context.Context) {
	conn := m.dial()
	defer conn.Close()
	api := pb.NewAllocatorServiceClient(conn)
	for ctx.Err() == nil {
		m.send(ctx, api)
		select {
		case <-time.After(m.pace):
		case <-ctx.Done():
		}
	}
}

func (m *member) send(ctx context.Context, api pb.AllocatorServiceClient) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	t := request{begin: m.env.now()}
	r, err := api.Allocate(ctx, &pb.AllocateRequest{Count: 1 + rand.Int32N(100)})
	t.end = m.env.now()
	if err == nil {
		t.issued = clock.Millis(flake.Default.UnixMilli(flake.ID(r.First)))
		m.env.mu.Lock()
		m.env.hist.Issues = append(m.env.hist.Issues, history.Issue{
			Process: string(m.id()), First: flake.ID(r.First), Count: int(r.Count), Stride: r.Stride,
			Begin: clock.Mono(t.begin), End: clock.Mono(t.end),
		})
		m.env.mu.Unlock()
	} else {
		t.reason = "connection"
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				t.reason = info.Reason
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = append(m.requests, t)
}

func (m *member) answered() []request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests
}

// untilReady waits until a request is served.
func (m *member) untilReady(within time.Duration) {
	m.env.t.Helper()
	from := m.env.now()
	for m.env.now() <= from+within {
		for _, t := range m.answered() {
			if t.begin >= from && t.reason == "" {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	m.env.t.Errorf("%s answered nobody for %v from %v on: %+v", m.name, within, from, m.d.Node().Stats().Lease)
}

// served fails the test if anything was refused within a span, if a request took
// long, or if the time in an ID was wrong by more than off.
func (m *member) served(d span, off time.Duration) {
	m.env.t.Helper()
	n := 0
	for _, t := range m.answered() {
		if !d.has(t.begin) || !d.has(t.end) {
			continue
		}
		n++
		wrongBy := (t.issued - clocktest.TrueMillis(t.begin)).Duration()
		switch {
		case t.reason != "":
			m.env.t.Errorf("%s at %v: refused with %s", m.name, t.begin, t.reason)
		case wrongBy < -off || wrongBy > off+(t.end-t.begin):
			m.env.t.Errorf("%s at %v: an ID that is %v from true time", m.name, t.begin, wrongBy)
		case t.end-t.begin > 500*time.Millisecond:
			m.env.t.Errorf("%s at %v: answered after %v", m.name, t.begin, t.end-t.begin)
		}
	}
	if want := int((d.to - d.from) / (m.pace + 500*time.Millisecond)); n < want {
		m.env.t.Errorf("%s: %d requests from %v: too few", m.name, n, d)
	}
}

// reasons counts the refusals within a span; "" counts the requests served.
func (m *member) reasons(d span) map[string]int {
	out := map[string]int{}
	for _, t := range m.answered() {
		if d.has(t.begin) {
			out[t.reason]++
		}
	}
	return out
}
