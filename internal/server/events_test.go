package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/status/feed"
)

// message is one server-sent event.
type message struct{ kind, id, data string }

// sse reads server-sent events.
type sse struct {
	t    *testing.T
	body *bufio.Scanner
}

func (s sse) next() (m message, ok bool) {
	for s.body.Scan() {
		switch key, value, _ := strings.Cut(s.body.Text(), ": "); key {
		case "event":
			m.kind = value
		case "id":
			m.id = value
		case "data":
			m.data = value
		case "":
			if m.kind != "" {
				return m, true
			}
		}
	}
	return m, false
}

// until skips messages up to one of a kind, and returns it.
func (s sse) until(kind string) message {
	s.t.Helper()
	for {
		m, ok := s.next()
		if !ok {
			s.t.Fatalf("the stream ended before a message %q", kind)
		}
		if m.kind == kind {
			return m
		}
	}
}

// site is a handler that is served as by a node, over connections in memory.
type site struct {
	*http.Client
	t    *testing.T
	dial func() (net.Conn, error)
}

func serveHTTP(t *testing.T, h http.Handler) *site {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	s := httpserver.NewServer(h, slog.New(slog.DiscardHandler))
	s.ReadTimeout, s.WriteTimeout = time.Second, time.Second // a stream outlasts them
	go func() { _ = s.Serve(l) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return l.DialContext(ctx)
	}}
	t.Cleanup(func() { transport.CloseIdleConnections(); _ = s.Close() })
	return &site{&http.Client{Transport: transport}, t, l.Dial}
}

// watch returns the answer to a request for a stream.
func (s *site) watch(path string, header ...string) (sse, *http.Response) {
	t := s.t
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://node"+path, nil)
	fatal.If(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := s.Do(req)
	fatal.If(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return sse{t, bufio.NewScanner(res.Body)}, res
}

// A stream has what is kept, then a sign of life, then what happens, and outlasts the
// timeouts of requests. One that goes on after an ID misses nothing; one that comes too
// late is told so.
func TestEventsOverHTTP(t *testing.T) { synctest.Test(t, testEventsOverHTTP) }

func testEventsOverHTTP(t *testing.T) {
	env := servertest.New(t)
	node := serveHTTP(t, env.HTTP)
	env.Observe()
	s, res := node.watch("/v1/events")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	var first feed.Event
	if m := s.until("event"); m.id != "boot-1" || json.Unmarshal([]byte(m.data), &first) != nil || first.Kind != feed.Started || first.ID != m.id || first.Node != "node-a" {
		t.Fatalf("%+v", m)
	}
	last := s.until("event")
	for next := s.until("event"); next.id != ""; next, _ = s.next() {
		last = next
		if strings.Contains(next.data, "serving") {
			break
		}
	}
	if m, _ := s.next(); m.kind != "heartbeat" {
		t.Errorf("after what is kept: %+v", m)
	}
	if m := s.until("heartbeat"); m.data != fmt.Sprintf(`{"now_unix_ms":%d}`, servertest.Start) {
		t.Errorf("after two seconds: %+v", m)
	}
	env.SetVerdict(clock.Skewed)
	env.Observe()
	if m := s.until("event"); !strings.Contains(m.data, `"kind":"refusing"`) || !strings.Contains(m.data, `"reason":"CLOCK_SKEW"`) {
		t.Errorf("%+v", m)
	}
	for _, header := range [][]string{{"Last-Event-ID", last.id}, nil} {
		query := ""
		if header == nil {
			query = "?after=" + last.id
		}
		again, _ := node.watch("/v1/events"+query, header...)
		if m, _ := again.next(); m.kind != "event" || !strings.Contains(m.data, "CLOCK_SKEW") {
			t.Errorf("after %s: %+v", last.id, m)
		}
	}
	other, _ := node.watch("/v1/events", "Last-Event-ID", "another-7")
	if m, _ := other.next(); m.kind != "missed" || !strings.Contains(m.data, `"count":-1`) {
		t.Errorf("of another process: %+v", m)
	}
	env.SetVerdict(clock.Open)
	env.Observe()
	env.Feed.End()
	kinds := ""
	for m, ok := other.next(); ok; m, ok = other.next() {
		if m.kind == "event" {
			kinds = m.data
		}
	}
	if !strings.Contains(kinds, `"kind":"serving"`) {
		t.Errorf("the last event before the end: %s", kinds)
	}
	if _, res := node.watch("/v1/events"); res.StatusCode != 503 {
		t.Errorf("a stream of a node that stops: %d", res.StatusCode)
	}
}

// A stream ends soon after its token was revoked, over both protocols.
func TestEventsOfARevokedToken(t *testing.T) { synctest.Test(t, testEventsOfARevokedToken) }

func testEventsOfARevokedToken(t *testing.T) {
	env, tokens, guard := servertest.NewGuarded(t, access.Config{})
	s, res := serveHTTP(t, env.HTTP).watch("/v1/events", "Authorization", "Bearer "+tokens["read"])
	if res.StatusCode != 200 {
		t.Fatalf("%d", res.StatusCode)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tokens["read"])
	stream, err := env.Admin().WatchEvents(ctx, &pb.WatchEventsRequest{})
	fatal.If(t, err)
	if m, err := stream.Recv(); err != nil || m.GetEvent() != nil || m.GetNowUnixMs() != int64(servertest.Start) {
		t.Fatalf("%v, %v", m, err)
	}
	s.until("heartbeat")
	mark(env, servertest.Start)
	marks, res := serveHTTP(t, env.HTTP).watch("/v1/watermark", "Authorization", "Bearer "+tokens["read"],
		"Accept", "text/event-stream")
	if marks.until("watermark"); spaceOf(res) != servertest.SpaceID {
		t.Errorf("headers %v", res.Header)
	}
	none, err := access.ParseTokens(nil)
	fatal.If(t, err)
	guard.SetTokens(none)
	began := time.Now()
	for _, stream := range []sse{s, marks} {
		for _, ok := stream.next(); ok; _, ok = stream.next() {
		}
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if took := time.Since(began); status.Code(err) != codes.Unauthenticated || took > 10*time.Second {
		t.Errorf("%v after %v", err, took)
	}
}

// The same events over gRPC. A draining node still sends them, and the end of the process
// ends them.
func TestEventsOverGRPC(t *testing.T) {
	env := servertest.New(t)
	env.Observe()
	stream, err := env.Admin().WatchEvents(t.Context(), &pb.WatchEventsRequest{After: "boot-1"})
	fatal.If(t, err)
	var kinds []string
	recv := func() *pb.WatchEventsResponse {
		t.Helper()
		m, err := stream.Recv()
		fatal.If(t, err)
		return m
	}
	for m := recv(); m.GetEvent() != nil; m = recv() {
		kinds = append(kinds, m.GetEvent().GetKind())
	}
	if got := strings.Join(kinds, " "); got != "sid_acquired serving" {
		t.Errorf("after the first: %q", got)
	}
	env.Node.Drain()
	env.Observe()
	if e := recv().GetEvent(); e.GetKind() != "drained" || e.GetNode() != "node-a" || e.GetSid() != -1 {
		t.Errorf("%v", e)
	}
	if e := recv().GetEvent(); e.GetKind() != "refusing" || e.GetAttributes()["reason"] != "DRAINING" {
		t.Errorf("%v", e)
	}
	env.Node.Undrain()
	env.Observe()
	env.Feed.End()
	for _, kind := range []string{"undrained", "serving"} {
		if e := recv().GetEvent(); e.GetKind() != kind {
			t.Errorf("before the end: %v, want %s", e, kind)
		}
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("at the end: %v", err)
	}
}

// TestStreamsSaySomething: a stream of events or of the watermark has something each two seconds, though nothing
// happens.
func TestStreamsSaySomething(t *testing.T) { synctest.Test(t, testStreamsSaySomething) }

func testStreamsSaySomething(t *testing.T) {
	env := servertest.New(t)
	mark(env, servertest.Start)
	node := serveHTTP(t, env.HTTP)
	events, err := env.Admin().WatchEvents(t.Context(), &pb.WatchEventsRequest{})
	fatal.If(t, err)
	marks, err := env.Client().WatchWatermark(t.Context(), &pb.WatchWatermarkRequest{})
	fatal.If(t, err)
	httpEvents, _ := node.watch("/v1/events")
	httpMarks, _ := node.watch("/v1/watermark", "Accept", "text/event-stream")
	said := map[string]chan time.Time{}
	for name, next := range map[string]func() bool{
		"events over gRPC":    func() bool { _, err := events.Recv(); return err == nil },
		"watermark over gRPC": func() bool { _, err := marks.Recv(); return err == nil },
		"events over HTTP":    func() bool { _, ok := httpEvents.next(); return ok },
		"watermark over HTTP": func() bool { _, ok := httpMarks.next(); return ok },
	} {
		at := make(chan time.Time, 100)
		said[name] = at
		go func() {
			defer close(at)
			for next() {
				at <- time.Now()
			}
		}()
	}
	began := time.Now()
	time.Sleep(10*time.Second + time.Millisecond)
	for name, at := range said {
		last := began
		for len(at) > 0 {
			now := <-at
			if now.Sub(last) > 2*time.Second {
				t.Errorf("%s: nothing for %v", name, now.Sub(last))
			}
			last = now
		}
		if quiet := time.Since(last); quiet > 2*time.Second {
			t.Errorf("%s: nothing for %v at the end", name, quiet)
		}
	}
}

// A client that does not read is dropped, whatever happens meanwhile, and costs the
// others nothing.
func TestSlowStreamsAreDropped(t *testing.T) { synctest.Test(t, testSlowStreamsAreDropped) }

func testSlowStreamsAreDropped(t *testing.T) {
	env := servertest.New(t)
	closed := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(closed)
		httpserver.ServeStream(w, r, httpserver.Stream{Feed: env.Feed, Node: env.Node, Show: func(text any, send func(kind, text string)) { send("show", text.(string)) }})
	})
	conn, err := serveHTTP(t, handler).dial()
	fatal.If(t, err)
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: n\r\n\r\n")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	large := strings.Repeat("x", 1<<20)
	for {
		env.Feed.SetSnapshot(large)
		select {
		case <-closed:
			return
		case <-ctx.Done():
			t.Fatal("a client that reads nothing still has its stream after 30 s")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The same over gRPC: a call that is not read ends, and says how to go on.
func TestSlowCallsAreEnded(t *testing.T) { synctest.Test(t, testSlowCallsAreEnded) }

func testSlowCallsAreEnded(t *testing.T) {
	env := servertest.New(t)
	stream, err := env.Admin().WatchEvents(t.Context(), &pb.WatchEventsRequest{})
	fatal.If(t, err)
	for i := range 2000 { // more than the windows of the connection hold
		env.SetVerdict([]clock.State{clock.Skewed, clock.Open}[i%2])
		env.Observe()
	}
	time.Sleep(7 * time.Second) // longer than a message may wait
	last := ""
	for {
		m, err := stream.Recv()
		if err != nil {
			if status.Code(err) != codes.ResourceExhausted || last == "" {
				t.Errorf("after %q: %v", last, err)
			}
			return
		}
		last = m.GetEvent().GetId()
	}
}
