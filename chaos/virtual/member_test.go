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
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
)

// options say how a node differs from a plain one.
type options struct {
	name string        // "" numbers it
	off  time.Duration // of its wall clock at the start
	pace time.Duration // between requests of its client; 0: 250 ms
	set  func(*config.Config)
}

// member is a node of a world, with a client that asks it for IDs all the time.
type member struct {
	w      *world
	host   string
	name   string
	clocks *machine
	d      *daemon.Daemon
	log    *lines
	pace   time.Duration
	gossip *gossiptest.Transport // nil: none yet, or without gossip

	end  context.CancelFunc // of the daemon
	quit context.CancelFunc // of the client
	done chan struct{}      // closed when both have ended
	dead bool               // it was killed

	mu    sync.Mutex // guards tries
	tries []try
}

// try is one request and its answer.
type try struct {
	begin, end time.Duration
	issued     clock.Millis // of the first ID
	reason     string       // "": issued; else of the refusal, or "connection"
}

// start starts a node, and does not wait for it.
func (w *world) start(o options) *member {
	w.t.Helper()
	n := len(w.nodes) + 1
	m := &member{w: w, host: fmt.Sprintf("host%d", n), name: o.name, log: &lines{}, pace: o.pace,
		clocks: &machine{begin: w.begin, step: o.off}, done: make(chan struct{})}
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
	m.d, err = daemon.New(daemon.Config{Settings: cfg, Version: "test", Logger: w.logger(m.log), Host: daemon.Host{
		Clock:  clock.NewSystem(clock.SystemConfig{Anchor: clock.AnchorConfig{StepHold: cfg.Clock.StepHold}, Clocks: m.clocks}),
		Listen: func(_ context.Context, _, at string) (net.Listener, error) { return w.net.Listen(at) },
		Gossip: func(cluster.Config) (cluster.Transport, string, error) {
			m.gossip = w.gossip.Listen()
			return m.gossip, m.gossip.Addr(), nil
		},
		Etcd: []grpc.DialOption{
			grpc.WithContextDialer(w.net.Dialer(m.host)),
			grpc.WithChainUnaryInterceptor(m.hear),
		},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	running, end := context.WithCancel(context.Background())
	asking, quit := context.WithCancel(context.Background())
	m.end, m.quit = end, quit
	ended := make(chan struct{})
	w.ends.Go(func() {
		defer close(ended)
		if err := m.d.Run(running); err != nil {
			w.t.Errorf("%s: %v", m.name, err)
		}
	})
	w.ends.Go(func() {
		defer close(m.done)
		m.client(asking)
		<-ended
	})
	w.nodes = append(w.nodes, m)
	<-m.d.Listening()
	return m
}

// startAll starts n plain nodes and waits until they serve.
func (w *world) startAll(n int) []*member {
	w.t.Helper()
	for range n {
		w.start(options{})
	}
	for _, m := range w.nodes[len(w.nodes)-n:] {
		m.untilReady(5 * time.Second)
	}
	return w.nodes[len(w.nodes)-n:]
}

// stop asks a node to stop, with its client still asking, and waits until it
// has. Of a node that is stopped or was killed it only awaits the end.
func (m *member) stop() {
	m.end()
	if !m.dead {
		// Stopping may take as long as it waits for etcd; a client that goes on
		// asking gets refusals, and no answer when the port is closed.
		time.Sleep(time.Second)
	}
	m.quit()
	<-m.done
}

// kill ends a node as a crash does: nothing leaves it any more, and it gives
// nothing back. What is left of it in this process winds down by itself.
func (m *member) kill() {
	m.dead = true
	m.w.net.Kill(m.host)
	if m.gossip != nil {
		var others []string
		for _, o := range m.w.nodes {
			if o != m && o.gossip != nil {
				others = append(others, o.gossip.Addr())
			}
		}
		m.w.gossip.Partition([]string{m.gossip.Addr()}, others)
	}
	m.quit()
	m.end()
}

func (m *member) id() lease.Instance { return m.d.Node().Stats().Instance }

// hear notes the windows that etcd's answers confirm to the node, when they
// reach it.
func (m *member) hear(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	r, ok := reply.(*etcdserverpb.TxnResponse)
	if err != nil || !ok {
		return err
	}
	own := m.id()
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for _, op := range r.Responses {
		for _, kv := range op.GetResponseRange().GetKvs() {
			_, after, ok := strings.Cut(string(kv.Key), "/window/")
			sid, err := strconv.ParseUint(after, 10, 16)
			if !ok || err != nil {
				continue
			}
			rec, err := lease.Decode[lease.Window](string(kv.Value))
			if err == nil && rec.Instance == own && rec.State == lease.Active {
				m.w.hist.Grants = append(m.w.hist.Grants, history.Grant{
					Process: string(own), SID: flake.SID(sid), Base: rec.Base, Ceil: rec.Ceil, At: clock.Mono(m.w.now()),
				})
			}
		}
	}
	return nil
}

// client asks for IDs over gRPC, one request after the other, and writes down
// what it gets.
func (m *member) client(ctx context.Context) {
	conn, err := grpc.NewClient("passthrough:///"+m.host+":9000",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(m.w.net.Dialer(clientHost)))
	if err != nil {
		m.w.t.Errorf("%s: %v", m.name, err)
		return
	}
	defer conn.Close()
	api := pb.NewAllocatorServiceClient(conn)
	for ctx.Err() == nil {
		m.request(ctx, api)
		select {
		case <-time.After(m.pace):
		case <-ctx.Done():
		}
	}
}

func (m *member) request(ctx context.Context, api pb.AllocatorServiceClient) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	t := try{begin: m.w.now()}
	r, err := api.Allocate(ctx, &pb.AllocateRequest{Count: 1 + rand.Int32N(100)})
	t.end = m.w.now()
	if err == nil {
		t.issued = clock.Millis(flake.Default.UnixMilli(flake.ID(r.First)))
		m.w.mu.Lock()
		m.w.hist.Issues = append(m.w.hist.Issues, history.Issue{
			Process: string(m.id()), First: flake.ID(r.First), Count: int(r.Count), Stride: r.Stride,
			Begin: clock.Mono(t.begin), End: clock.Mono(t.end),
		})
		m.w.mu.Unlock()
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
	m.tries = append(m.tries, t)
}

func (m *member) asked() []try {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tries
}

// untilReady waits until a request is served.
func (m *member) untilReady(most time.Duration) {
	m.w.t.Helper()
	from := m.w.now()
	for m.w.now() <= from+most {
		for _, t := range m.asked() {
			if t.begin >= from && t.reason == "" {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	m.w.t.Errorf("%s served nobody for %v from %v on: %+v", m.name, most, from, m.d.Node().Stats().Lease)
}

// served fails the test if anything was refused within a span, if a request took
// long, or if an ID was untrue by more than off.
func (m *member) served(d during, off time.Duration) {
	m.w.t.Helper()
	n := 0
	for _, t := range m.asked() {
		if !d.has(t.begin) || !d.has(t.end) {
			continue
		}
		n++
		untrue := (t.issued - trueMillis(t.begin)).Duration()
		switch {
		case t.reason != "":
			m.w.t.Errorf("%s at %v: refused with %s", m.name, t.begin, t.reason)
		case untrue < -off || untrue > off+(t.end-t.begin):
			m.w.t.Errorf("%s at %v: an ID that is %v from true time", m.name, t.begin, untrue)
		case t.end-t.begin > 500*time.Millisecond:
			m.w.t.Errorf("%s at %v: answered after %v", m.name, t.begin, t.end-t.begin)
		}
	}
	if want := int((d.to - d.from) / (m.pace + 500*time.Millisecond)); n < want {
		m.w.t.Errorf("%s: %d requests from %v: too few to tell anything", m.name, n, d)
	}
}

// reasons counts the refusals within a span; "" counts the requests served.
func (m *member) reasons(d during) map[string]int {
	out := map[string]int{}
	for _, t := range m.asked() {
		if d.has(t.begin) {
			out[t.reason]++
		}
	}
	return out
}
