package grpcserver_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/access"
)

// frame returns a frame of HTTP/2.
//
// Source: RFC 9113, section 4.1.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// halfCalls returns what opens n streams, and begins on each a message of 64,000
// bytes that never ends.
func halfCalls(method string, n int) []byte {
	return openCalls(method, n, func(stream uint32) []byte {
		b := frame(0, 0, stream, append([]byte{0, 0, 0, 250, 0}, make([]byte, 16_000)...))
		for range 2 {
			b = append(b, frame(0, 0, stream, make([]byte, 16_000))...)
		}
		return b
	})
}

// openCalls returns what opens n streams, with what body returns after the header of each.
func openCalls(method string, n int, body func(stream uint32) []byte) (b []byte) {
	var head []byte
	for _, kv := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "node"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"grpc-timeout", "99999999H"}} {
		head = append(head, 0, byte(len(kv[0])))
		head = append(head, kv[0]...)
		head = append(head, byte(len(kv[1])))
		head = append(head, kv[1]...)
	}
	for i := range n {
		stream := 1 + 2*uint32(i)
		b = append(b, frame(1, 4, stream, head)...)
		b = append(b, body(stream)...)
	}
	return b
}

// TestHealthWatchesOfAConnection: a connection has 8 of them, with tokens or without.
func TestHealthWatchesOfAConnection(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		b := newBounded(t, 0, guarded)
		conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		fatal.If(t, err)
		defer conn.Close()
		for i := range 9 {
			w, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
			if err == nil {
				_, err = w.Recv()
			}
			if full := status.Code(err) == codes.ResourceExhausted; full != (i == 8) {
				t.Errorf("guarded %v: watch %d: %v", guarded, i, err)
			}
		}
	}
}

// TestUnauthenticatedCallsHoldLittle: calls without a token whose messages never end are ended,
// although the transport would wait, with all that came of them in memory.
func TestUnauthenticatedCallsHoldLittle(t *testing.T) {
	t.Parallel()
	env, _, _ := servertest.NewGuarded(t, access.Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	g := env.GRPC.GRPC()
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for method, want := range map[string]int{
		"/allocator.v1.AllocatorService/Allocate":       100,
		"/allocator.v1.AllocatorService/Describe":       100,
		"/allocator.v1.AllocatorService/AllocateStream": 100,
		"/allocator.v1.AdminService/Drain":              100,
		"/grpc.health.v1.Health/Check":                  100,
		"/grpc.health.v1.Health/Watch":                  92, // 8 may go on
	} {
		all.Go(func() {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			_ = c.SetDeadline(time.Now().Add(wait.Most))
			go func() {
				_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
				_, _ = c.Write(frame(4, 0, 0, nil))
				_, _ = c.Write(halfCalls(method, 100))
			}()
			r := bufio.NewReader(c)
			for ended := 0; ended < want; {
				var head [9]byte
				if _, err := io.ReadFull(r, head[:]); err != nil {
					t.Errorf("%s: %d of %d calls were ended: %v", method, ended, want, err)
					return
				}
				_, _ = r.Discard(int(head[0])<<16 | int(head[1])<<8 | int(head[2]))
				if head[3] == 1 && head[4]&1 != 0 { // headers that end a stream
					ended++
				}
			}
		})
	}
}
