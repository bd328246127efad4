package respserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// Limits of connections.
const (
	// DefaultIdleTimeout is long, for clients keep a connection and send nothing for
	// minutes; TCP finds out much earlier about those whose machine is gone.
	DefaultIdleTimeout = 10 * time.Minute
	// DefaultWriteTimeout is how long a client may take over one buffer full.
	DefaultWriteTimeout = 10 * time.Second

	handshakeTimeout = 5 * time.Second
	// sweeps is how often in an idle or write timeout connections are looked at.
	sweeps = 4
	// drainLinger is how long requests are answered on, with DRAINING, after
	// Shutdown began: those that were on their way hear why.
	drainLinger = 100 * time.Millisecond
)

// Config is what the door needs. Server is required.
type Config struct {
	Server *server.Server
	// Guard says who may ask; nil lets everybody.
	Guard   *access.Guard
	Version string       // of this binary
	Logger  *slog.Logger // nil: slog.Default

	MaxConnections int           // 0: no limit
	IdleTimeout    time.Duration // 0: DefaultIdleTimeout
	WriteTimeout   time.Duration // 0: DefaultWriteTimeout
}

// Server is the door. All methods are safe for concurrent use.
type Server struct {
	cfg      Config
	api      *server.Server
	node     *node.Node
	texts    server.Texts
	maxBlock int // largest block of the node
	log      *slog.Logger
	every    time.Duration // between sweeps

	ctx  context.Context // of every connection
	stop context.CancelFunc

	leaving  atomic.Bool // Shutdown was called
	accepted atomic.Int64
	refused  atomic.Int64 // connections above the limit

	mu       sync.Mutex // guards all below; never held across I/O that can block
	listener net.Listener
	conns    map[*conn]struct{}
	closing  bool // no further connection is served
	all      sync.WaitGroup
}

// ErrClosed is what Serve returns after Shutdown.
var ErrClosed = errors.New("respserver: the server is closed")

// New returns a door that has begun nothing.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Server == nil:
		return nil, errors.New("respserver: config server: is required")
	case cfg.MaxConnections < 0 || cfg.IdleTimeout < 0 || cfg.WriteTimeout < 0:
		return nil, fmt.Errorf("respserver: config: %d connections, %v idle, %v to write: none may be negative",
			cfg.MaxConnections, cfg.IdleTimeout, cfg.WriteTimeout)
	}
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = DefaultIdleTimeout
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = DefaultWriteTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{
		cfg: cfg, api: cfg.Server, node: cfg.Server.Node(), texts: cfg.Server.Texts(), log: cfg.Logger,
		maxBlock: cfg.Server.Node().Config().Gen.MaxBlock(),
		every:    min(cfg.IdleTimeout, cfg.WriteTimeout) / sweeps,
		conns:    map[*conn]struct{}{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Serve answers on l until Shutdown, and then returns ErrClosed at once. Any other
// error says that l is no good. It is called once, and closes l.
//
// A listener that speaks TLS is one that gives *tls.Conn.
func (s *Server) Serve(l net.Listener) error {
	defer func() { _ = l.Close() }()
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	if s.leaving.Load() {
		return ErrClosed
	}
	swept := make(chan struct{})
	ended := make(chan struct{})
	go func() { s.sweep(ended); close(swept) }()
	defer func() { close(ended); <-swept }()
	for pause := time.Duration(0); ; {
		nc, err := l.Accept()
		switch {
		case s.leaving.Load():
			if nc != nil {
				_ = nc.Close()
			}
			return ErrClosed
		case err == nil:
			pause = 0
			s.start(nc)
		case errors.Is(err, net.ErrClosed):
			return err
		default: // no file handles left, most likely: the port must not be lost for it
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Warn("a RESP connection could not be accepted", "error", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
		}
	}
}

// start serves a connection, or turns it away.
func (s *Server) start(nc net.Conn) {
	c := s.newConn(nc, s.accepted.Add(1))
	s.mu.Lock()
	full := s.cfg.MaxConnections > 0 && len(s.conns) >= s.cfg.MaxConnections
	if full || s.closing {
		s.mu.Unlock()
		if _, secret := nc.(*tls.Conn); full && !secret {
			s.refused.Add(1)
			_, _ = nc.Write(tooMany) // fits into a socket that is new
		}
		_ = nc.Close()
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	c.ctx = ctx
	s.conns[c] = struct{}{}
	s.all.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.all.Done()
		defer cancel()
		c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = nc.Close()
	}()
}

// tooMany is what Redis says; clients know it.
var tooMany = []byte("-ERR max number of clients reached\r\n")

// sweep ends connections that stand still: it costs a connection nothing, where a
// deadline for each read and write would cost it a tenth of its time.
func (s *Server) sweep(ended <-chan struct{}) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.look()
		case <-ended:
			return
		}
	}
}

// look counts for how many sweeps each connection has stood still, and closes those
// that have for too long. A client whose requests never become complete stands
// still, too.
func (s *Server) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		turn := c.turn.Load()
		if turn != c.seen {
			c.seen, c.idle = turn, 0
			continue
		}
		c.idle++
		limit := s.cfg.IdleTimeout
		if turn%2 == 1 {
			limit = s.cfg.WriteTimeout
		}
		if time.Duration(c.idle)*s.every > limit {
			c.cut()
		}
	}
}

// cut ends a connection from outside, without a word and without waiting.
func (c *conn) cut() {
	if t, ok := c.nc.(*tls.Conn); ok {
		_ = t.NetConn().Close()
		return
	}
	_ = c.nc.Close()
}

// Shutdown stops accepting, answers what has arrived, and ends the connections. The
// node must refuse before it is called, so that no connection is given IDs on and
// on. It returns once every connection has ended: ctx's error if that took longer
// than ctx lasts, and connections were cut off. Serve returns before.
func (s *Server) Shutdown(ctx context.Context) error {
	s.leaving.Store(true)
	s.mu.Lock()
	s.closing = true
	l := s.listener
	s.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	finished := make(chan struct{})
	go func() { s.all.Wait(); close(finished) }()
	select {
	case <-time.After(drainLinger):
	case <-finished:
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		// Reads end at once, and writes go on: what was asked is answered.
		_ = c.nc.SetReadDeadline(time.Unix(0, 1))
	}
	s.mu.Unlock()
	select {
	case <-finished:
		s.stop()
		return nil
	case <-ctx.Done():
	}
	s.stop() // requests that wait end
	s.mu.Lock()
	for c := range s.conns {
		c.cut()
	}
	s.mu.Unlock()
	<-finished
	return ctx.Err()
}

// Refused returns how many connections were turned away for want of room.
func (s *Server) Refused() int64 { return s.refused.Load() }

// Connections returns how many connections are open.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// identify returns who shows c, or why that is nobody.
func (s *Server) identify(c access.Credentials) (access.Caller, *node.Refusal) {
	caller, err := s.cfg.Guard.Identify(c)
	if err == nil {
		return caller, nil
	}
	r := server.AccessRefusal(err, caller, access.Issue)
	if errors.Is(err, access.ErrNoToken) {
		r.Message = "no token was sent: send AUTH TOKEN, or give it to your client as the password"
	} else if errors.Is(err, access.ErrMalformed) {
		r.Message = "the token is malformed: send AUTH TOKEN, or give it to your client as the password"
	}
	return access.Caller{}, r
}

// allow asks whether a caller may, and returns a refusal that is counted if not.
func (s *Server) allow(caller access.Caller, scope access.Scope) *node.Refusal {
	if s.cfg.Guard == nil {
		return nil
	}
	if err := s.cfg.Guard.Allow(caller, scope); err != nil {
		return s.node.Refused(server.AccessRefusal(err, caller, scope))
	}
	return nil
}
