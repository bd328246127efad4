package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// answer is the part of an answer that is equal on every surface.
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

// fixture asks one node for IDs over each listener.
type fixture struct{ *servertest.Env }

// stride returns the distance between IDs of a block.
func (x fixture) stride() flake.ID {
	return flake.ID(x.Service.Limits().Format.Layout.Stride())
}

func (x fixture) core(a ask) answer {
	b, err := x.Node.Next(context.Background(), a.count, a.after)
	if err != nil {
		return refusalAnswer(x.T, err)
	}
	return answer{First: b.First, Count: b.Count, Last: b.Last()}
}

func refusalAnswer(t testing.TB, err error) answer {
	r, ok := err.(*node.Refusal)
	if !ok {
		t.Fatalf("%T is no refusal: %v", err, err)
	}
	return answer{
		Reason: r.Reason.String(), RetryMs: r.RetryAfter.Milliseconds(), Metadata: r.Metadata,
	}
}

func (x fixture) unary(a ask) answer {
	res, err := x.Client().Allocate(context.Background(), &pb.AllocateRequest{Count: int32(a.count), After: a.after.Int64()})
	if err != nil {
		return statusAnswer(x.T, err)
	}
	return x.block(res)
}

// texts is unary with the IDs as texts, which it compares with the block beside them.
func (x fixture) texts(form pb.Form, kind describe.Kind) func(ask) answer {
	return func(a ask) answer {
		x.T.Helper()
		res, err := x.Client().Allocate(context.Background(), &pb.AllocateRequest{Count: int32(a.count), After: a.after.Int64(), Form: form})
		if err != nil {
			return statusAnswer(x.T, err)
		}
		if len(res.Ids) != int(res.Count) {
			x.T.Fatalf("%d texts of %d IDs", len(res.Ids), res.Count)
		}
		random := map[string]bool{}
		for i, text := range res.Ids {
			d, err := describe.Parse(text, kind, flake.Default)
			if err != nil || d.Kind != kind && kind != describe.Int {
				x.T.Fatalf("%q is no %s: %v", text, kind, err)
			}
			id, err := d.AsFlake(flake.Default)
			if err != nil || id.Int64() != res.First+int64(i)*res.Stride {
				x.T.Fatalf("text %d of %v is %v: %v", i, res.First, id, err)
			}
			if kind == describe.UUID || kind == describe.ULID {
				random[text[len(text)-10:]] = true
			}
		}
		if len(random) < len(res.Ids)-1 && len(random) > 0 {
			x.T.Errorf("%d IDs have %d different random parts", len(res.Ids), len(random))
		}
		return x.block(res)
	}
}

func (x fixture) block(res *pb.AllocateResponse) answer {
	x.T.Helper()
	x.isOf(res.SpaceId)
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

func (x fixture) stream(a ask) answer {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := x.Client().AllocateStream(ctx)
	fatal.If(x.T, err)
	// The server may have ended the stream already: Recv tells.
	_ = s.Send(&pb.AllocateStreamRequest{Sequence: 42, Request: &pb.AllocateRequest{Count: int32(a.count), After: a.after.Int64()}})
	res, err := s.Recv()
	if err != nil {
		return statusAnswer(x.T, err)
	}
	if res.Sequence != 42 {
		x.T.Errorf("sequence %d", res.Sequence)
	}
	if r := res.GetRefusal(); r != nil {
		return answer{Reason: node.Reason(r.Reason).String(), RetryMs: r.RetryAfterMs, Metadata: r.Metadata}
	}
	return x.block(res.GetResponse())
}

// query and body send HTTP requests, with after in the form of text.
func (x fixture) query(text func(flake.ID) string) func(ask) answer {
	return func(a ask) answer {
		q := url.Values{"count": {strconv.Itoa(a.count)}}
		if a.after != 0 {
			q.Set("after", text(a.after))
		}
		return x.httpAnswer(x.Do("POST", "/v1/ids?"+q.Encode(), ""))
	}
}

func (x fixture) body(a ask) answer {
	m := map[string]any{"count": a.count}
	if a.after != 0 {
		m["after"] = servertest.Decimal(a.after)
	}
	b, _ := json.Marshal(m)
	return x.httpAnswer(x.Do("POST", "/v1/ids", string(b), "Content-Type", "application/json"))
}

func (x fixture) httpAnswer(res *http.Response) answer {
	x.T.Helper()
	if res.Header.Get("Cache-Control") != "no-store" {
		x.T.Errorf("Cache-Control %q", res.Header.Get("Cache-Control"))
	}
	if res.StatusCode != http.StatusOK {
		p := servertest.Body[servertest.Problem](x.T, res)
		if p.Status != res.StatusCode || res.Header.Get("Content-Type") != "application/problem+json" {
			x.T.Errorf("status %d, in the body %d, as %s", res.StatusCode, p.Status, res.Header.Get("Content-Type"))
		}
		want := ""
		if p.RetryAfterMs > 0 {
			want = strconv.FormatInt(max(1, (p.RetryAfterMs+999)/1000), 10)
		}
		if got := res.Header.Get("Retry-After"); got != want {
			x.T.Errorf("Retry-After %q for %d ms, want %q", got, p.RetryAfterMs, want)
		}
		return answer{Reason: p.Reason, RetryMs: p.RetryAfterMs, Metadata: p.Metadata}
	}
	ids := servertest.Body[servertest.Issued](x.T, res).IDs
	x.isOf(spaceOf(res))
	a := answer{Count: len(ids)}
	for i, text := range ids {
		id, err := flake.Parse(text)
		fatal.If(x.T, err)
		if i > 0 && id != a.Last+x.stride() {
			x.T.Fatalf("ID %d is %d after %d", i, id, a.Last)
		}
		if i == 0 {
			a.First = id
		}
		a.Last = id
	}
	return a
}

// isOf checks the space of an answer.
func (x fixture) isOf(space uint64) {
	x.T.Helper()
	if want := x.Node.Space(); space != want {
		x.T.Errorf("an answer of space %x, not %x", space, want)
	}
}

// spaceOf returns the space that an answer over HTTP names; 0: none.
func spaceOf(res *http.Response) uint64 {
	id, _ := strconv.ParseUint(res.Header.Get("Allocator-Space"), 16, 64)
	return id
}

// spaceIn is spaceOf for gRPC, where the answer is no block.
func spaceIn(header metadata.MD) uint64 {
	id, _ := strconv.ParseUint(strings.Join(header.Get("allocator-space"), " "), 16, 64)
	return id
}

// resp sends requests as a Redis client, with after in the form of text.
func (x fixture) resp(text func(flake.ID) string) func(ask) answer {
	return func(a ask) answer {
		line := "ID.NEXT COUNT " + strconv.Itoa(a.count)
		if a.after != 0 {
			line += " AFTER " + text(a.after)
		}
		r := x.Redis(line)
		head, err := r.ReadString('\n')
		fatal.If(x.T, err)
		head = strings.TrimSuffix(head, "\r\n")
		if head[0] == '-' {
			return x.respRefusal(head[1:])
		}
		n, err := strconv.Atoi(head[1:])
		if err != nil || head[0] != '*' {
			x.T.Fatalf("%s: %q", line, head)
		}
		got := answer{Count: n}
		for i := range n {
			var id flake.ID
			var bulk [len("$13\r\n0123456789ABC\r\n")]byte
			if _, err := io.ReadFull(r, bulk[:]); err != nil || string(bulk[:5]) != "$13\r\n" {
				x.T.Fatalf("ID %d: %q, %v", i, bulk, err)
			}
			if err := id.UnmarshalText(bulk[5:18]); err != nil || i > 0 && id != got.Last+x.stride() {
				x.T.Fatalf("ID %d is %v after %v: %v", i, id, got.Last, err)
			}
			if i == 0 {
				got.First = id
			}
			got.Last = id
		}
		return got
	}
}

// respRefusal reads "CODE REASON message (key=value … retry_after_ms=n)".
func (x fixture) respRefusal(text string) answer {
	code, rest, _ := strings.Cut(text, " ")
	reason, rest, _ := strings.Cut(rest, " ")
	a := answer{Reason: reason, Metadata: map[string]string{}}
	if at := strings.LastIndex(rest, " ("); at >= 0 && strings.HasSuffix(rest, ")") {
		for _, pair := range strings.Fields(rest[at+2 : len(rest)-1]) {
			key, value, ok := strings.Cut(pair, "=")
			value, err := url.PathUnescape(value)
			if !ok || err != nil {
				x.T.Fatalf("%q: %q, %v", text, pair, err)
			}
			a.Metadata[key] = value
		}
	}
	if ms, ok := a.Metadata["retry_after_ms"]; ok {
		delete(a.Metadata, "retry_after_ms")
		a.RetryMs, _ = strconv.ParseInt(ms, 10, 64)
	}
	// Errors of the request are ERR, all others can be retried.
	want := "TRYAGAIN"
	if strings.HasPrefix(reason, "INVALID_") || reason == "AFTER_TOO_FAR" && a.RetryMs == 0 {
		want = "ERR"
	}
	if code != want {
		x.T.Errorf("%q begins with %s, want %s", text, code, want)
	}
	return a
}

// surfaces returns each way to request IDs. A wide form has no negative ID.
func (x fixture) surfaces(negative bool) map[string]func(ask) answer {
	m := map[string]func(ask) answer{
		"core": x.core, "grpc": x.unary, "stream": x.stream,
		"http query": x.query(servertest.Decimal), "http body": x.body,
		"resp":        x.resp(servertest.Decimal),
		"grpc flakes": x.texts(pb.Form_FORM_FLAKE, describe.Flake), "grpc ints": x.texts(pb.Form_FORM_INT, describe.Int),
		"grpc ulids": x.texts(pb.Form_FORM_ULID, describe.ULID), "grpc uuids": x.texts(pb.Form_FORM_UUID, describe.UUID),
	}
	if !negative {
		m["http base32"] = x.query(flake.ID.String)
		m["http ulid"] = x.query(func(id flake.ID) string { return servertest.Wide(id).String() })
		m["http uuid"] = x.query(func(id flake.ID) string { return servertest.Wide(id).UUID() })
		m["resp base32"] = x.resp(flake.ID.String)
		m["resp ulid"] = x.resp(func(id flake.ID) string { return servertest.Wide(id).String() })
	}
	return m
}

// TestSmallLayouts: where a sid has few IDs in a unit of time, and an ID few bits, all
// surfaces grant the same largest count and refuse the same.
func TestSmallLayouts(t *testing.T) {
	for _, c := range []struct {
		ask  ask
		want answer
	}{
		{ask{128, 0}, answer{First: 10<<12 | 7<<7, Count: 128, Last: 10<<12 | 7<<7 | 127}},
		{ask{128, 10<<12 | 7<<7}, answer{First: 11<<12 | 7<<7, Count: 128, Last: 11<<12 | 7<<7 | 127}},
		{ask{129, 0}, answer{Reason: "INVALID_COUNT", Metadata: map[string]string{"count": "129", "limit": "128"}}},
		{ask{1, 1 << 53}, answer{Reason: "INVALID_ID", Metadata: map[string]string{"class": "out_of_range"}}},
	} {
		for _, name := range []string{"core", "grpc", "stream", "http query", "http body", "resp", "grpc ints"} {
			at := clock.Millis(flake.DefaultEpoch + 10)
			x := fixture{servertest.NewOn(t, node.New(node.Config{
				Name: "node-a", Gen: gen.Config{Layout: flake.JS53, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250},
			}, clocktest.NewManual(at), gen.Random()))}
			x.Node.Begin(lease.Grant{SID: 7, Term: 1, Base: at, Ceil: at + 1000})
			if got := x.surfaces(true)[name](c.ask); !cmp.Equal(got, c.want) {
				t.Errorf("%s: %+v: %s", name, c.ask, cmp.Diff(c.want, got))
			}
		}
	}
}

// TestSurfacesAgree sends every request over every surface, each to a node of its own,
// and expects equal answers; and after a refusal, the same next answer as without it
// (I7).
func TestSurfacesAgree(t *testing.T) {
	const served = ""
	ahead := func(ms clock.Millis) flake.ID { return servertest.At(servertest.Start+ms, 0) }
	for _, c := range []struct {
		name  string
		when  servertest.Condition
		ask   ask
		want  string
		retry int64
	}{
		{"one", servertest.Healthy, ask{1, 0}, served, 0},
		{"no count", servertest.Healthy, ask{0, 0}, "INVALID_COUNT", 0},
		{"negative count", servertest.Healthy, ask{-1, 0}, "INVALID_COUNT", 0},
		{"largest count", servertest.Healthy, ask{98_304, 0}, served, 0},
		{"above the largest", servertest.Healthy, ask{98_305, 0}, "INVALID_COUNT", 0},

		{"after the past", servertest.Healthy, ask{1, ahead(-1000)}, served, 0},
		{"after slightly ahead", servertest.Healthy, ask{1, ahead(3)}, served, 0},
		{"after the last of the lead", servertest.Healthy, ask{1, servertest.At(servertest.Start+3, 1<<20-1)}, "AFTER_TOO_FAR", 1},
		{"after ahead by skew", servertest.Healthy, ask{1, ahead(503)}, "AFTER_TOO_FAR", 500},
		{"after beyond skew", servertest.Healthy, ask{1, ahead(504)}, "AFTER_TOO_FAR", 0},
		{"after far ahead", servertest.Healthy, ask{5, ahead(1_000_000_000)}, "AFTER_TOO_FAR", 0},
		{"after negative", servertest.Healthy, ask{1, -5}, "INVALID_ID", 0},
		{"after the largest ID", servertest.Healthy, ask{1, 1<<63 - 1}, "AFTER_TOO_FAR", 0},

		{"draining", servertest.Draining, ask{1, 0}, "DRAINING", 20},
		{"rewound", servertest.Rewound, ask{1, 0}, "HISTORY_REWOUND", 5000},
		{"skewed", servertest.Skewed, ask{1, 0}, "CLOCK_SKEW", 1000},
		{"unverified", servertest.Unverified, ask{1, 0}, "CLOCK_UNVERIFIED", 1000},
		{"starting", servertest.Starting, ask{1, 0}, "STARTING", 20},
		{"standby", servertest.Standby, ask{1, 0}, "NO_SID", 1000},
		{"regression", servertest.Regression, ask{1, 0}, "CLOCK_REGRESSION", 998},
		{"overflow", servertest.Overflow, ask{1000, 0}, "ENTROPY_OVERFLOW", 1},
		{"exhausted", servertest.Exhausted, ask{40_000, 0}, "WINDOW_EXHAUSTED", 1000},
		{"exhausted, small enough", servertest.Exhausted, ask{10, 0}, served, 0},

		// Of several, the first by precedence; package node tests every mix.
		{"count and after", servertest.Healthy, ask{0, -5}, "INVALID_COUNT", 0},
		{"count and draining", servertest.Draining, ask{0, 0}, "INVALID_COUNT", 0},
		{"after and draining", servertest.Draining, ask{1, -5}, "INVALID_ID", 0},
		{"after and starting", servertest.Starting, ask{1, -5}, "INVALID_ID", 0},
		{"too far and starting", servertest.Starting, ask{1, ahead(9999)}, "STARTING", 20},
		{"too far and standby", servertest.Standby, ask{1, ahead(9999)}, "NO_SID", 1000},
		{"too far and regression", servertest.Regression, ask{1, ahead(9999)}, "AFTER_TOO_FAR", 0},
		{"too far and exhausted", servertest.Exhausted, ask{40_000, ahead(9999)}, "AFTER_TOO_FAR", 0},
		{"draining and rewound", both(servertest.Draining, servertest.Rewound), ask{1, 0}, "DRAINING", 20},
		{"rewound and skewed", both(servertest.Rewound, servertest.Skewed), ask{1, 0}, "HISTORY_REWOUND", 5000},
		{"skewed and starting", both(servertest.Skewed, servertest.Starting), ask{1, 0}, "CLOCK_SKEW", 1000},
		{"unverified and standby", both(servertest.Unverified, servertest.Standby), ask{1, 0}, "CLOCK_UNVERIFIED", 1000},
		{"exhausted and regression", both(servertest.Exhausted, servertest.Regression), ask{1, 0}, "CLOCK_REGRESSION", 998},
		{"exhausted and overflow", servertest.Exhausted, ask{98_304, 0}, "ENTROPY_OVERFLOW", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			fresh := func() fixture {
				env := servertest.New(t, func(cfg *servertest.Config) { cfg.MaxTextCount = 1_000_000 })
				c.when.Set(env)
				return fixture{env}
			}
			var first *answer
			for name := range fresh().surfaces(c.ask.after < 0) {
				x := fresh()
				before := facts(x.Node.Stats())
				got := x.surfaces(c.ask.after < 0)[name](c.ask)
				if name == "stream" && c.when.Name == "draining" && got.Reason == "DRAINING" {
					continue // a node that drains may end a stream before it reads the request
				}
				if got.Reason != c.want || got.RetryMs != c.retry {
					t.Fatalf("%s: %q, retry in %d ms, want %q, %d", name, got.Reason, got.RetryMs, c.want, c.retry)
				}
				if c.want == "INVALID_ID" {
					got.Metadata = nil // texts have more classes of errors than integers
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
				if after := facts(x.Node.Stats()); after != before {
					t.Fatalf("%s: the refusal changed %+v to %+v", name, before, after)
				}
				if n := x.Node.Stats().Refused[node.ReasonOf(c.want)]; n != 1 {
					t.Errorf("%s: the refusal was counted %d times", name, n)
				}
				if c.when.Cure == nil {
					continue
				}
				undisturbed := fresh()
				c.when.Cure(x.Env)
				c.when.Cure(undisturbed.Env)
				if got, want := x.core(ask{3, 0}), undisturbed.core(ask{3, 0}); got.Reason != "" || !cmp.Equal(got, want) {
					t.Fatalf("%s: after the refusal %+v, without it %+v", name, got, want)
				}
			}
		})
	}
}

func both(a, b servertest.Condition) servertest.Condition {
	c := servertest.Condition{Name: a.Name, Set: func(env *servertest.Env) { b.Set(env); a.Set(env) }}
	if b.Name == "regression" { // the exhausted window first, then the step
		c.Set = func(env *servertest.Env) { a.Set(env); env.Clock.Step(-time.Second) }
	}
	if a.Cure != nil && b.Cure != nil {
		c.Cure = func(env *servertest.Env) { a.Cure(env); b.Cure(env) }
	}
	return c
}

// facts is the state that a refusal must not change.
func facts(s node.Stats) string {
	return fmt.Sprint(s.Issued, s.Now, s.Ceil, s.Lead, s.Holding, s.SID, s.Draining, s.Verdict)
}

// TestStats: every request is counted once, under its surface and outcome.
func TestStats(t *testing.T) {
	env := servertest.New(t)
	for _, a := range []ask{{1, 0}, {0, 0}} {
		for name, f := range (fixture{env}).surfaces(false) {
			if name != "core" {
				f(a)
			}
		}
	}
	env.Do("GET", "/nothing", "")
	env.Do("GET", "/v1/ids", "")
	got := make(map[string]int64)
	for _, c := range env.Service.Stats() {
		if c.Requests > 0 {
			got[c.Surface+" "+c.Outcome] = c.Requests
		}
	}
	want := map[string]int64{
		"grpc_allocate OK": 5, "grpc_allocate INVALID_COUNT": 5,
		"grpc_stream OK": 1, "grpc_stream INVALID_COUNT": 1,
		"http_ids OK": 5, "http_ids INVALID_COUNT": 5,
		"http_other NOT_FOUND": 2,
		"resp_ids OK":          3, "resp_ids INVALID_COUNT": 3,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
