package respserver

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status"
)

// Limits of connections.
const (
	// DefaultIdleTimeout is long, since clients keep connections without traffic for
	// minutes. TCP keep-alive ends the connections of unreachable machines much earlier.
	DefaultIdleTimeout = 10 * time.Minute
	// DefaultWriteTimeout is how long a client may take to read one buffer.
	DefaultWriteTimeout = 10 * time.Second

	handshakeTimeout = 5 * time.Second
	// sweeps is how often connections are checked within an idle or write timeout.
	sweeps = 4
	// drainLinger is how long requests are still answered, with DRAINING, after Shutdown
	// began: requests already on the way get the reason.
	drainLinger = 100 * time.Millisecond
)

// Config is what a Server needs. Service is required, and at a node Reader.
type Config struct {
	Service *server.Service
	Reader  *status.Reader
	Version string       // INFO shows the program's version.
	Logger  *slog.Logger // nil: slog.Default

	MaxConnections int           // INFO shows the listener's limit; 0: no limit.
	IdleTimeout    time.Duration // 0: DefaultIdleTimeout
	WriteTimeout   time.Duration // 0: DefaultWriteTimeout
}

// Server is the listener for Redis clients. All methods are safe for concurrent use.
type Server struct {
	cfg      Config
	service  *server.Service
	describe func(ctx context.Context, text, kind string) (status.Decoded, error)
	issuer   server.Issuer
	limits   server.Limits
	maxBlock int // largest block of the node
	log      *slog.Logger
	every    time.Duration // between sweeps
	logHTTP  rate.Sometimes
	logFull  rate.Sometimes // It logs as a warning what the kernel refuses.

	ctx  context.Context // Every connection's context is derived from it.
	stop context.CancelFunc

	leaving  atomic.Bool // Shutdown was called
	accepted atomic.Int64

	mu       sync.Mutex // guards all below; never held across I/O that can block
	listener net.Listener
	conns    map[*conn]struct{}
	loops    []*loop // They are started by listen.
	closing  bool    // no further connection is served
	all      sync.WaitGroup
}

// ErrClosed is what Serve returns after Shutdown.
var ErrClosed = errors.New("respserver: the server is closed")

// New returns a Server.
func New(cfg Config) *Server {
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, DefaultIdleTimeout)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, DefaultWriteTimeout)
	s := &Server{
		cfg:      cfg,
		service:  cfg.Service,
		describe: status.Describer(cfg.Reader, cfg.Service),
		issuer:   cfg.Service.Issuer(),
		limits:   cfg.Service.Limits(),
		log:      cmp.Or(cfg.Logger, slog.Default()),
		maxBlock: cfg.Service.Issuer().About().MaxBlock,
		every:    min(cfg.IdleTimeout, cfg.WriteTimeout) / sweeps,
		logHTTP:  rate.Sometimes{Interval: time.Minute},
		logFull:  rate.Sometimes{Interval: time.Minute},
		conns:    map[*conn]struct{}{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Serve answers on l until Shutdown, and then returns ErrClosed at once. Any other
// error is one of l. It is called once, and closes l.
//
// A listener with TLS returns a *tls.Conn from Accept.
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
	if done := s.listen(l); done != nil {
		<-done
		return ErrClosed
	}
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
		default: // most likely no file handles are left: wait, and keep the port
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.notAccepted(err, pause)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
		}
	}
}

// notAccepted logs why no connection is accepted for a while: as a warning once a minute.
func (s *Server) notAccepted(err error, pause time.Duration) {
	level := slog.LevelDebug
	s.logFull.Do(func() { level = slog.LevelWarn })
	s.log.Log(s.ctx, level, "accept of a RESP connection failed", "error", err, "pause", pause)
}

// start serves a connection by a goroutine of its own.
func (s *Server) start(nc net.Conn) {
	r := s.newRoutine(nc, s.accepted.Add(1))
	if !s.add(r.conn) {
		_ = nc.Close()
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	r.ctx = ctx
	go func() {
		defer s.remove(r.conn)
		defer cancel()
		r.serve()
		_ = nc.Close()
	}()
}

// add counts a connection, unless the server is closing. remove must follow.
func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.conns[c] = struct{}{}
	s.all.Add(1)
	return true
}

// remove says that a connection has ended.
func (s *Server) remove(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.all.Done()
}

// TooMany is what Redis writes to a connection above its limit, which clients know.
var TooMany = []byte("-ERR max number of clients reached\r\n")

// sweep ends idle and stalled connections. It costs a connection nothing; a deadline
// for each read and write would cost 10 % of its time.
func (s *Server) sweep(ended <-chan struct{}) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.closeStalled()
		case <-ended:
			return
		}
	}
}

// closeStalled counts for how many sweeps each connection made no progress, and closes
// those that exceed their timeout. A client whose request never becomes complete makes
// no progress either.
func (s *Server) closeStalled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		progress := c.progress.Load()
		if progress != c.seen {
			c.seen, c.idle = progress, 0
			continue
		}
		c.idle++
		limit := s.cfg.IdleTimeout
		if progress%2 == 1 {
			limit = s.cfg.WriteTimeout
		}
		if time.Duration(c.idle)*s.every > limit {
			c.shell.abort()
		}
	}
}

// Shutdown stops accepting, answers the requests that have arrived, and ends the
// connections. The node must refuse requests before the call, or a busy client would
// get IDs without end. Shutdown returns when every connection has ended: with ctx's
// error if ctx ended first and connections were aborted. Serve returns before.
func (s *Server) Shutdown(ctx context.Context) error {
	s.leaving.Store(true)
	s.mu.Lock()
	s.closing = true
	l := s.listener
	s.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	s.unlisten()
	finished := make(chan struct{})
	go func() { s.all.Wait(); s.stopLoops(); close(finished) }()
	select {
	case <-time.After(drainLinger):
	case <-finished:
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		c.shell.drain()
	}
	s.mu.Unlock()
	select {
	case <-finished:
		s.stop()
		return nil
	case <-ctx.Done():
	}
	s.stop() // ends waiting requests
	s.mu.Lock()
	for c := range s.conns {
		c.shell.abort()
	}
	s.mu.Unlock()
	<-finished
	return ctx.Err()
}

// Connections returns how many connections are open.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// identify returns the caller with credentials c, or the refusal of all its requests.
func (s *Server) identify(c access.Credentials) (access.Caller, *node.Refusal) {
	caller, err := s.service.Guard().Identify(c)
	if err == nil {
		return caller, nil
	}
	r := server.AccessRefusal(err, caller, access.Issue)
	if errors.Is(err, access.ErrNoToken) {
		r.Message = "no token was sent: send AUTH TOKEN, or set it as the password of your client"
	} else if errors.Is(err, access.ErrMalformed) {
		r.Message = "the token is malformed: send AUTH TOKEN, or set it as the password of your client"
	}
	return access.Caller{}, r
}

// allow checks a call of caller and counts it for the rate limit. It returns the
// refusal, which is counted, or nil.
func (s *Server) allow(caller access.Caller, scope access.Scope) *node.Refusal {
	if s.service.Guard() == nil {
		return nil
	}
	if err := s.service.Guard().Allow(caller, scope); err != nil {
		return s.issuer.Refused(server.AccessRefusal(err, caller, scope))
	}
	return nil
}
