package etcdsim

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Values of etcd with its default settings.
const (
	minTTL         = 2               // seconds: 1.5 elections, rounded up
	requestTimeout = 7 * time.Second // after which a request without a leader fails
	expireEvery    = 500 * time.Millisecond
	pingMin        = 5 * time.Second // a client that pings more often is disconnected
	version        = "3.7.0"
)

var errMissing = status.Error(codes.Unimplemented, "etcdsim: not implemented: no caller needs it")

// Call is one request of a client: a unary call, a message of a keep-alive
// stream, or the opening of a watch.
type Call struct {
	Number int    // counted from 1, since the last SetFault
	Method string // as in "KV/Txn"; "Lease/LeaseKeepAlive" and "Watch/Watch" for messages
	Host   string // the client's
}

// Fault is how a call fails.
type Fault int

// The faults. A call that opens a watch has no effect.
const (
	None         Fault = iota
	Refused            // not carried out, and answered with UNAVAILABLE
	Failed             // carried out, and answered with UNAVAILABLE
	BrokenBefore       // not carried out; the connection breaks
	BrokenAfter        // carried out; the connection breaks
	Hung               // not carried out, and not answered
	Unanswered         // carried out, and not answered
	Late               // carried out a second after the client timed out
)

// Faults are all but None.
var Faults = []Fault{Refused, Failed, BrokenBefore, BrokenAfter, Hung, Unanswered, Late}

func (f Fault) String() string {
	return [...]string{"none", "refused", "failed", "broken before", "broken after", "hung", "unanswered", "late"}[f]
}

// lateBy is how long after the timeout of its caller a late call is carried out.
const lateBy = time.Second

// Server is an etcd of one cluster, seen through one endpoint. It is safe for
// concurrent use.
type Server struct {
	listen func() (net.Listener, error)
	ending context.Context // ends with Close
	end    context.CancelFunc
	loop   sync.WaitGroup

	mu      sync.Mutex // guards the rest
	store   *store
	cluster uint64
	term    uint64 // The term is Raft's: every change of leader raises it.
	leader  bool
	stuck   int // writes with an unknown outcome after a change of leader
	grants  map[int64]*grant
	granted int64
	changed chan struct{} // closed and renewed with every revision and change of leader
	fault   func(Call) Fault
	calls   int
	grpc    *grpc.Server // nil: stopped
	serving sync.WaitGroup
	conns   map[string]net.Conn // by the client's address
}

// grant is the time of a lease.
type grant struct {
	ttl  int64 // seconds
	ends time.Time
}

// New returns a server that has a leader and is stopped; Start has it listen. It
// must be closed.
func New(listen func() (net.Listener, error)) *Server {
	s := &Server{
		listen: listen, store: newStore(), cluster: 0xe7cd, term: 2, leader: true,
		grants: map[int64]*grant{}, changed: make(chan struct{}), conns: map[string]net.Conn{},
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.loop.Go(s.expire)
	return s
}

// OnLoopback returns a server that listens on a port of loopback, also when it is started again, and its
// endpoint.
func OnLoopback() (*Server, string, error) {
	addr := "127.0.0.1:0"
	s := New(func() (net.Listener, error) {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			addr = l.Addr().String()
		}
		return l, err
	})
	if err := s.Start(); err != nil {
		s.Close()
		return nil, "", err
	}
	return s, "http://" + addr, nil
}

// Start has a stopped server listen.
func (s *Server) Start() error {
	l, err := s.listen()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grpc != nil {
		return errors.Join(errors.New("etcdsim: started twice"), l.Close())
	}
	s.extend()
	s.grpc = grpc.NewServer(
		grpc.ChainUnaryInterceptor(s.unary), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMin}),
	)
	pb.RegisterKVServer(s.grpc, kv{s: s})
	pb.RegisterLeaseServer(s.grpc, leases{s: s})
	pb.RegisterWatchServer(s.grpc, watches{s: s})
	pb.RegisterMaintenanceServer(s.grpc, maintenance{s: s})
	pb.RegisterClusterServer(s.grpc, members{s: s})
	pb.RegisterAuthServer(s.grpc, auth{s: s})
	server := s.grpc
	s.serving.Go(func() { _ = server.Serve(&tracked{Listener: l, s: s}) })
	return nil
}

// Stop ends the server as a crash of all members does: connections break, and dials
// are refused until Start. Data is kept, and leases start again.
func (s *Server) Stop() {
	s.mu.Lock()
	server := s.grpc
	s.grpc = nil
	s.mu.Unlock()
	if server != nil {
		server.Stop()
		s.serving.Wait()
	}
}

// Close stops the server permanently.
func (s *Server) Close() {
	s.Stop()
	s.end()
	s.loop.Wait()
}

// SetFault lets f decide on every call from now on, in order; nil: no faults. f is called with a lock held.
func (s *Server) SetFault(f func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.calls = f, 0
}

// LoseLeader leaves the cluster without a leader: requests wait, and streams that
// require a leader end.
func (s *Server) LoseLeader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = false
	s.notify()
}

// ElectLeader gives the cluster a new leader. Every lease has its full time
// again. Reads that waited fail. Of the writes that waited every second one is
// applied, and none is answered.
func (s *Server) ElectLeader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = true
	s.term++
	s.extend()
	s.notify()
}

// Backup is a snapshot of the data.
type Backup struct {
	store  *store
	grants map[int64]*grant
}

// Save takes a snapshot.
func (s *Server) Save() Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Backup{s.store.clone(), maps.Clone(s.grants)}
}

// Restore makes b a stopped server's data, under another cluster ID if cluster
// is not 0, as restoring a snapshot gives.
func (s *Server) Restore(b Backup, cluster uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store, s.grants = b.store.clone(), maps.Clone(b.grants)
	if cluster != 0 {
		s.cluster = cluster
	}
}

// Revision returns that of the last write.
func (s *Server) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.revision
}

// Events returns every change of a range of keys since the first revision.
func (s *Server) Events(key, end string) []*mvccpb.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.since([]byte(key), []byte(end), 1)
}

// notify wakes goroutines that wait for a revision or a leader. s.mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// change runs f, and wakes the watches if it made a revision. s.mu is held.
func (s *Server) change(f func()) {
	before := s.store.revision
	f()
	if s.store.revision != before {
		s.notify()
	}
}

// header is of every answer. s.mu is held.
func (s *Server) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: s.cluster, MemberId: 1, Revision: s.store.revision, RaftTerm: s.term}
}

// Calls that change nothing, with transactions that only read.
func readOnly(req any) bool {
	switch r := req.(type) {
	case *pb.TxnRequest:
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if op.GetRequestRange() == nil {
				return false
			}
		}
		return true
	case *pb.PutRequest, *pb.DeleteRangeRequest, *pb.LeaseGrantRequest, *pb.LeaseRevokeRequest, *pb.CompactionRequest:
		return false
	}
	return true
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	return s.serve(ctx, info.FullMethod, readOnly(req), func() (any, error) { return handler(ctx, req) })
}

// serve carries out a call as the leader and the faults allow.
func (s *Server) serve(ctx context.Context, method string, reads bool, do func() (any, error)) (any, error) {
	fault := s.decide(ctx, method)
	switch fault {
	case Refused:
		return nil, rpctypes.ErrGRPCTimeout
	case BrokenBefore:
		s.sever(ctx)
		return nil, rpctypes.ErrGRPCStopped
	case Hung:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case Late:
		<-ctx.Done()
		time.Sleep(lateBy)
	}
	if err := s.await(ctx, reads, do); err != nil {
		return nil, err
	}
	out, err := do()
	switch fault {
	case Failed:
		return nil, rpctypes.ErrGRPCTimeout
	case BrokenAfter:
		s.sever(ctx)
		return nil, rpctypes.ErrGRPCStopped
	case Unanswered:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return out, err
}

// await returns nil if there is a leader. Otherwise it waits for one, and
// returns the error of a request that was in progress meanwhile.
func (s *Server) await(ctx context.Context, reads bool, do func() (any, error)) error {
	timeout := time.NewTimer(requestTimeout)
	defer timeout.Stop()
	for waited := false; ; waited = true {
		s.mu.Lock()
		leader, changed, odd := s.leader, s.changed, false
		if leader && waited && !reads {
			s.stuck++
			odd = s.stuck%2 == 1
		}
		s.mu.Unlock()
		switch {
		case leader && !waited:
			return nil
		case leader && reads:
			return rpctypes.ErrGRPCLeaderChanged
		case leader:
			if odd {
				_, _ = do()
			}
			return rpctypes.ErrGRPCTimeoutDueToLeaderFail
		}
		select {
		case <-changed:
		case <-timeout.C:
			return rpctypes.ErrGRPCTimeout
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// decide counts a call and returns its fault.
func (s *Server) decide(ctx context.Context, method string) Fault {
	host, _, _ := strings.Cut(client(ctx), ":")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.fault == nil {
		return None
	}
	return s.fault(Call{s.calls, strings.TrimPrefix(method, "/etcdserverpb."), host})
}

// client returns the address of the client that called.
func client(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// sever breaks the connection of a call.
func (s *Server) sever(ctx context.Context) {
	s.mu.Lock()
	c := s.conns[client(ctx)]
	s.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// tracked records the connections that it accepts.
type tracked struct {
	net.Listener
	s *Server
}

func (l *tracked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.conns[c.RemoteAddr().String()] = c
	return &known{c, l.s}, nil
}

type known struct {
	net.Conn
	s *Server
}

func (c *known) Close() error {
	c.s.mu.Lock()
	delete(c.s.conns, c.RemoteAddr().String())
	c.s.mu.Unlock()
	return c.Conn.Close()
}
