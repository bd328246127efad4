package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/respserver"
	"github.com/flakelease/allocator/ulid"
)

// answer is what every surface must agree on.
type answer struct {
	Reason   string // "": served
	RetryMs  int64
	Metadata map[string]string
	First    flake.ID
	Count    int
	Last     flake.ID
}

// ask is a request for IDs.
type ask struct {
	count int
	after flake.ID
}

func (w *world) core(a ask) answer {
	b, err := w.node.Next(context.Background(), a.count, a.after)
	if err != nil {
		return refusalAnswer(w.t, err)
	}
	return answer{First: b.First, Count: b.Count, Last: b.Last()}
}

func refusalAnswer(t testing.TB, err error) answer {
	r, ok := err.(*node.Refusal)
	if !ok {
		t.Fatalf("%T is no refusal: %v", err, err)
	}
	return answer{
		Reason: string(r.Reason), RetryMs: r.RetryAfter.Milliseconds(), Metadata: r.Metadata,
	}
}

func (w *world) unary(a ask) answer {
	res, err := w.client().Allocate(context.Background(), &pb.AllocateRequest{Count: int32(a.count), After: a.after.Int64()})
	if err != nil {
		return statusAnswer(w.t, err)
	}
	return blockAnswer(res)
}

func blockAnswer(res *pb.AllocateResponse) answer {
	return answer{
		First: flake.ID(res.First), Count: int(res.Count),
		Last: flake.ID(res.First + int64(res.Count-1)*res.Stride),
	}
}

func statusAnswer(t testing.TB, err error) answer {
	t.Helper()
	a := answer{}
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.Domain != "github.com/flakelease/allocator" {
				t.Errorf("domain %q", d.Domain)
			}
			a.Reason, a.Metadata = d.Reason, d.Metadata
		case *errdetails.RetryInfo:
			a.RetryMs = d.RetryDelay.AsDuration().Milliseconds()
		}
	}
	if a.Reason == "" {
		t.Fatalf("error without ErrorInfo: %v", err)
	}
	return a
}

func (w *world) stream(a ask) answer {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := w.client().AllocateStream(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	// The server may have ended the stream already: Recv tells.
	_ = s.Send(&pb.AllocateStreamRequest{Sequence: 42, Request: &pb.AllocateRequest{Count: int32(a.count), After: a.after.Int64()}})
	res, err := s.Recv()
	if err != nil {
		return statusAnswer(w.t, err)
	}
	if res.Sequence != 42 {
		w.t.Errorf("sequence %d", res.Sequence)
	}
	if r := res.GetRefusal(); r != nil {
		return answer{Reason: r.Reason.String()[len("REASON_"):], RetryMs: r.RetryAfterMs, Metadata: r.Metadata}
	}
	return blockAnswer(res.GetResponse())
}

// query and body ask HTTP, with after in the form that text gives.
func (w *world) query(text func(flake.ID) string) func(ask) answer {
	return func(a ask) answer {
		q := url.Values{"count": {strconv.Itoa(a.count)}}
		if a.after != 0 {
			q.Set("after", text(a.after))
		}
		return w.httpAnswer(w.do("POST", "/v1/ids?"+q.Encode(), ""))
	}
}

func (w *world) body(a ask) answer {
	m := map[string]any{"count": a.count}
	if a.after != 0 {
		m["after"] = decimal(a.after)
	}
	b, _ := json.Marshal(m)
	return w.httpAnswer(w.do("POST", "/v1/ids", string(b), "Content-Type", "application/json"))
}

func (w *world) httpAnswer(res *http.Response) answer {
	w.t.Helper()
	if res.Header.Get("Cache-Control") != "no-store" {
		w.t.Errorf("Cache-Control %q", res.Header.Get("Cache-Control"))
	}
	if res.StatusCode != http.StatusOK {
		p := decodeBody[problemBody](w.t, res)
		if p.Status != res.StatusCode || res.Header.Get("Content-Type") != "application/problem+json" {
			w.t.Errorf("status %d, in the body %d, as %s", res.StatusCode, p.Status, res.Header.Get("Content-Type"))
		}
		want := ""
		if p.RetryAfterMs > 0 {
			want = strconv.FormatInt(max(1, (p.RetryAfterMs+999)/1000), 10)
		}
		if got := res.Header.Get("Retry-After"); got != want {
			w.t.Errorf("Retry-After %q for %d ms, want %q", got, p.RetryAfterMs, want)
		}
		return answer{Reason: p.Reason, RetryMs: p.RetryAfterMs, Metadata: p.Metadata}
	}
	ids := decodeBody[issuedBody](w.t, res).IDs
	a := answer{Count: len(ids)}
	for i, text := range ids {
		id, err := flake.Parse(text)
		if err != nil {
			w.t.Fatal(err)
		}
		if i > 0 && id != a.Last+32 {
			w.t.Fatalf("ID %d is %d after %d", i, id, a.Last)
		}
		if i == 0 {
			a.First = id
		}
		a.Last = id
	}
	return a
}

// resp asks as a Redis client, with after in the form that text gives.
func (w *world) resp(text func(flake.ID) string) func(ask) answer {
	return func(a ask) answer {
		line := "ID.NEXT COUNT " + strconv.Itoa(a.count)
		if a.after != 0 {
			line += " AFTER " + text(a.after)
		}
		r := w.redis(line)
		head, err := r.ReadString('\n')
		if err != nil {
			w.t.Fatal(err)
		}
		head = strings.TrimSuffix(head, "\r\n")
		if head[0] == '-' {
			return w.respRefusal(head[1:])
		}
		n, err := strconv.Atoi(head[1:])
		if err != nil || head[0] != '*' {
			w.t.Fatalf("%s: %q", line, head)
		}
		got := answer{Count: n}
		for i := range n {
			var id flake.ID
			var bulk [len("$13\r\n0123456789ABC\r\n")]byte
			if _, err := io.ReadFull(r, bulk[:]); err != nil || string(bulk[:5]) != "$13\r\n" {
				w.t.Fatalf("ID %d: %q, %v", i, bulk, err)
			}
			if err := id.UnmarshalText(bulk[5:18]); err != nil || i > 0 && id != got.Last+32 {
				w.t.Fatalf("ID %d is %v after %v: %v", i, id, got.Last, err)
			}
			if i == 0 {
				got.First = id
			}
			got.Last = id
		}
		return got
	}
}

// redis sends a line to a door for Redis clients and returns what it answers.
func (w *world) redis(line string) *bufio.Reader {
	door, err := respserver.New(respserver.Config{Server: w.server, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- door.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := door.Shutdown(ctx); err != nil {
			w.t.Error(err)
		}
		<-ended
	})
	if _, err := io.WriteString(c, line+"\r\n"); err != nil {
		w.t.Fatal(err)
	}
	return bufio.NewReaderSize(c, 1<<16)
}

// respRefusal reads «CODE REASON message (key=value … retry_after_ms=n)».
func (w *world) respRefusal(text string) answer {
	code, rest, _ := strings.Cut(text, " ")
	reason, rest, _ := strings.Cut(rest, " ")
	a := answer{Reason: reason, Metadata: map[string]string{}}
	if at := strings.LastIndex(rest, " ("); at >= 0 && strings.HasSuffix(rest, ")") {
		for _, pair := range strings.Fields(rest[at+2 : len(rest)-1]) {
			key, value, ok := strings.Cut(pair, "=")
			value, err := url.PathUnescape(value)
			if !ok || err != nil {
				w.t.Fatalf("%q: %q, %v", text, pair, err)
			}
			a.Metadata[key] = value
		}
	}
	if ms, ok := a.Metadata["retry_after_ms"]; ok {
		delete(a.Metadata, "retry_after_ms")
		a.RetryMs, _ = strconv.ParseInt(ms, 10, 64)
	}
	// What is the caller's fault is an error; the rest may be tried again.
	want := "TRYAGAIN"
	if strings.HasPrefix(reason, "INVALID_") || reason == "AFTER_TOO_FAR" && a.RetryMs == 0 {
		want = "ERR"
	}
	if code != want {
		w.t.Errorf("%q begins with %s, want %s", text, code, want)
	}
	return a
}

type issuedBody struct {
	IDs  []string `json:"ids"`
	Node string   `json:"node"`
	SID  int      `json:"sid"`
}

type problemBody struct {
	Type         string            `json:"type"`
	Title        string            `json:"title"`
	Status       int               `json:"status"`
	Detail       string            `json:"detail"`
	Reason       string            `json:"reason"`
	Metadata     map[string]string `json:"metadata"`
	RetryAfterMs int64             `json:"retry_after_ms"`
	Help         string            `json:"help"`
}

func decimal(id flake.ID) string { return string(id.AppendInt(nil)) }

func (w *world) wideOf(id flake.ID) ulid.ID {
	v, err := ulid.FromFlake(id, flake.DefaultEpoch, 0x3FFFFFFFFFFFFF)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// surfaces returns each way to ask for IDs. A wide form has no negative ID.
func (w *world) surfaces(negative bool) map[string]func(ask) answer {
	m := map[string]func(ask) answer{
		"core": w.core, "grpc": w.unary, "stream": w.stream,
		"http query": w.query(decimal), "http body": w.body,
		"resp": w.resp(decimal),
	}
	if !negative {
		m["http base32"] = w.query(flake.ID.String)
		m["http ulid"] = w.query(func(id flake.ID) string { return w.wideOf(id).String() })
		m["http uuid"] = w.query(func(id flake.ID) string { return w.wideOf(id).UUID() })
		m["resp base32"] = w.resp(flake.ID.String)
		m["resp ulid"] = w.resp(func(id flake.ID) string { return w.wideOf(id).String() })
	}
	return m
}

// at returns the ID with time ms and the other bits as given.
func at(ms clock.Millis, low int64) flake.ID {
	return flake.ID((int64(ms)-flake.DefaultEpoch)<<20 | low)
}

// What can be wrong with a node, and how it is put right.
type condition struct {
	name string
	set  func(*world)
	cure func(*world)
}

func (w *world) status(change func(*lease.Status)) {
	st := w.node.Stats().Lease
	change(&st)
	w.node.Report(st)
}

func (w *world) verdict(s clock.State) {
	w.node.SetVerdict(clock.Verdict{State: s, Offset: 900, Limit: 250})
}

var (
	healthy  = condition{"healthy", func(*world) {}, func(*world) {}}
	draining = condition{"draining", func(w *world) { w.server.Drain() }, nil}
	rewound  = condition{
		"rewound",
		func(w *world) {
			w.node.Seal()
			w.status(func(s *lease.Status) { s.Phase, s.Problem = lease.Rewound, "history went back" })
		},
		func(w *world) {
			w.status(func(s *lease.Status) { s.Phase, s.Problem = lease.Holding, "" })
			begin(w)
		},
	}
	skewed     = condition{"skewed", func(w *world) { w.verdict(clock.Skewed) }, func(w *world) { w.verdict(clock.Open) }}
	unverified = condition{"unverified", func(w *world) { w.verdict(clock.Unverified) }, func(w *world) { w.verdict(clock.Open) }}
	starting   = condition{
		"starting",
		func(w *world) {
			w.node.Seal()
			w.status(func(s *lease.Status) { *s = lease.Status{Phase: lease.Seeking, PoolSize: 32} })
		},
		begin,
	}
	standby = condition{
		"standby",
		func(w *world) {
			w.node.Seal()
			w.status(func(s *lease.Status) { *s = lease.Status{Phase: lease.Standby, PoolSize: 32, PoolHeld: 32} })
		},
		begin,
	}
	// The rest leave the tenure in place; the first 40,000 IDs reach into the
	// second millisecond.
	exhausted = condition{
		"exhausted",
		func(w *world) {
			w.node.Seal()
			w.node.Begin(lease.Grant{SID: 7, Term: 2, Base: start + 1, Ceil: start + 3})
			w.clock.Advance(time.Millisecond)
			w.must(40_000)
		},
		func(w *world) { w.node.Raise(start + 30_000) },
	}
	regression = condition{
		"regression",
		func(w *world) { w.must(40_000); w.clock.Step(-time.Second) },
		func(w *world) { w.clock.Step(time.Second) },
	}
	overflow = condition{
		"overflow",
		func(w *world) { w.must(98_304); w.must(32_000) },
		func(w *world) { w.clock.Advance(5 * time.Millisecond) },
	}
)

func begin(w *world) {
	w.node.Begin(lease.Grant{SID: 7, Term: 3, Base: start, Ceil: start + 30_000})
}

func (w *world) must(count int) {
	w.t.Helper()
	if _, err := w.node.Next(context.Background(), count, 0); err != nil {
		w.t.Fatal(err)
	}
}

// TestSurfacesAgree sends every request through every surface, each to a world
// of its own, and expects one answer; and after a refusal, the next answer that
// would have come without it (I7).
func TestSurfacesAgree(t *testing.T) {
	const served = ""
	ahead := func(ms clock.Millis) flake.ID { return at(start+ms, 0) }
	for _, c := range []struct {
		name  string
		when  condition
		ask   ask
		want  string
		retry int64
	}{
		{"one", healthy, ask{1, 0}, served, 0},
		{"no count", healthy, ask{0, 0}, "INVALID_COUNT", 0},
		{"negative count", healthy, ask{-1, 0}, "INVALID_COUNT", 0},
		{"largest count", healthy, ask{98_304, 0}, served, 0},
		{"above the largest", healthy, ask{98_305, 0}, "INVALID_COUNT", 0},

		{"after the past", healthy, ask{1, ahead(-1000)}, served, 0},
		{"after slightly ahead", healthy, ask{1, ahead(3)}, served, 0},
		{"after the last of the lead", healthy, ask{1, at(start+3, 1<<20-1)}, "AFTER_TOO_FAR", 1},
		{"after ahead by skew", healthy, ask{1, ahead(503)}, "AFTER_TOO_FAR", 500},
		{"after beyond skew", healthy, ask{1, ahead(504)}, "AFTER_TOO_FAR", 0},
		{"after far ahead", healthy, ask{5, ahead(1_000_000_000)}, "AFTER_TOO_FAR", 0},
		{"after negative", healthy, ask{1, -5}, "INVALID_ID", 0},
		{"after the largest ID", healthy, ask{1, 1<<63 - 1}, "AFTER_TOO_FAR", 0},

		{"draining", draining, ask{1, 0}, "DRAINING", 0},
		{"rewound", rewound, ask{1, 0}, "HISTORY_REWOUND", 5000},
		{"skewed", skewed, ask{1, 0}, "CLOCK_SKEW", 1000},
		{"unverified", unverified, ask{1, 0}, "CLOCK_UNVERIFIED", 1000},
		{"starting", starting, ask{1, 0}, "STARTING", 500},
		{"standby", standby, ask{1, 0}, "NO_SID", 1000},
		{"regression", regression, ask{1, 0}, "CLOCK_REGRESSION", 998},
		{"overflow", overflow, ask{1000, 0}, "ENTROPY_OVERFLOW", 1},
		{"exhausted", exhausted, ask{40_000, 0}, "WINDOW_EXHAUSTED", 1000},
		{"exhausted, small enough", exhausted, ask{10, 0}, served, 0},

		// Of several, the first by precedence; package node tests every mix.
		{"count and after", healthy, ask{0, -5}, "INVALID_COUNT", 0},
		{"count and draining", draining, ask{0, 0}, "INVALID_COUNT", 0},
		{"after and draining", draining, ask{1, -5}, "INVALID_ID", 0},
		{"after and starting", starting, ask{1, -5}, "INVALID_ID", 0},
		{"too far and starting", starting, ask{1, ahead(9999)}, "STARTING", 500},
		{"too far and standby", standby, ask{1, ahead(9999)}, "NO_SID", 1000},
		{"too far and regression", regression, ask{1, ahead(9999)}, "AFTER_TOO_FAR", 0},
		{"too far and exhausted", exhausted, ask{40_000, ahead(9999)}, "AFTER_TOO_FAR", 0},
		{"draining and rewound", both(draining, rewound), ask{1, 0}, "DRAINING", 0},
		{"rewound and skewed", both(rewound, skewed), ask{1, 0}, "HISTORY_REWOUND", 5000},
		{"skewed and starting", both(skewed, starting), ask{1, 0}, "CLOCK_SKEW", 1000},
		{"unverified and standby", both(unverified, standby), ask{1, 0}, "CLOCK_UNVERIFIED", 1000},
		{"exhausted and regression", both(exhausted, regression), ask{1, 0}, "CLOCK_REGRESSION", 998},
		{"exhausted and overflow", exhausted, ask{98_304, 0}, "ENTROPY_OVERFLOW", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			fresh := func() *world {
				w := newWorld(t, func(cfg *server.Config) { cfg.MaxHTTPCount = 1_000_000 })
				c.when.set(w)
				return w
			}
			var first *answer
			for name := range fresh().surfaces(c.ask.after < 0) {
				w := fresh()
				before := facts(w.node.Stats())
				got := w.surfaces(c.ask.after < 0)[name](c.ask)
				if name == "stream" && c.when.name == "draining" && got.Reason == "DRAINING" {
					continue // a node that drains may end a stream before it reads the request
				}
				if got.Reason != c.want || got.RetryMs != c.retry {
					t.Fatalf("%s: %q, retry in %d ms, want %q, %d", name, got.Reason, got.RetryMs, c.want, c.retry)
				}
				if c.want == "INVALID_ID" {
					got.Metadata = nil // a parser of texts knows more than one of integers
				}
				if len(got.Metadata) == 0 {
					got.Metadata = nil
				}
				if first == nil {
					first = &got
				} else if d := cmp.Diff(*first, got); d != "" {
					t.Fatalf("%s differs from another surface:\n%s", name, d)
				}
				if c.want == served {
					continue
				}
				if after := facts(w.node.Stats()); after != before {
					t.Fatalf("%s: the refusal changed %+v to %+v", name, before, after)
				}
				if n := w.node.Stats().Refused[node.Reason(c.want)]; n != 1 {
					t.Errorf("%s: the refusal was counted %d times", name, n)
				}
				if c.when.cure == nil {
					continue
				}
				undisturbed := fresh()
				c.when.cure(w)
				c.when.cure(undisturbed)
				if got, want := w.core(ask{3, 0}), undisturbed.core(ask{3, 0}); got.Reason != "" || !cmp.Equal(got, want) {
					t.Fatalf("%s: after the refusal %+v, without it %+v", name, got, want)
				}
			}
		})
	}
}

func both(a, b condition) condition {
	c := condition{name: a.name, set: func(w *world) { b.set(w); a.set(w) }}
	if b.name == "regression" { // the exhausted window first, then the step
		c.set = func(w *world) { a.set(w); w.clock.Step(-time.Second) }
	}
	if a.cure != nil && b.cure != nil {
		c.cure = func(w *world) { a.cure(w); b.cure(w) }
	}
	return c
}

// facts are the figures that a refusal must not change.
func facts(s node.Stats) string {
	return fmt.Sprint(s.Issued, s.Now, s.Ceil, s.Lead, s.Holding, s.SID, s.Draining, s.Verdict)
}

// TestStats: every request is counted once, under its surface and outcome.
func TestStats(t *testing.T) {
	w := newWorld(t)
	for _, a := range []ask{{1, 0}, {0, 0}} {
		for name, f := range w.surfaces(false) {
			if name != "core" {
				f(a)
			}
		}
	}
	w.do("GET", "/nothing", "")
	w.do("GET", "/v1/ids", "")
	got := make(map[string]int64)
	for _, c := range w.server.Stats() {
		if c.Requests > 0 {
			got[c.Surface+" "+c.Outcome] = c.Requests
		}
	}
	want := map[string]int64{
		"grpc_allocate OK": 1, "grpc_allocate INVALID_COUNT": 1,
		"grpc_stream OK": 1, "grpc_stream INVALID_COUNT": 1,
		"http_ids OK": 5, "http_ids INVALID_COUNT": 5,
		"http_other NOT_FOUND": 2,
		"resp_ids OK":          3, "resp_ids INVALID_COUNT": 3,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
