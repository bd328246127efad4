package grpcserver_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/server/quota"
)

// bounded is a gRPC server whose connections have a quota.
type bounded struct {
	*servertest.Env
	quota  *quota.Quota
	addr   string
	tokens map[string]string
	conns  chan *quota.Conn // accepted, as many as fit
}

// accepting passes on what it accepts.
type accepting struct {
	net.Listener
	to chan *quota.Conn
}

func (a accepting) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept()
	if err == nil {
		select {
		case a.to <- quota.Of(c):
		default:
		}
	}
	return c, err
}

func newBounded(t *testing.T, memory int64, guarded bool) *bounded {
	t.Helper()
	b := &bounded{conns: make(chan *quota.Conn, 100)}
	if guarded {
		b.Env, b.tokens, _ = servertest.NewGuarded(t, access.Config{})
	} else {
		b.Env = servertest.New(t)
	}
	src := clock.NewSystem(nil)
	b.quota = quota.New(quota.Config{Now: func() clock.Mono { return src.Now().Mono }, Memory: memory})
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	b.addr = raw.Addr().String()
	g := b.GRPC.GRPC(grpc.Creds(grpcserver.WithQuota(insecure.NewCredentials())))
	l := b.quota.Listen(raw, quota.ListenerConfig{Connections: 1000})
	go func() { _ = g.Serve(accepting{l, b.conns}) }()
	t.Cleanup(g.Stop)
	return b
}

// dial returns a connection that sends b after the preface of HTTP/2.
func (b *bounded) dial(t *testing.T, sent []byte) net.Conn { return b.dialFrom(t, 1, sent) }

// dialFrom is dial from address 127.0.0.host.
func (b *bounded) dialFrom(t *testing.T, host byte, sent []byte) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}).Dial("tcp", b.addr)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		_, _ = c.Write(frame(4, 0, 0, nil))
		_, _ = c.Write(sent)
	}()
	return c
}

// honest calls the server on one connection until the returned function is called, which returns how many calls
// were made and how many failed.
func (b *bounded) honest(t *testing.T) func() (calls, failed int) {
	t.Helper()
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal.If(t, err)
	calls, failed := 0, 0
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, err := pb.NewAllocatorServiceClient(conn).Allocate(t.Context(), &pb.AllocateRequest{Count: 1})
			if calls++; status.Code(err) == codes.ResourceExhausted {
				b.Clock.Advance(time.Second) // the IDs of a millisecond of this clock are used up
			} else if err != nil {
				failed++
			}
			select {
			case <-ended:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return func() (int, int) {
		close(ended)
		<-done
		_ = conn.Close()
		return calls, failed
	}
}

// streamed returns what opens n streams of IDs and sends requests on each.
func streamed(n, requests int) []byte {
	var body []byte
	for i := range requests {
		body = append(body, 0, 0, 0, 0, 8, 0x08)
		body = append(binary.AppendUvarint(body, uint64(i+1)|1<<20), 0x12, 2, 0x08, 1)
	}
	return openCalls(pb.AllocatorService_AllocateStream_FullMethodName, n, func(stream uint32) (b []byte) {
		for part := range slices.Chunk(body, 16_000) {
			b = append(b, frame(0, 0, stream, part)...)
		}
		return b
	})
}

// calls returns what makes n unary calls with a message.
func calls(path string, n int, m []byte) []byte {
	m = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
	return openCalls(path, n, func(stream uint32) []byte { return frame(0, 1, stream, m) })
}

// A client of another protocol gets an answer in that protocol.
func TestOtherProtocols(t *testing.T) {
	b := newBounded(t, 64<<20, false)
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n":        "HTTP/1.1 400 Bad Request\r\n",
		"POST /v1/ids HTTP/1.1\r\nHost: x\r\n\r\n": "HTTP/1.1 400 Bad Request\r\n",
		"*1\r\n$7\r\nID.NEXT\r\n":                  "-ERR this is the gRPC port",
	} {
		c, err := net.Dial("tcp", b.addr)
		fatal.If(t, err)
		_ = c.SetDeadline(time.Now().Add(wait.Most))
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("%q is answered %q, %v", request, got, err)
		}
		_ = c.Close()
	}
}

// knownTransport is the release of grpc-go whose transport answers.go and package quota were compared with.
const knownTransport = "v1.85.0"

// TestTransportVersion fails when grpc-go is upgraded. What answers hold is counted until the transport frees them, and
// the limits of a connection rest on windows of 64 KiB for each stream, which do not wait for the handler to read.
// Neither is promised, and a release that frees later closes connections for memory that they do not hold.
func TestTransportVersion(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	fatal.If(t, err)
	m := regexp.MustCompile(`google.golang.org/grpc (\S+)`).FindSubmatch(mod)
	if m == nil || string(m[1]) != knownTransport {
		t.Fatalf("go.mod has grpc %q, and answers.go knows %s: compare Ref and Free in the library's "+
			"internal/transport/controlbuf.go and stream.go with answers.go, and handleData in http2_server.go with "+
			"quota/frames.go; run TestUnreadAnswersAreBounded and TestStreamIsNotFarAhead 100 times, and "+
			"\"make abuse\", then change knownTransport", m, knownTransport)
	}
}

// TestUnreadAnswersAreBounded: whatever a connection asks for and does not read, it holds a
// few answers. Those are forgotten when it is reset, and it is served again.
func TestUnreadAnswersAreBounded(t *testing.T) {
	for name, path := range map[string]string{
		"texts":   "/allocator.v1.AllocatorService/Allocate",
		"cluster": "/allocator.v1.AdminService/GetCluster",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBounded(t, 0, false)
			idle, _ := b.quota.Held()
			m := []byte{0x08, 0x90, 0x4e, 0x18, 4} // count: 10,000, form: FORM_UUID; nothing to the other
			c := b.dial(t, append(frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0}), calls(path, 20, m)...))
			var headers atomic.Int64
			go func() {
				for r := bufio.NewReader(c); ; {
					var head [9]byte
					if _, err := io.ReadFull(r, head[:]); err != nil {
						return
					}
					_, _ = r.Discard(int(head[0])<<16 | int(head[1])<<8 | int(head[2]))
					if head[3] == 1 {
						headers.Add(1)
					}
				}
			}()
			until := func(what string, done func() bool) {
				t.Helper()
				wait.Until(t, what, func() bool {
					b.Clock.Advance(10 * time.Millisecond)
					if held, _ := b.quota.Held(); held > idle+8<<20 {
						t.Fatalf("%d bytes are held", held)
					}
					return done()
				})
			}
			until("answers", func() bool { return headers.Load() > 0 })
			for stream := range uint32(20) {
				_, _ = c.Write(frame(3, 0, 2*stream+1, []byte{0, 0, 0, 8}))
			}
			until("resets", func() bool {
				runtime.GC() // The transport forgets an answer for a stream that has just been reset; see codec.
				held, _ := b.quota.Held()
				return held <= idle+64<<10
			})
			began := headers.Load()
			_, _ = c.Write(calls(path, 21, m)[20*len(calls(path, 1, m)):])
			until("one more", func() bool { return headers.Load() > began })
		})
	}
}

// TestStreamIsNotFarAhead: a stream whose answers are not read issues a few IDs, and goes on
// when they are.
func TestStreamIsNotFarAhead(t *testing.T) {
	const ahead, requests = 256, 3000
	b := newBounded(t, 0, false)
	c := b.dial(t, append(frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0}), streamed(1, requests)...)) // SETTINGS_INITIAL_WINDOW_SIZE 0
	go func() { _, _ = io.Copy(io.Discard, c) }()
	until := func(issued int64) {
		t.Helper()
		wait.Until(t, fmt.Sprint(issued, " IDs are issued"), func() bool { return b.Node.Stats().Issued >= issued })
	}
	until(ahead)
	honest := b.honest(t)
	until(ahead + 50)
	calls, failed := honest()
	if n := b.Node.Stats().Issued; failed > 0 || n > int64(ahead+calls) {
		t.Fatalf("%d IDs were issued for %d honest calls, %d failed, and a stream that is not read", n, calls, failed)
	}
	_, _ = c.Write(frame(8, 0, 1, []byte{0, 16, 0, 0})) // WINDOW_UPDATE of the stream by 1 MiB
	_, _ = c.Write(frame(8, 0, 0, []byte{0, 16, 0, 0}))
	until(int64(requests + calls))
}

// TestIDStreamsOfAConnection: one stream more than a connection may have is refused.
func TestIDStreamsOfAConnection(t *testing.T) {
	b := newBounded(t, 0, false)
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal.If(t, err)
	defer conn.Close()
	for i := range 18 {
		s, err := pb.NewAllocatorServiceClient(conn).AllocateStream(t.Context())
		if err == nil {
			_ = s.Send(&pb.AllocateStreamRequest{Sequence: 1, Request: &pb.AllocateRequest{Count: 1}})
			_, err = s.Recv()
		}
		if want := map[bool]codes.Code{true: codes.OK, false: codes.ResourceExhausted}[i < 16]; status.Code(err) != want {
			t.Errorf("stream %d: %v", i, err)
		}
	}
}

// TestEveryMethodProvesItsConnection: a caller that uses one method alone is none that never
// made a valid call.
func TestEveryMethodProvesItsConnection(t *testing.T) {
	b := newBounded(t, 0, true)
	b.Report(func(s *lease.Status) { s.Mark = lease.Mark{Era: 1, At: servertest.Start, Nonce: "n"} })
	id := "0000000000001"
	watch, ids, symbols := &pb.WatchEventsRequest{}, &pb.AllocateStreamRequest{Request: &pb.AllocateRequest{Count: 1}},
		&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	type call struct {
		method string
		token  string
		request,
		response proto.Message
		stream bool
	}
	calls := []call{
		{pb.AllocatorService_Allocate_FullMethodName, "issue", &pb.AllocateRequest{Count: 1}, &pb.AllocateResponse{}, false},
		{pb.AllocatorService_Allocate_FullMethodName, "issue", &pb.AllocateRequest{Count: 1, Form: pb.Form_FORM_UUID}, &pb.AllocateResponse{}, false},
		{pb.AllocatorService_AllocateStream_FullMethodName, "issue", ids, &pb.AllocateStreamResponse{}, true},
		{pb.AllocatorService_Describe_FullMethodName, "read", &pb.DescribeRequest{Id: id}, &pb.DescribeResponse{}, false},
		{pb.AllocatorService_GetWatermark_FullMethodName, "read", &pb.GetWatermarkRequest{}, &pb.Watermark{}, false},
		{pb.AllocatorService_WatchWatermark_FullMethodName, "read", &pb.WatchWatermarkRequest{}, &pb.Watermark{}, true},
		{pb.AdminService_GetCluster_FullMethodName, "read", &pb.GetClusterRequest{}, &pb.GetClusterResponse{}, false},
		{pb.AdminService_GetDebug_FullMethodName, "read", &pb.GetDebugRequest{}, &pb.DebugPart{}, true},
		{pb.AdminService_WatchEvents_FullMethodName, "read", watch, &pb.WatchEventsResponse{}, true},
		{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "read", symbols, &reflectionpb.ServerReflectionResponse{}, true},
		{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "read", symbols, &reflectionpb.ServerReflectionResponse{}, true},
		{pb.AdminService_Drain_FullMethodName, "admin", &pb.DrainRequest{}, &pb.DrainResponse{}, false},
		{pb.AdminService_Undrain_FullMethodName, "admin", &pb.UndrainRequest{}, &pb.UndrainResponse{}, false},
	}
	missing := grpcserver.ScopedMethods()
	for _, c := range calls {
		delete(missing, c.method)
		conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		fatal.If(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+b.tokens[c.token])
		if c.stream {
			var s grpc.ClientStream
			if s, err = conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, c.method); err == nil {
				_ = s.SendMsg(c.request)
				switch c.request.(type) {
				case *pb.WatchEventsRequest, *pb.WatchWatermarkRequest, *pb.GetDebugRequest:
					_ = s.CloseSend()
				}
				err = s.RecvMsg(c.response)
			}
		} else {
			err = conn.Invoke(ctx, c.method, c.request, c.response)
		}
		if accepted := <-b.conns; err != nil || !accepted.Proven() {
			t.Errorf("%s: %v; the connection is not proven", c.method, err)
		}
		_ = conn.Close()
		cancel()
	}
	for method := range missing {
		if strings.Contains(method, "WorkerService") { // Its calls fail here: nothing serves workers.
			continue
		}
		t.Errorf("%s: not called", method)
	}
}

// waitingCalls returns what opens n calls that wait for the watermark to be above after.
func waitingCalls(t *testing.T, after int64, n int) []byte {
	message, err := proto.Marshal(&pb.GetWatermarkRequest{After: after, WaitMs: time.Minute.Milliseconds()})
	fatal.If(t, err)
	message = append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	return openCalls(pb.AllocatorService_GetWatermark_FullMethodName, n, func(stream uint32) []byte {
		return frame(0, 1, stream, message)
	})
}

// TestWatermarkStreamsAreCounted: a client has 64 streams of the watermark, however many connections it uses, which
// hold what they were measured to hold until they end. One more is refused.
func TestWatermarkStreamsAreCounted(t *testing.T) {
	b := newBounded(t, 0, false)
	b.Report(func(s *lease.Status) { s.Mark = lease.Mark{Era: 1, At: servertest.Start, Nonce: "n"} })
	before, _ := b.quota.Held()
	open := func(from byte) (pb.AllocatorServiceClient, func() error) {
		conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}
				return (&net.Dialer{LocalAddr: local}).DialContext(ctx, "tcp", addr)
			}))
		fatal.If(t, err)
		return pb.NewAllocatorServiceClient(conn), conn.Close
	}
	watch := func(c pb.AllocatorServiceClient) error {
		s, err := c.WatchWatermark(t.Context(), &pb.WatchWatermarkRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	var leave []func() error
	for range 4 {
		client, end := open(1)
		leave = append(leave, end)
		for range 16 {
			fatal.If(t, watch(client))
		}
	}
	if held, _ := b.quota.Held(); held-before < 64*23_000 {
		t.Errorf("64 streams hold %d bytes, and 1.5 MB were measured", held-before)
	}
	fifth, end := open(1)
	if err := watch(fifth); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "64 streams of the watermark of a client") {
		t.Errorf("stream 65: %v", err)
	}
	other, endOther := open(2)
	if err := watch(other); err != nil {
		t.Errorf("another client: %v", err)
	}
	for _, end := range append(leave, end, endOther) {
		_ = end()
	}
	wait.Until(t, "nothing is held", func() bool { held, _ := b.quota.Held(); return held == before })
}

// TestThousandsOfReaders: as many callers as may wait for the watermark, a hundred on each
// connection, hold 82 MB of a node, and all are answered when it has passed their ID. etcd is
// not asked.
func TestThousandsOfReaders(t *testing.T) {
	tier.Check(t, "4,000 calls at once")
	const conns, calls = 40, 100
	b := newBounded(t, 0, false)
	set := func(at clock.Millis) {
		b.Report(func(s *lease.Status) { s.Mark = lease.Mark{Era: 1, At: at, Nonce: "n"} })
	}
	set(servertest.Start)
	memory := func() uint64 {
		for range 5 { // Each collection halves the stacks of goroutines that wait.
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before, sent := memory(), waitingCalls(t, servertest.At(servertest.Start, 0).Int64(), calls)
	answered := make(chan error, conns)
	for i := range conns {
		c := b.dialFrom(t, byte(1+i%4), sent)
		go func() {
			head, in := make([]byte, 9), bufio.NewReader(c)
			for ended := 0; ended < calls; {
				_, err := io.ReadFull(in, head)
				if err == nil {
					_, err = in.Discard(int(head[0])<<16 | int(head[1])<<8 | int(head[2]))
				}
				if err != nil {
					answered <- fmt.Errorf("after %d answers: %w", ended, err)
					return
				}
				if head[3] == 1 && head[4]&1 != 0 { // HEADERS that end a stream
					ended++
				}
			}
			answered <- nil
		}()
	}
	for b.Service.Marks().Waiting() < conns*calls {
		select {
		case err := <-answered:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	used := memory() - before
	t.Logf("%d readers hold %d MB", conns*calls, used/1e6)
	if used > 82e6 && !tier.Raced {
		t.Errorf("%d readers hold %d MB", conns*calls, used/1e6)
	}
	set(servertest.Start + 1)
	for range conns {
		fatal.If(t, <-answered)
	}
	if b.Dir.Loads != 0 {
		t.Errorf("etcd was read %d times", b.Dir.Loads)
	}
}

// TestWaitingCallsAreNotStalled: calls that wait for the watermark for longer than unfinished
// calls may are served.
func TestWaitingCallsAreNotStalled(t *testing.T) {
	tier.Check(t, "it waits for 15 s")
	t.Parallel()
	b := newBounded(t, 0, false)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = b.quota.Run(ctx) }()
	b.Report(func(s *lease.Status) { s.Mark = lease.Mark{Era: 1, At: servertest.Start, Nonce: "n"} })
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal.If(t, err)
	defer conn.Close()
	ended := make(chan error, 20)
	for range cap(ended) {
		go func() {
			_, err := pb.NewAllocatorServiceClient(conn).GetWatermark(ctx, &pb.GetWatermarkRequest{
				After: servertest.At(servertest.Start, 0).Int64(), WaitMs: 15_000,
			})
			ended <- err
		}()
	}
	for range cap(ended) {
		fatal.If(t, <-ended)
	}
}
