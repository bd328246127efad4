package respserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/server/respserver"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// start is where clocks of tests stand: 2026-02-01T00:00:00Z.
const start clock.Millis = 1_769_904_000_000

// zeros draws 0 always, so that IDs depend on nothing but the requests.
type zeros struct{}

func (zeros) Uint64() uint64 { return 0 }

// empty is a store in which nobody ever held a sid.
type empty struct{}

func (empty) Load(context.Context) (lease.View, error) { return lease.View{}, errors.New("away") }

func (empty) Holder(context.Context, flake.SID, clock.Millis) (lease.LedgerLine, bool, error) {
	return lease.LedgerLine{}, false, nil
}

// fixture is a node that holds sid 7, with a RESP listener.
type fixture struct {
	t        testing.TB
	clock    *clocktest.Manual
	node     *node.Node
	service  *server.Service
	listener *respserver.Server
	addr     string
	ended    chan error
	clients  []*client // from dial
}

func newFixture(t testing.TB, change ...func(*respserver.Config)) *fixture {
	t.Helper()
	x := &fixture{t: t, clock: clocktest.NewManual(start), ended: make(chan error, 1)}
	x.node = node.New(node.Config{
		Name: "node-a", Instance: "a-1",
		Gen:     gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250},
		MaxSkew: 250 * time.Millisecond,
	}, x.clock, zeros{})
	x.node.Begin(lease.Grant{SID: 7, Term: 1, Base: start, Ceil: start + 30_000})
	x.node.Report(lease.Status{Phase: lease.Holding, Held: true, EverHeld: true, Pool: lease.Pool{Size: 32, Held: 3},
		Grant: lease.Grant{SID: 7, Term: 1, Base: start, Ceil: start + 30_000}})
	return x.listen(server.Config{}, change...)
}

// exhaust gives x another node, by clock c, that has issued all of its lead: requests wait for
// that clock, for maxWait at most.
func (x *fixture) exhaust(c clock.Source, maxWait time.Duration) {
	x.t.Helper()
	x.node = node.New(node.Config{Name: "node-a", Gen: x.node.Config().Gen, MaxWait: maxWait}, c, zeros{})
	x.node.Begin(lease.Grant{SID: 7, Term: 1, Base: start, Ceil: start + 30_000})
	for range 251 {
		if _, err := x.node.Next(x.t.Context(), 1<<15, 0); err != nil {
			x.t.Fatal(err)
		}
	}
}

// newGuardedFixture is newFixture with a guard.
func newGuardedFixture(t testing.TB, guard *access.Guard, change ...func(*respserver.Config)) *fixture {
	t.Helper()
	x := newFixture(t)
	return x.listen(server.Config{Guard: guard}, change...)
}

// listen makes the listener.
func (x *fixture) listen(sc server.Config, change ...func(*respserver.Config)) *fixture {
	x.t.Helper()
	log := slog.New(slog.DiscardHandler)
	sc.Node = x.node
	x.service = server.New(sc)
	reader := status.New(status.Config{Node: x.node, Directory: empty{}, Space: "test", Version: "v0", Logger: log})
	cfg := respserver.Config{Service: x.service, Reader: reader, Version: "v0", Logger: log}
	for _, f := range change {
		f(&cfg)
	}
	x.listener = respserver.New(cfg)
	return x
}

// goroutines makes the connections of a fixture's own port have a goroutine each.
var goroutines bool

// hidden is a listener whose connections are no sockets for a loop.
type hidden struct{ net.Listener }

func (h hidden) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

// listen opens a port of loopback.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	if goroutines {
		return hidden{l}
	}
	return l
}

// serve answers on l, or on a port of loopback, until the test ends.
func (x *fixture) serve(l net.Listener) *fixture {
	x.t.Helper()
	if l == nil {
		l = listen(x.t)
	}
	x.addr = strings.TrimPrefix(l.Addr().String(), unixsocket.Prefix)
	switch l.(type) {
	case *net.TCPListener, *unixsocket.Listener: // Loops accept connections that have a quota.
		began := time.Now()
		l = quota.New(quota.Config{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }}).
			Listen(l, quota.ListenerConfig{})
	}
	go func() { x.ended <- x.listener.Serve(l) }()
	x.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Most)
		defer cancel()
		if err := x.listener.Shutdown(ctx); err != nil {
			x.t.Errorf("shutdown: %v", err)
		}
		select {
		case err := <-x.ended:
			if !errors.Is(err, respserver.ErrClosed) {
				x.t.Errorf("Serve returned %v", err)
			}
		case <-ctx.Done():
			x.t.Error("Serve did not return")
		}
	})
	return x
}

// client is a connection that is closed when the test ends.
type client struct {
	net.Conn
	t testing.TB
	r *bufio.Reader
}

func (x *fixture) dial() *client {
	x.t.Helper()
	network := "tcp"
	if strings.HasPrefix(x.addr, "/") {
		network = "unix"
	}
	c, err := net.Dial(network, x.addr)
	fatal.If(x.t, err)
	x.clients = append(x.clients, newClient(x.t, c))
	return x.clients[len(x.clients)-1]
}

func newClient(t testing.TB, c net.Conn) *client {
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(wait.Most))
	return &client{c, t, bufio.NewReader(c)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.Conn, text); err != nil {
		c.t.Fatal(err)
	}
}

// text reads until the connection ends.
func (c *client) text() string {
	b, _ := io.ReadAll(c.r) // An end that is a reset follows the answer too.
	return string(b)
}

// reply reads one reply: a string as it is, with its first byte if it is none in
// bulk, and arrays and maps as lists in brackets.
func (c *client) reply() string {
	c.t.Helper()
	s, err := c.read()
	if err != nil {
		c.t.Fatalf("reply: %v", err)
	}
	return s
}

func (c *client) read() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	if !strings.HasSuffix(line, "\r\n") || len(line) < 3 {
		return "", fmt.Errorf("line %q", line)
	}
	line = line[:len(line)-2]
	n, numErr := strconv.Atoi(line[1:])
	switch line[0] {
	case '+', '-', ':', '_':
		return line, nil
	case 'H': // an HTTP answer is the last
		return line + "\r\n" + c.text(), nil
	case '$':
		if n < 0 {
			return "(nil)", nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, b); err != nil || numErr != nil || string(b[n:]) != "\r\n" {
			return "", fmt.Errorf("bulk of %s: %q, %v", line[1:], b, err)
		}
		return string(b[:n]), nil
	case '%':
		n *= 2
		fallthrough
	case '*':
		parts := make([]string, n)
		for i := range parts {
			if parts[i], err = c.read(); err != nil {
				return "", err
			}
		}
		return line[:1] + "[" + strings.Join(parts, " ") + "]", numErr
	}
	return "", fmt.Errorf("no reply begins like %q", line)
}

// ask sends a line of words and reads one reply.
func (c *client) ask(line string) string {
	c.t.Helper()
	c.send(line + "\r\n")
	return c.reply()
}

// closed fails the test unless the other side has closed, and says no more.
func (c *client) closed() {
	c.t.Helper()
	if b, err := io.ReadAll(c.r); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || len(b) > 0 {
		c.t.Fatalf("not closed in peace: %q, %v", b, err)
	}
}

// parse reads a flake.
func (c *client) parse(text string) flake.ID {
	c.t.Helper()
	id, err := flake.Parse(text)
	if err != nil {
		c.t.Fatalf("%q is no ID: %v", text, err)
	}
	return id
}
