package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/time/rate"
)

// attacker is one attack under way, in a process of its own.
type attacker struct {
	target
	sources int // addresses that it comes from
	limit   *rate.Limiter
	next    atomic.Int64
	opened  atomic.Int64 // connections
	bytes   atomic.Int64 // sent
	units   atomic.Int64 // requests, frames or packets, whatever it repeats
}

// bandwidth bounds what an attack sends, in bytes a second, to most of a gigabit:
// more than its link lets through reaches no node.
const bandwidth = 100 << 20

// counted counts what is sent on a connection.
type counted struct {
	net.Conn
	ctx context.Context
	a   *attacker
}

func (c counted) Write(b []byte) (int, error) {
	if err := c.a.limit.WaitN(c.ctx, min(len(b), bandwidth/10)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	c.a.bytes.Add(int64(n))
	return n, err
}

// dial connects to addr from one of the attack's addresses. They are of loopback,
// but not that of the honest callers.
func (a *attacker) dial(ctx context.Context, addr string) (net.Conn, error) {
	d, network := net.Dialer{Timeout: 5 * time.Second}, "unix"
	if addr != a.Socket {
		d.LocalAddr, network = &net.TCPAddr{IP: a.source()}, "tcp"
	}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	a.opened.Add(1)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return counted{conn, ctx, a}, nil
}

func (a *attacker) source() net.IP {
	n := a.next.Add(1) % int64(max(a.sources, 1))
	return net.IPv4(127, 0, 66, byte(n+1))
}

// dialTLS connects to a port with TLS.
func (a *attacker) dialTLS(ctx context.Context, addr string, protocols ...string) (net.Conn, error) {
	conn, err := a.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	t := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return t, nil
}

// each runs f n times at once, each again and again until ctx ends. After an error
// it waits a moment, as a refused client has to.
func each(ctx context.Context, n int, f func(context.Context) error) {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := f(ctx); err != nil {
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Millisecond):
					}
				}
			}
		})
	}
	all.Wait()
}

// h2 is one HTTP/2 connection that does as it is told.
type h2 struct {
	a    *attacker
	conn net.Conn
	ctx  context.Context

	mu      sync.Mutex // guards what follows
	w       *bufio.Writer
	fr      *http2.Framer
	enc     *hpack.Encoder
	block   bytes.Buffer
	next    uint32
	conWin  int64
	initial int64
	windows map[uint32]int64
	changed chan struct{} // closed and replaced when a window grew
	broken  error
}

// h2To opens a connection to a TLS port and sends the preface and settings. The
// server's frames are read, and answered, if read is set.
func (a *attacker) h2To(ctx context.Context, addr string, read bool, settings ...http2.Setting) (*h2, error) {
	conn, err := a.dialTLS(ctx, addr, "h2")
	if err != nil {
		return nil, err
	}
	c := &h2{
		a:       a,
		conn:    conn,
		ctx:     ctx,
		w:       bufio.NewWriterSize(conn, 32<<10),
		next:    1,
		conWin:  65535,
		initial: 65535,
		windows: map[uint32]int64{},
		changed: make(chan struct{}),
	}
	c.fr = http2.NewFramer(c.w, conn)
	c.fr.AllowIllegalWrites = true
	c.enc = hpack.NewEncoder(&c.block)
	if _, err := c.w.WriteString(http2.ClientPreface); err != nil {
		return nil, c.fail(err)
	}
	if err := errors.Join(c.fr.WriteSettings(settings...), c.w.Flush()); err != nil {
		return nil, c.fail(err)
	}
	if read {
		go c.read()
	}
	return c, nil
}

func (c *h2) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
		close(c.changed)
		_ = c.conn.Close()
	}
	return c.broken
}

func (c *h2) close() { _ = c.fail(io.ErrClosedPipe) }

// read answers what the server sends, but gives it no windows.
func (c *h2) read() {
	for {
		f, err := c.fr.ReadFrame()
		if err != nil {
			_ = c.fail(err)
			return
		}
		c.mu.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
					for id := range c.windows {
						c.windows[id] += int64(v) - c.initial
					}
					c.initial = int64(v)
				}
				_ = c.fr.WriteSettingsAck()
				_ = c.w.Flush()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = c.fr.WritePing(true, f.Data)
				_ = c.w.Flush()
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				c.conWin += int64(f.Increment)
			} else {
				c.windows[f.StreamID] += int64(f.Increment)
			}
			c.wake()
		case *http2.RSTStreamFrame:
			delete(c.windows, f.StreamID)
			c.wake()
		}
		c.mu.Unlock()
	}
}

func (c *h2) wake() {
	if c.broken == nil {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// do writes frames under the lock.
func (c *h2) do(f func(fr *http2.Framer) error) error {
	c.mu.Lock()
	err := c.broken
	if err == nil {
		err = f(c.fr)
	}
	c.mu.Unlock()
	if err != nil {
		return c.fail(err)
	}
	c.a.units.Add(1)
	return nil
}

func (c *h2) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w.Flush()
}

// open begins a stream; the fields are pairs.
func (c *h2) open(end bool, fields ...string) (id uint32, err error) {
	err = c.do(func(fr *http2.Framer) error {
		id = c.next
		c.next += 2
		c.windows[id] = c.initial
		c.block.Reset()
		for i := 0; i+1 < len(fields); i += 2 {
			_ = c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		return fr.WriteHeaders(http2.HeadersFrameParam{
			StreamID:      id,
			BlockFragment: c.block.Bytes(),
			EndStream:     end,
			EndHeaders:    true,
		})
	})
	return id, err
}

// call begins a gRPC call of the service for IDs.
func (c *h2) call(method, token string) (uint32, error) {
	return c.callPath("/allocator.v1.AllocatorService/"+method, token)
}

// callPath begins a gRPC call.
func (c *h2) callPath(path, token string) (uint32, error) {
	fields := []string{":method", "POST", ":scheme", "https", ":path", path, ":authority", "node",
		"content-type", "application/grpc", "te", "trailers"}
	if token != "" {
		fields = append(fields, "authorization", "Bearer "+token)
	}
	return c.open(false, fields...)
}

// data sends up to n zeros on a stream, as many as its windows allow, and returns
// how many those were.
func (c *h2) data(id uint32, n int) (sent int, err error) {
	return c.write(id, make([]byte, n))
}

func (c *h2) write(id uint32, b []byte) (sent int, err error) {
	err = c.do(func(fr *http2.Framer) error {
		window, ok := c.windows[id]
		if !ok {
			return nil
		}
		sent = int(min(int64(len(b)), 16<<10, window, c.conWin))
		if sent <= 0 {
			sent = 0
			return nil
		}
		c.windows[id] -= int64(sent)
		c.conWin -= int64(sent)
		return fr.WriteData(id, false, b[:sent])
	})
	return sent, err
}

// room waits until a window has grown.
func (c *h2) room() error {
	c.mu.Lock()
	changed, err := c.changed, c.broken
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-c.ctx.Done():
		return c.ctx.Err()
	case <-changed:
	case <-time.After(time.Second):
	}
	return nil
}

// hold waits until ctx ends or the other side closes.
func hold(ctx context.Context, conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	if ctx.Err() == nil && err == nil {
		err = io.EOF
	}
	return err
}

// repeat writes b to a connection again and again, and reads nothing unless read
// is set.
func (a *attacker) repeat(ctx context.Context, conn net.Conn, b []byte, units int, read bool) error {
	if read {
		go func() { _ = hold(ctx, conn) }()
	}
	for ctx.Err() == nil {
		if _, err := conn.Write(b); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		a.units.Add(int64(units))
	}
	return ctx.Err()
}
