package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker/broker"
)

// knows is a keeper that has read the store, whenever it is asked.
type knows struct{ mem *storetest.Memory }

func (k knows) Status() lease.Status {
	v, _ := k.mem.Load(context.Background())
	return lease.Status{Space: v.Config.Value, Era: v.Era.Value, Cluster: v.Cluster, Revision: v.Revision, Listed: true, GateOpen: true}
}

func (knows) Limit() lease.Limit { return lease.Limit{Extend: math.MaxInt64, Acquire: math.MaxInt64} }

// withWorkers gives sids 16 to 19 to workers, in a space in memory.
func withWorkers(t *testing.T, mem *storetest.Memory) func(*servertest.Config) {
	space := lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: servertest.Pool, Named: true}
	if _, _, err := mem.Init(t.Context(), space, servertest.Start); err != nil {
		t.Fatal(err)
	}
	return func(c *servertest.Config) {
		c.Workers = func(n *node.Node) *broker.Broker {
			n.Report(knows{mem}.Status())
			return broker.New(broker.Config{
				SIDs: lease.SIDRange{From: 16, To: 20}, Bounds: lease.Bounds{WorkerWindow: time.Minute, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond},
				CallTimeout: time.Second, Node: n, Keeper: knows{mem}, Store: mem, Logger: slog.New(slog.DiscardHandler),
			})
		}
	}
}

// workerCall is one call, and what came of it, on either listener.
type workerCall struct {
	op, name, secret, id, handle string
	clock, notAfter, usedUntil   int64
	tells                        bool
	floor                        int64
}

type workerAnswer struct {
	Reason, Message string
	RetryMs         int64
	Metadata        map[string]string
	Worker          map[string]any // of the answer in JSON
}

func (x fixture) workerGRPC(token string, c workerCall) workerAnswer {
	ctx := x.T.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	client := pb.NewWorkerServiceClient(x.Dial())
	var w *pb.Worker
	var r *pb.ReleaseWorkerResponse
	var header metadata.MD
	of := grpc.Header(&header)
	var err error
	switch c.op {
	case "acquire":
		w, err = client.AcquireWorker(ctx, &pb.AcquireWorkerRequest{Name: c.name, Secret: c.secret, ClockUnixMs: c.clock, TellsFloor: c.tells}, of)
	case "extend":
		w, err = client.ExtendWorker(ctx, &pb.ExtendWorkerRequest{Handle: c.handle, NotAfterUnixMs: c.notAfter, FloorUnixMs: c.floor}, of)
	case "release":
		r, err = client.ReleaseWorker(ctx, &pb.ReleaseWorkerRequest{Handle: c.handle, UsedUntilUnixMs: c.usedUntil}, of)
	}
	if err != nil {
		a := statusAnswer(x.T, err)
		if a.Reason == "UNKNOWN_WORKER" { // It may be another space's.
			x.isOf(spaceIn(header))
		}
		return workerAnswer{Reason: a.Reason, RetryMs: a.RetryMs, Metadata: a.Metadata}
	}
	x.isOf(spaceIn(header))
	if r != nil {
		return workerAnswer{Worker: map[string]any{"reusable_from_unix_ms": float64(r.ReusableFromUnixMs)}}
	}
	got := map[string]any{
		"id": w.Id, "worker": float64(w.Worker), "term": float64(w.Term), "name": w.Name, "not_before_unix_ms": float64(w.NotBeforeUnixMs),
		"not_after_unix_ms": float64(w.NotAfterUnixMs), "extend_at_unix_ms": float64(w.ExtendAtUnixMs), "now_unix_ms": float64(w.NowUnixMs), "handle": w.Handle,
	}
	if w.FloorUnixMs != 0 {
		got["floor_unix_ms"] = float64(w.FloorUnixMs)
	}
	return workerAnswer{Worker: got}
}

func (x fixture) workerHTTP(token string, c workerCall) workerAnswer {
	header := []string{"Content-Type", "application/json"}
	if token != "" {
		header = append(header, "Authorization", "Bearer "+token)
	}
	if c.handle != "" {
		header = append(header, "Worker-Handle", c.handle)
	}
	id := c.id
	if parts := strings.Split(c.handle, "."); id == "" && len(parts) == 4 {
		id = parts[1] + "-" + parts[2]
	}
	var res *http.Response
	want := http.StatusOK
	switch c.op {
	case "acquire":
		body, _ := json.Marshal(map[string]any{"name": c.name, "secret": c.secret, "clock_unix_ms": c.clock, "tells_floor": c.tells})
		res, want = x.Do("POST", "/v1/workers", string(body), header...), http.StatusCreated
	case "extend":
		res = x.Do("POST", "/v1/workers/"+id+":extend", fmt.Sprintf(`{"not_after_unix_ms": %d, "floor_unix_ms": %d}`, c.notAfter, c.floor), header...)
	case "release":
		query := ""
		if c.usedUntil != 0 {
			query = fmt.Sprint("?used_until_unix_ms=", c.usedUntil)
		}
		res = x.Do("DELETE", "/v1/workers/"+id+query, "", header...)
	}
	if res.Header.Get("Cache-Control") != "no-store" {
		x.T.Errorf("%s: Cache-Control %q", c.op, res.Header.Get("Cache-Control"))
	}
	if res.StatusCode == want || res.StatusCode == http.StatusNotFound {
		x.isOf(spaceOf(res))
	}
	if res.StatusCode != want {
		p := servertest.Body[servertest.Problem](x.T, res)
		return workerAnswer{Reason: p.Reason, RetryMs: p.RetryAfterMs, Metadata: p.Metadata}
	}
	return workerAnswer{Worker: servertest.Body[map[string]any](x.T, res)}
}

// TestWorkersAgree: both listeners give one answer to each call of a worker, and show no
// secret where they refuse.
func TestWorkersAgree(t *testing.T) {
	for _, listener := range []string{"grpc", "http"} {
		t.Run(listener, func(t *testing.T) {
			mem := storetest.NewMemory(7)
			env, tokens, _ := servertest.NewGuarded(t, access.Config{}, withWorkers(t, mem))
			x := fixture{env}
			call := map[string]func(string, workerCall) workerAnswer{"grpc": x.workerGRPC, "http": x.workerHTTP}[listener]
			secret := "0123456789ABCDEF"
			handle := "w1.%d.1." + secret
			now := int64(servertest.Start)
			refused := func(want string, token string, c workerCall) {
				t.Helper()
				if a := call(token, c); a.Reason != want || a.Worker != nil {
					t.Errorf("%+v: %+v, want %s", c, a, want)
				}
			}
			may := tokens["worker"]
			refused("INVALID_FORMAT", may, workerCall{op: "acquire"})
			refused("INVALID_FORMAT", may, workerCall{op: "acquire", name: "\x1b[2J"})
			refused("INVALID_FORMAT", may, workerCall{op: "acquire", name: "a", secret: "short"})
			refused("INVALID_FORMAT", may, workerCall{op: "acquire", name: "a", clock: -1})
			refused("CALLER_CLOCK", may, workerCall{op: "acquire", name: "a", clock: now - 251})
			a := call(may, workerCall{op: "acquire", name: "a", secret: secret, clock: now + 250})
			sid, ok := a.Worker["worker"].(float64)
			if !ok {
				t.Fatalf("%+v", a)
			}
			handle = fmt.Sprintf(handle, int(sid))
			want := map[string]any{"id": fmt.Sprintf("%d-1", int(sid)), "worker": sid, "term": 1.0, "name": "a", "not_before_unix_ms": float64(now),
				"not_after_unix_ms": float64(now + 60_000), "extend_at_unix_ms": float64(now + 20_000), "now_unix_ms": float64(now), "handle": handle}
			if !reflect.DeepEqual(a.Worker, want) {
				t.Errorf("acquired %v, want %v", a.Worker, want)
			}
			if again := call(may, workerCall{op: "acquire", name: "a", secret: secret}); !reflect.DeepEqual(again, a) {
				t.Errorf("again: %+v", again)
			}
			tells := call(may, workerCall{op: "acquire", name: "b", tells: true}).Worker
			if tells["floor_unix_ms"] != float64(now) {
				t.Errorf("one that tells floors: %v", tells)
			}
			if r := call(may, workerCall{op: "acquire", name: "c"}); r.Reason != "WORKER_QUOTA" || r.Metadata["limit"] != "2" {
				t.Errorf("beyond the quota: %+v", r)
			}
			env.Clock.Advance(20 * time.Second)
			want["not_after_unix_ms"], want["extend_at_unix_ms"], want["now_unix_ms"] = float64(now+80_000), float64(now+40_000), float64(now+20_000)
			if a = call(may, workerCall{op: "extend", handle: handle, notAfter: now + 60_000}); !reflect.DeepEqual(a.Worker, want) {
				t.Errorf("extended %+v, want %v", a, want)
			}
			told := workerCall{op: "extend", handle: tells["handle"].(string), floor: now + 15_000}
			if a = call(may, told); a.Worker["floor_unix_ms"] != float64(now+15_000) {
				t.Errorf("told a floor: %+v", a)
			}
			for _, wrong := range []int64{-1, math.MinInt64, now + 80_001, math.MaxInt64} {
				told.floor = wrong
				refused("INVALID_FORMAT", may, told)
			}
			for _, bad := range []string{"", "x", handle + "x.", "w1.16.1." + strings.Repeat("x", 100)} {
				refused("INVALID_FORMAT", may, workerCall{op: "extend", handle: bad, id: "16-1"})
				refused("INVALID_FORMAT", may, workerCall{op: "release", handle: bad, id: "16-1"})
			}
			refused("HISTORY_REWOUND", may, workerCall{op: "extend", handle: handle, notAfter: now + 80_001})
			refused("UNKNOWN_WORKER", may, workerCall{op: "extend", handle: handle + "x"})
			refused("UNKNOWN_WORKER", may, workerCall{op: "release", handle: handle + "x"})
			if a = call(may, workerCall{op: "release", handle: handle, usedUntil: now + 10_000}); a.Worker["reusable_from_unix_ms"] != float64(now+10_000) {
				t.Errorf("released: %+v", a)
			}
			refused("UNKNOWN_WORKER", may, workerCall{op: "extend", handle: handle})
			if n := env.Node.Stats().Refused; n[node.UnknownWorker] != 3 || n[node.WorkerQuota] != 1 || n[node.CallerClock] != 1 {
				t.Errorf("counted %v", n)
			}
			env.Node.Drain()
			refused("DRAINING", may, workerCall{op: "extend", handle: handle})
		})
	}
}

// TestWorkersOverHTTP: what only HTTP can get wrong. No answer has anything of a secret.
func TestWorkersOverHTTP(t *testing.T) {
	env := servertest.New(t, withWorkers(t, storetest.NewMemory(7)))
	const secret = "S3CRETS3CRETS3CRET"
	for _, tc := range []struct {
		method, path, body, kind, handle string
		status                           int
	}{
		{"GET", "/v1/workers", "", "", "", 405},
		{"POST", "/v1/workers", "", "", "", 415},
		{"POST", "/v1/workers", `{"name":"a","secret":"` + secret + `"}`, "text/plain", "", 415},
		{"POST", "/v1/workers", `{"name":"a","secret":"` + secret + `"`, "application/json", "", 400},
		{"POST", "/v1/workers", `{"name":"a","secrets":"` + secret + `"}`, "application/json", "", 400},
		{"POST", "/v1/workers", `{"name":"a","secret":["` + secret + `"]}`, "application/json", "", 400},
		{"POST", "/v1/workers", `["` + secret + `"]`, "application/json", "", 400},
		{"POST", "/v1/workers", " ", "application/json", "", 400},
		{"POST", "/v1/workers", `{"name":"` + strings.Repeat("a", 5000) + `"}`, "application/json", "", 413},
		{"POST", "/v1/workers", `{"name":"a","secret":"` + secret + `-"}`, "application/json", "", 400},
		{"POST", "/v1/workers/16-1", "", "", "w1.16.1." + secret, 404},
		{"POST", "/v1/workers/16-1:renew", "", "", "w1.16.1." + secret, 404},
		{"POST", "/v1/workers/17-1:extend", "", "", "w1.16.1." + secret, 400},
		{"DELETE", "/v1/workers/17-1", "", "", "w1.16.1." + secret, 400},
		{"DELETE", "/v1/workers/16-1?used_until_unix_ms=x", "", "", "w1.16.1." + secret, 400},
		{"DELETE", "/v1/workers/16-1?used_until_unix_ms=-1", "", "", "w1.16.1." + secret, 400},
		{"DELETE", "/v1/workers/16-1?handle=x", "", "", "w1.16.1." + secret, 400},
		{"PUT", "/v1/workers/16-1", "", "", "w1.16.1." + secret, 405},
		{"POST", "/v1/workers/16-1:extend", "", "", "w1.16.1." + secret, 404},
		{"POST", "/v1/workers", `{"name":"a","secret":"` + secret + `"}`, "application/json", "", 201},
	} {
		header := []string{}
		if tc.kind != "" {
			header = append(header, "Content-Type", tc.kind)
		}
		if tc.handle != "" {
			header = append(header, "Worker-Handle", tc.handle)
		}
		res := env.Do(tc.method, tc.path, tc.body, header...)
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != tc.status {
			t.Errorf("%s %s %.40s: %d, want %d: %s", tc.method, tc.path, tc.body, res.StatusCode, tc.status, body)
		}
		if tc.status != 201 && strings.Contains(string(body), "S3CRET") {
			t.Errorf("%s %s: the answer shows the secret: %s", tc.method, tc.path, body)
		}
	}
}
