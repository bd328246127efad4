package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

func lines(first flake.ID, count int, stride flake.ID) (out string) {
	for i := range count {
		out += (first + flake.ID(i)*stride).String() + "\n"
	}
	return out
}

// overHTTP asks a server that answers with h once.
func overHTTP(t *testing.T, c Config, r Request, h http.HandlerFunc) (client.Block, error) {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	k, err := c.Open(HTTP, strings.TrimPrefix(s.URL, "http://"))
	fatal.If(t, err)
	defer k.Close()
	return k.Allocate(t.Context(), r)
}

func TestHTTPAnswers(t *testing.T) {
	for _, stride := range []int64{0, 32} {
		var after string
		b, err := overHTTP(t, Config{Stride: stride}, Request{Count: 3, After: ms(7)}, func(w http.ResponseWriter, r *http.Request) {
			after = r.URL.Query().Get("after")
			fmt.Fprint(w, lines(ms(9), 3, 32))
		})
		if err != nil || b.First != ms(9) || b.Count != 3 || b.Stride != 32 || after != ms(7).String() {
			t.Errorf("%+v, %v, after %q", b, err, after)
		}
	}
}

func TestHTTPRefusals(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		outcome Outcome
		reason  string
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"reason":"NO_SID"}`)
		}, Refused, "NO_SID"},
		{"cut off before an answer", func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_ = conn.Close()
			}
		}, Unknown, "connection"},
		{"cut off in a refusal", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"reason":`)
		}, Unknown, "connection"},
		{"cut off in an ID", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "02")
		}, Unknown, "connection"},
		{"an error page", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }, Broken, "broken contract"},
	} {
		_, err := overHTTP(t, Config{}, Request{Count: 1}, tc.handler)
		if outcome, reason := OutcomeOf(err); outcome != tc.outcome || reason != tc.reason {
			t.Errorf("%s: %v", tc.name, err)
		}
		if r, ok := errors.AsType[*client.Refusal](err); ok && r.RetryAfter != 2*time.Second {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
}

// TestBrokenAnswers: what breaks the API's contract is distinguished from a failure.
func TestBrokenAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"too few":      lines(ms(1000), 2, 32),
		"too many":     lines(ms(1000), 4, 32),
		"a gap":        lines(ms(1000), 3, 64),
		"the same":     lines(ms(1000), 3, 0),
		"no ID at all": "hello\n",
		"no answer":    "",
		"a web page":   "<html>\n",
	} {
		_, err := overHTTP(t, Config{Stride: 32}, Request{Count: 3}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
		if !errors.Is(err, ErrContract) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRESPAnswers(t *testing.T) {
	read := func(in string, limit int) (client.Block, error) {
		var b block
		err := readIDs(bufio.NewReader(strings.NewReader(in)), &b, limit)
		return b.Block, err
	}
	if b, err := read("$13\r\n02MVQDZ9NFSQ0\r\n", 1); err != nil || b.Count != 1 || b.First.String() != "02MVQDZ9NFSQ0" {
		t.Error(b, err)
	}
	if b, err := read("*2\r\n$13\r\n02MVQDZ9NFSQ0\r\n$13\r\n02MVQDZ9NFSR0\r\n", 2); err != nil || b.Count != 2 || b.Stride != 32 {
		t.Error(b, err)
	}
	for in, reason := range map[string]client.Reason{
		"-ERR ENTROPY_OVERFLOW IDs would run ahead (lead_ms=251)\r\n": client.EntropyOverflow,
		"-NOAUTH UNAUTHENTICATED no token\r\n":                        client.Unauthenticated,
	} {
		_, err := read(in, 1)
		if r, ok := errors.AsType[*client.Refusal](err); !ok || r.Reason != reason {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, in := range []string{"", "$-1\r\n", "$3\r\nabc\r\n", "*3\r\n", "*1\r\n*1\r\n", ":1\r\n", "-ERR unknown command\r\n", "$99\r\n", "\r\n"} {
		_, err := read(in, 2)
		if outcome, _ := OutcomeOf(err); outcome == OK || outcome == Refused {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// cutConn ends a call with its first write.
type cutConn struct {
	net.Conn
	end context.CancelFunc
}

func (c cutConn) Write([]byte) (int, error) {
	c.end()
	return 0, net.ErrClosed
}

// A call that ends while its connection fails leaves the next connection alone.
func TestRESPEnds(t *testing.T) {
	for range 100 {
		ctx, end := context.WithCancel(t.Context())
		near, far := net.Pipe()
		k, err := Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			return cutConn{near, end}, nil
		}}.Open(RESP, "")
		fatal.If(t, err)
		if _, err := k.Allocate(ctx, Request{Count: 1}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
		k.Close()
		end()
		_ = far.Close()
	}
}

// streams answers each request of a stream with the next IDs, or breaks off.
type streams struct {
	pb.UnimplementedAllocatorServiceServer
	cut bool
}

func (s *streams) AllocateStream(stream pb.AllocatorService_AllocateStreamServer) error {
	for n := 1; ; n++ {
		req, err := stream.Recv()
		if err != nil || s.cut {
			return err
		}
		if err := stream.Send(&pb.AllocateStreamResponse{Sequence: req.GetSequence(), Result: &pb.AllocateStreamResponse_Response{
			Response: &pb.AllocateResponse{First: int64(ms(n)), Count: req.GetRequest().GetCount(), Stride: 32}}}); err != nil {
			return err
		}
	}
}

func serve(t *testing.T, l net.Listener, s *streams) *grpc.Server {
	t.Helper()
	srv := grpc.NewServer()
	pb.RegisterAllocatorServiceServer(srv, s)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return srv
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	fatal.If(t, err)
	return l
}

// TestStaleStream: a stream that ended while nobody used it is opened anew and no
// request fails; one that ends during a request leaves its outcome unknown.
func TestStaleStream(t *testing.T) {
	addr := loopback.Address()
	l := listen(t, addr)
	k, err := Config{}.Open(Stream, addr)
	fatal.If(t, err)
	defer k.Close()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()
	srv := serve(t, l, &streams{})
	if _, err := k.Allocate(ctx, Request{Count: 2}); err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	stale := k.(*streamClient)
	if _, err := stale.stream.Recv(); err == nil { // It returns when the stream has ended.
		t.Fatal("a stopped server answered")
	}
	for stale.conn.GetState() == connectivity.Ready && stale.conn.WaitForStateChange(ctx, connectivity.Ready) {
	}
	serve(t, listen(t, addr), &streams{})
	if b, err := k.Allocate(ctx, Request{Count: 3}); err != nil || b.Count != 3 {
		t.Errorf("the request after a stream that ended while idle: %+v, %v", b, err)
	}
	l = listen(t, "127.0.0.1:0")
	serve(t, l, &streams{cut: true})
	k, err = (Config{}).Open(Stream, l.Addr().String())
	fatal.If(t, err)
	defer k.Close()
	_, err = k.Allocate(ctx, Request{Count: 2})
	if outcome, _ := OutcomeOf(err); outcome != Unknown {
		t.Errorf("a stream that ended during a request: %v", err)
	}
}
