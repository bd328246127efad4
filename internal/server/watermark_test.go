package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/watermark"
)

// mark has the node read a watermark.
func mark(env *servertest.Env, at clock.Millis, change ...func(*lease.Mark)) {
	env.Report(func(s *lease.Status) {
		s.Mark = lease.Mark{Era: 1, At: at, Nonce: "n", Node: "node-b", Wall: at}
		for _, f := range change {
			f(&s.Mark)
		}
	})
}

// blocked is a mark with everything in it.
func blocked(m *lease.Mark) {
	m.Blocked = []lease.Blocker{{SID: 3, Node: "node-c", Why: lease.BlockedSilent, Floor: m.At + 1, Ceil: m.At + 2}}
	m.Rests = lease.Blocker{SID: 4, Node: "node-d", Why: lease.BlockedVanished, Floor: m.At - 5, Ceil: m.At - 1}
	m.Uncovered = "8-9"
}

// watermarks asks for the watermark over each listener. The reason is "" if it was answered.
func (x fixture) watermarks() map[string]func(after flake.ID, wait time.Duration) (watermark.Answer, answer) {
	bulk := func(after flake.ID, wait time.Duration) (watermark.Answer, answer) {
		if after != 0 || wait != 0 {
			x.T.Skip("Redis clients cannot wait")
		}
		r := x.Redis("ID.WATERMARK")
		head, err := r.ReadString('\n')
		fatal.If(x.T, err)
		head = strings.TrimSuffix(head, "\r\n")
		if head[0] == '-' {
			return watermark.Answer{}, x.respRefusal(head[1:])
		}
		n, _ := strconv.Atoi(head[1:])
		text := make([]byte, n)
		if _, err := io.ReadFull(r, text); err != nil {
			x.T.Fatalf("%q: %v", head, err)
		}
		var a watermark.Answer
		fatal.If(x.T, json.Unmarshal(text, &a))
		return a, answer{}
	}
	return map[string]func(flake.ID, time.Duration) (watermark.Answer, answer){
		"http": func(after flake.ID, wait time.Duration) (watermark.Answer, answer) {
			q := url.Values{}
			if after != 0 {
				q.Set("after", servertest.Decimal(after))
			}
			if wait != 0 {
				q.Set("wait", wait.String())
			}
			res := x.Do("GET", "/v1/watermark?"+q.Encode(), "")
			if res.StatusCode != 200 {
				return watermark.Answer{}, x.httpAnswer(res)
			}
			x.isOf(spaceOf(res))
			return servertest.Body[watermark.Answer](x.T, res), answer{}
		},
		"grpc": func(after flake.ID, wait time.Duration) (watermark.Answer, answer) {
			var header metadata.MD
			res, err := x.Client().GetWatermark(x.T.Context(),
				&pb.GetWatermarkRequest{After: after.Int64(), WaitMs: wait.Milliseconds()}, grpc.Header(&header))
			if err != nil {
				return watermark.Answer{}, statusAnswer(x.T, err)
			}
			x.isOf(spaceIn(header))
			return status.WatermarkOf(res), answer{}
		},
		"resp": bulk,
	}
}

// TestWatermarkSurfacesAgree: every listener gives the same answer, and the same refusal.
func TestWatermarkSurfacesAgree(t *testing.T) {
	below, above := servertest.At(servertest.Start-1001, 0), servertest.At(servertest.Start-1000, 0)
	for name, c := range map[string]struct {
		set   func(*servertest.Env)
		after flake.ID
		wait  time.Duration
		want  string
	}{
		"nothing holds it":     {set: func(e *servertest.Env) { mark(e, servertest.Start-1000) }},
		"much does":            {set: func(e *servertest.Env) { mark(e, servertest.Start-1000, blocked) }},
		"it has passed the ID": {set: func(e *servertest.Env) { mark(e, servertest.Start-1000) }, after: below, wait: time.Minute},
		"in time it does not":  {set: func(e *servertest.Env) { mark(e, servertest.Start-1000) }, after: above, wait: time.Millisecond},
		"a node that drains":   {set: func(e *servertest.Env) { mark(e, servertest.Start); servertest.Draining.Set(e) }},
		"none was read":        {set: func(*servertest.Env) {}, want: "STARTING"},
		"rewound":              {set: func(e *servertest.Env) { mark(e, servertest.Start); servertest.Rewound.Set(e) }, want: "HISTORY_REWOUND"},
		"waits for too long":   {set: func(e *servertest.Env) { mark(e, servertest.Start) }, after: above, wait: time.Minute + time.Millisecond, want: "INVALID_FORMAT"},
		"waits for nothing":    {set: func(e *servertest.Env) { mark(e, servertest.Start) }, wait: time.Second, want: "INVALID_FORMAT"},
		"waits back":           {set: func(e *servertest.Env) { mark(e, servertest.Start) }, after: above, wait: -time.Millisecond, want: "INVALID_FORMAT"},
		"no ID":                {set: func(e *servertest.Env) { mark(e, servertest.Start) }, after: -5, want: "INVALID_ID"},
	} {
		t.Run(name, func(t *testing.T) {
			env := servertest.New(t)
			c.set(env)
			want, _ := env.Service.Marks().Read()
			for on, ask := range (fixture{env}).watermarks() {
				if on == "resp" && (c.after != 0 || c.wait != 0) {
					continue
				}
				reason := node.ReasonOf(c.want)
				before := env.Node.Stats().Refused[reason]
				got, refused := ask(c.after, c.wait)
				if refused.Reason != c.want {
					t.Errorf("%s: refused with %+v, want %q", on, refused, c.want)
				}
				if d := cmp.Diff(want, got); c.want == "" && d != "" {
					t.Errorf("%s:\n%s", on, d)
				}
				if n := env.Node.Stats().Refused[reason] - before; c.want != "" && n != 1 {
					t.Errorf("%s: the refusal was counted %d times", on, n)
				}
			}
		})
	}
}

// TestLongPoll: a request waits until the watermark is above its ID, over HTTP for longer
// than other requests may take, and every reader is answered from what the node has read.
func TestLongPoll(t *testing.T) { synctest.Test(t, testLongPoll) }

func testLongPoll(t *testing.T) {
	env := servertest.New(t)
	mark(env, servertest.Start-1)
	node := serveHTTP(t, env.HTTP)
	id := servertest.At(servertest.Start, 5)
	answers := make(chan int64, 3)
	for _, text := range []string{id.String(), servertest.Decimal(id), servertest.Wide(id).UUID()} {
		go func() {
			res, err := node.Get("http://node/v1/watermark?wait=30s&after=" + text)
			if err != nil {
				t.Error(err)
				answers <- 0
				return
			}
			defer func() { _ = res.Body.Close() }()
			answers <- servertest.Body[watermark.Answer](t, res).At
		}()
	}
	time.Sleep(10 * time.Second) // The server's own limits, here of a second, would end other requests.
	mark(env, servertest.Start)
	mark(env, servertest.Start+1)
	for range 3 {
		if at := <-answers; at != int64(servertest.Start+1) {
			t.Errorf("answered at %d", at-int64(servertest.Start))
		}
	}
	if env.Dir.Loads != 0 {
		t.Errorf("etcd was read %d times", env.Dir.Loads)
	}
}

// TestBodiesThatNeverCome: a request whose body never comes is answered all the same, and ends by the limit
// for reading it.
func TestBodiesThatNeverCome(t *testing.T) { synctest.Test(t, testBodiesThatNeverCome) }

func testBodiesThatNeverCome(t *testing.T) {
	env := servertest.New(t)
	mark(env, servertest.Start)
	node := serveHTTP(t, env.HTTP)
	for name, line := range map[string]string{
		"a wait":                 "/v1/watermark?wait=10ms&after=" + servertest.Decimal(servertest.At(servertest.Start, 5)),
		"a stream of watermarks": "/v1/watermark",
		"a stream of events":     "/v1/events",
	} {
		c, err := node.dial()
		fatal.If(t, err)
		defer func() { _ = c.Close() }()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		accept := ""
		if strings.Contains(name, "stream") {
			accept = "Accept: text/event-stream\r\n"
		}
		_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: node\r\nContent-Length: 5\r\n%s\r\n", line, accept)
		fatal.If(t, err)
		head := make([]byte, len("HTTP/1.1 200"))
		if _, err := io.ReadFull(c, head); err != nil || string(head) != "HTTP/1.1 200" {
			t.Errorf("%s: %q, %v", name, head, err)
		}
	}
}

// TestWaitsOverHTTP: while a caller waits, its connection counts as one of a caller, and is not closed to make room
// for another. One that does not read the answer is closed.
func TestWaitsOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := servertest.New(t)
		mark(env, servertest.Start)
		began := time.Now()
		q := quota.New(quota.Config{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }})
		swept, stop := context.WithCancel(t.Context())
		go func() { _ = q.Run(swept) }()
		pipe := bufconn.Listen(16)
		l := noted{q.Listen(pipe, quota.ListenerConfig{Connections: 1}), make(chan net.Conn, 2)}
		s := httpserver.NewServer(env.HTTP, slog.New(slog.DiscardHandler))
		go func() { _ = s.Serve(l) }()
		defer stop()
		defer func() { _ = s.Close() }()
		dial := func() net.Conn {
			c, err := pipe.Dial()
			fatal.If(t, err)
			return c
		}
		c := dial()
		defer func() { _ = c.Close() }()
		conn := quota.Of(<-l.conns)
		if conn.Proven() {
			t.Error("a connection without a call counts")
		}
		_, err := fmt.Fprintf(c, "GET /v1/watermark?wait=60s&after=%v HTTP/1.1\r\nHost: n\r\n\r\n",
			servertest.At(servertest.Start, 5))
		fatal.If(t, err)
		time.Sleep(50 * time.Second)
		if !conn.Proven() || env.Service.Marks().Waiting() != 1 {
			t.Errorf("of a caller that waits %v, and %d wait", conn.Proven(), env.Service.Marks().Waiting())
		}
		other := dial()
		if _, err := other.Read(make([]byte, 1)); err == nil || env.Service.Marks().Waiting() != 1 {
			t.Errorf("the connection of a caller that waits made room for another: %v", err)
		}
		time.Sleep(time.Minute) // Nobody reads the answer.
		_ = c.SetReadDeadline(time.Now().Add(time.Hour))
		if answer, err := io.ReadAll(c); err != nil || len(answer) > 64 {
			t.Errorf("an answer that is not read holds its connection: %v, %d bytes", err, len(answer))
		}
	})
}

// noted is a listener that hands its connections to a test too.
type noted struct {
	net.Listener
	conns chan net.Conn
}

func (l noted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.conns <- c
	}
	return c, err
}

// TestWatermarkPlaces: of one client, and of all, some may wait for the watermark or watch it at once. One more is
// refused at once, and served when another has left. Who does not wait needs no place.
func TestWatermarkPlaces(t *testing.T) { synctest.Test(t, testWatermarkPlaces) }

func testWatermarkPlaces(t *testing.T) {
	env := servertest.New(t)
	mark(env, servertest.Start)
	ahead := servertest.At(servertest.Start, 5)
	caller, _ := (*access.Guard)(nil).Identify(server.CredentialsOf(nil, "192.0.2.1:1234")) // as env.Do asks
	for name, c := range map[string]struct {
		each, all int
		ask       func(ctx context.Context, client string) error
		http      *http.Request
	}{
		"waits": {1024, 4096, func(ctx context.Context, client string) error {
			_, err := env.Service.Watermark(ctx, client, ahead, time.Minute, func() {})
			return err
		}, httptest.NewRequest("GET", "/v1/watermark?wait=60s&after="+ahead.String(), nil)},
		"streams": {64, 960, func(ctx context.Context, client string) error {
			return env.Service.WatchWatermark(ctx, client, nil, func(*watermark.Shared, bool) error { return nil })
		}, httptest.NewRequest("GET", "/v1/watermark", nil)},
	} {
		ctx, leave := context.WithCancel(t.Context())
		ended, asked := make(chan error, c.all), 0
		ask := func(client string) {
			asked++
			go func() { ended <- c.ask(ctx, client) }()
		}
		refused := func(client, what string) {
			t.Helper()
			r, ok := errors.AsType[*node.Refusal](c.ask(ctx, client))
			if !ok || r.Reason != node.RateLimited || r.RetryAfter == 0 {
				t.Errorf("%s: %s: %v", name, what, r)
			}
		}
		for range c.each {
			ask(caller.Owner())
		}
		synctest.Wait()
		refused(caller.Owner(), "one more of the client")
		c.http.Header.Set("Accept", map[string]string{"streams": "text/event-stream"}[name])
		if got := (fixture{env}).httpAnswer(env.Send(c.http)); got.Reason != "RATE_LIMITED" {
			t.Errorf("%s: over HTTP: %+v", name, got)
		}
		if res := env.Do("GET", "/v1/watermark?after="+ahead.String(), ""); res.StatusCode != 200 {
			t.Errorf("%s: who does not wait: %d", name, res.StatusCode)
		}
		for i := asked; i < c.all; i++ {
			ask(fmt.Sprint("client-", i/c.each))
		}
		synctest.Wait()
		refused("another", "one more of another client")
		if len(ended) > 0 {
			t.Errorf("%s: %d ended: %v", name, len(ended), <-ended)
		}
		leave()
		for range asked {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: %v", name, err)
			}
		}
		ctx, leave = context.WithCancel(t.Context())
		ask(caller.Owner())
		synctest.Wait()
		if len(ended) > 0 {
			t.Errorf("%s: after all have left: %v", name, <-ended)
		}
		leave()
		<-ended
	}
}

// TestHTTPReaders: callers that wait over HTTP, each on a connection of its own, hold twice as much of a
// node as calls of gRPC. These come from four addresses.
func TestHTTPReaders(t *testing.T) {
	tier.Check(t, "4,000 connections")
	const readers = 4000
	env := servertest.New(t)
	mark(env, servertest.Start)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	s, address := httpserver.NewServer(env.HTTP, slog.New(slog.DiscardHandler)), l.Addr().String()
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	memory := func() uint64 {
		for range 5 { // Each collection halves the stacks of goroutines that wait.
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	request := fmt.Sprintf("GET /v1/watermark?wait=60s&after=%s HTTP/1.1\r\nHost: %s\r\n\r\n",
		servertest.At(servertest.Start, 5), address)
	conns := make([]net.Conn, readers)
	before := memory()
	for i := range conns {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%4))}
		c, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", address)
		fatal.If(t, err)
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		conns[i] = c
	}
	wait.Until(t, "all wait", func() bool { return env.Service.Marks().Waiting() == readers })
	each := (memory() - before) / readers
	t.Logf("a reader holds %.1f kB", float64(each)/1e3)
	if each > 35_000 && !tier.Raced {
		t.Errorf("a reader holds %d bytes", each)
	}
	mark(env, servertest.Start+1)
	for i, c := range conns {
		head := make([]byte, len("HTTP/1.1 200"))
		if _, err := io.ReadFull(c, head); err != nil || string(head) != "HTTP/1.1 200" {
			t.Fatalf("reader %d: %q, %v", i, head, err)
		}
	}
	if env.Dir.Loads != 0 {
		t.Errorf("etcd was read %d times", env.Dir.Loads)
	}
}

// TestBadWatermarkQueries: what a client may write wrongly over HTTP.
func TestBadWatermarkQueries(t *testing.T) {
	env := servertest.New(t)
	mark(env, servertest.Start)
	for query, want := range map[string]string{
		"wait=30&after=5":                "INVALID_FORMAT",
		"wait=9999999999999h&after=5":    "INVALID_FORMAT",
		"wait=61s&after=5":               "INVALID_FORMAT",
		"after=5&after=6":                "INVALID_FORMAT",
		"since=5":                        "INVALID_FORMAT",
		"after=%zz":                      "INVALID_FORMAT",
		"after=":                         "INVALID_ID",
		"after=nonsense":                 "INVALID_ID",
		"after=9223372036854775808":      "INVALID_ID",
		"after=01M7WXJ6M6E5S817MJCVRRKD": "INVALID_ID",
	} {
		if got := (fixture{env}).httpAnswer(env.Do("GET", "/v1/watermark?"+query, "")); got.Reason != want {
			t.Errorf("%s: %+v, want %s", query, got, want)
		}
	}
	if res := env.Do("GET", "/v1/watermark?after=5", "", "Accept", "text/event-stream"); res.StatusCode != 400 {
		t.Errorf("a stream with after: %d", res.StatusCode)
	}
	if res := env.Do("POST", "/v1/watermark", ""); res.StatusCode != 405 || res.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d", res.StatusCode)
	}
	js := servertest.New(t)
	mark(js, servertest.Start)
	_, err := js.Client().GetWatermark(t.Context(), &pb.GetWatermarkRequest{After: 5, WaitMs: 1 << 62})
	if got := statusAnswer(t, err); got.Reason != "INVALID_FORMAT" {
		t.Errorf("a wait that overflows: %+v", got)
	}
}

// TestWatermarkStreams: a stream has the watermark at once, at each change, and as a sign of
// life. It ends with the reason when the node cannot answer any more, and when it stops.
func TestWatermarkStreams(t *testing.T) { synctest.Test(t, testWatermarkStreams) }

func testWatermarkStreams(t *testing.T) {
	env := servertest.New(t)
	node := serveHTTP(t, env.HTTP)
	if _, res := node.watch("/v1/watermark", "Accept", "text/event-stream"); res.StatusCode != 503 {
		t.Errorf("before there is a watermark: %d", res.StatusCode)
	}
	mark(env, servertest.Start)
	s, res := node.watch("/v1/watermark", "Accept", "text/event-stream")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	g, err := env.Client().WatchWatermark(t.Context(), &pb.WatchWatermarkRequest{})
	fatal.If(t, err)
	both := func(want clock.Millis) {
		t.Helper()
		for {
			var a watermark.Answer
			if err := json.Unmarshal([]byte(s.until("watermark").data), &a); err != nil || a.At > int64(want) {
				t.Fatalf("%+v, %v", a, err)
			}
			if a.At == int64(want) {
				break
			}
		}
		for {
			m, err := g.Recv()
			if err != nil || m.GetUnixMs() > int64(want) {
				t.Fatalf("%v, %v", m, err)
			}
			if m.GetUnixMs() == int64(want) {
				return
			}
		}
	}
	both(servertest.Start)
	both(servertest.Start) // the sign of life
	mark(env, servertest.Start+7, blocked)
	both(servertest.Start + 7)
	servertest.Rewound.Set(env)
	for {
		if _, ok := s.next(); !ok {
			break
		}
	}
	for err = nil; err == nil; {
		_, err = g.Recv()
	}
	if got := statusAnswer(t, err); got.Reason != "HISTORY_REWOUND" {
		t.Errorf("%+v", got)
	}
	servertest.Rewound.Cure(env)
	last, _ := node.watch("/v1/watermark", "Accept", "text/event-stream")
	last.until("watermark")
	env.Service.Marks().End()
	for {
		if _, ok := last.next(); !ok {
			break
		}
	}
}
