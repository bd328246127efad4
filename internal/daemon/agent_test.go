package daemon_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/grpcserver"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/respserver"
)

// moody is a node that refuses as it is told to.
type moody struct {
	*node.Node
	refuses atomic.Pointer[node.Refusal]
	largest int // request, if not 0
}

func (m *moody) About() node.About {
	a := m.Node.About()
	a.MaxBlock = cmp.Or(m.largest, a.MaxBlock)
	return a
}

// newMoody returns one that refuses nothing yet.
func newMoody() *moody { return newMoodyOf(flake.Default) }

func newMoodyOf(space flake.Format) *moody {
	n := node.New(node.Config{
		Name: "moody", MaxWait: 100 * time.Millisecond,
		Gen: gen.Config{Layout: space.Layout, Epoch: clock.Millis(space.Epoch), MaxLead: 250},
	}, clock.NewSystem(nil), gen.Random())
	now := clock.Millis(time.Now().UnixMilli())
	n.Begin(lease.Grant{SID: 7, Term: 1, Base: now, Ceil: now + 3_600_000})
	return &moody{Node: n}
}

func (m *moody) Try(now clock.Reading, count int, after flake.ID) (gen.Block, error) {
	if r := m.refuses.Load(); r != nil {
		return gen.Block{}, r
	}
	return m.Node.Try(now, count, after)
}

func (m *moody) Next(ctx context.Context, count int, after flake.ID) (gen.Block, error) {
	if r := m.About().Check(count, after); r != nil {
		return gen.Block{}, m.Refused(r)
	}
	if r := m.refuses.Load(); r != nil && count > 0 {
		return gen.Block{}, m.Refused(r)
	}
	return m.Node.Next(ctx, count, after)
}

func (m *moody) NextNow(count int, after flake.ID) (gen.Block, bool, error) {
	if r := m.refuses.Load(); r != nil && count > 0 {
		return gen.Block{}, false, m.Refused(r)
	}
	return m.Node.NextNow(count, after)
}

// serve answers on three sockets of a directory, as a node's listeners do.
func (m *moody) serve(t *testing.T, dir string) {
	t.Helper()
	service := server.New(server.Config{Agent: m, Nodes: []string{"nobody:1"}})
	log := slog.New(slog.DiscardHandler)
	g := grpcserver.New(grpcserver.Config{Service: service, Logger: log, Draining: func() <-chan struct{} { return nil }})
	h := httpserver.New(httpserver.Config{Service: service})
	r := respserver.New(respserver.Config{Service: service, Logger: log})
	gs, hs := g.GRPC(grpc.Creds(insecure.NewCredentials())), httpserver.NewServer(h, log)
	var all sync.WaitGroup
	for name, serve := range map[string]func(net.Listener) error{"g": gs.Serve, "h": hs.Serve, "r": r.Serve} {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		fatal.If(t, err)
		all.Go(func() { _ = serve(l) })
	}
	t.Cleanup(func() {
		gs.Stop()
		_ = hs.Close()
		_ = r.Shutdown(context.Background())
		all.Wait()
	})
}

// runAgent runs an agent of targets on three sockets of a directory, and returns its log and what
// stops it.
func runAgent(t *testing.T, dir string, change func(*daemon.AgentConfig), targets ...string) (*daemon.Agent, *output.Text, func()) {
	t.Helper()
	out := &output.Text{}
	c := onSockets(config.Default(), dir)
	c.Listen.Admin, c.Node.Name = "", "moody"
	cfg := daemon.AgentConfig{
		Settings: c, Client: client.Options{Targets: targets}, MaxAge: time.Second, MaxWait: 10 * time.Second,
		Version: "test", Logger: slog.New(slog.NewTextHandler(out, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	a, err := daemon.NewAgent(cfg)
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the agent ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return a, out, stop
}

// agentOf runs an agent of m, which both serve on sockets of their own directories, until it listens.
func agentOf(t *testing.T, m *moody, change func(*daemon.AgentConfig)) (a *daemon.Agent, own, its string, stop func()) {
	t.Helper()
	own, its = t.TempDir(), t.TempDir()
	m.serve(t, own)
	a, _, stop = runAgent(t, its, change, "unix:"+own+"/g")
	<-a.Listening()
	return a, own, its, stop
}

// overHTTP sends a request to the socket h, and returns status, headers of interest and body.
func overHTTP(t *testing.T, dir, method, path string) string {
	t.Helper()
	hc := &http.Client{Timeout: wait.Most, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "h"))
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, nil)
	fatal.If(t, err)
	res, err := hc.Do(req)
	fatal.If(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	fatal.If(t, err)
	return fmt.Sprint(res.Status, res.Header["Content-Type"], res.Header["Retry-After"], string(body))
}

// overRESP sends a command to the socket r, and returns the first line of the answer.
func overRESP(t *testing.T, dir, command string) string {
	t.Helper()
	line, _, _ := strings.Cut(wholeRESP(t, dir, command), "\n")
	return line + "\n"
}

// wholeRESP sends a command to the socket r, and returns the answer to it and to QUIT.
func wholeRESP(t *testing.T, dir, command string) string {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(dir, "r"))
	fatal.If(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(wait.Most))
	if _, err := io.WriteString(conn, command+"\r\nQUIT\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	fatal.If(t, err)
	return string(answer)
}

// overGRPC calls f with a connection to the socket g, and returns the status of its error as text, and
// its result if there is no error.
func overGRPC(t *testing.T, dir string, f func(context.Context, *grpc.ClientConn) (any, error)) string {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "g"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal.If(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()
	res, err := f(ctx, conn)
	if err == nil {
		return fmt.Sprint("OK ", res)
	}
	st := status.Convert(err)
	text := fmt.Sprint(st.Code(), " ", st.Message())
	for _, d := range st.Details() {
		text += fmt.Sprintf(" %v", d)
	}
	return strings.Join(strings.Fields(text), " ") // the spaces of a message's text differ on purpose
}

// draws are the ways to draw an ID above after. Each returns the answer as text.
var draws = map[string]func(t *testing.T, dir string, after flake.ID) string{
	"HTTP": func(t *testing.T, dir string, after flake.ID) string {
		return overHTTP(t, dir, http.MethodPost, "/v1/ids?after="+after.String())
	},
	"RESP": func(t *testing.T, dir string, after flake.ID) string {
		return wholeRESP(t, dir, "ID.NEXT AFTER "+after.String())
	},
	"gRPC": func(t *testing.T, dir string, after flake.ID) string {
		return overGRPC(t, dir, func(ctx context.Context, conn *grpc.ClientConn) (any, error) {
			res, err := pb.NewAllocatorServiceClient(conn).Allocate(ctx, &pb.AllocateRequest{Count: 1, After: int64(after)})
			return flake.ID(res.GetFirst()), err
		})
	},
	"stream": func(t *testing.T, dir string, after flake.ID) string {
		return overGRPC(t, dir, func(ctx context.Context, conn *grpc.ClientConn) (any, error) {
			s, err := pb.NewAllocatorServiceClient(conn).AllocateStream(ctx)
			if err != nil {
				return nil, err
			}
			req := &pb.AllocateStreamRequest{Sequence: 1, Request: &pb.AllocateRequest{Count: 1, After: int64(after)}}
			if err := s.Send(req); err != nil {
				return nil, err
			}
			res, err := s.Recv()
			if r := res.GetRefusal(); r != nil {
				err = status.Error(codes.Unknown, prototext.Format(r))
			}
			return flake.ID(res.GetResponse().GetFirst()), err
		})
	},
}

// TestAgentPassesRefusals: a refusal of a node has the same class, code and text from an agent, over each
// protocol. TestRefusals of internal/daemon/agent has the rules.
func TestAgentPassesRefusals(t *testing.T) {
	t.Parallel()
	for _, r := range []*node.Refusal{
		{Reason: node.ClockSkew, RetryAfter: 1234 * time.Millisecond},
		{Reason: node.PermissionDenied},
	} {
		r.Message, r.Metadata = "what is wrong, and what to do", map[string]string{"a": "1", "offset_ms": "-7 (late)"}
		m := newMoody()
		_, own, its, _ := agentOf(t, m, func(c *daemon.AgentConfig) { c.MaxAge = 100 * time.Millisecond })
		m.refuses.Store(r)
		for what, draw := range draws {
			want := draw(t, own, 0)
			if !strings.Contains(want, "what is wrong") {
				t.Errorf("%s: the node answers %s", what, want)
			}
			got := ""
			wait.NoError(t, what, func() error { // At first the agent has IDs that are not too old yet.
				if got = draw(t, its, 0); got != want {
					return fmt.Errorf("\n got %s\nwant %s", got, want)
				}
				return nil
			})
		}
		m.refuses.Store(nil)
		wait.Until(t, "the agent serves again", func() bool { return overRESP(t, its, "ID.NEXT") == "$13\r\n" })
	}
}

// TestAgentAnswers: wrong requests are refused as by the node, IDs are decoded, and what only nodes
// answer is refused with their addresses, over each protocol.
func TestAgentAnswers(t *testing.T) {
	t.Parallel()
	m := newMoody()
	m.largest = 100
	_, own, its, stop := agentOf(t, m, nil)
	const query = "/v1/ids?count=101"
	if want, got := overHTTP(t, own, http.MethodPost, query), overHTTP(t, its, http.MethodPost, query); got != want || !strings.HasPrefix(got, "400") {
		t.Errorf("%s:\n got %s\nwant %s", query, got, want)
	}
	for _, command := range []string{"ID.NEXT COUNT 101", "INCR id"} {
		if want, got := overRESP(t, own, command), overRESP(t, its, command); got != want || got[0] != '-' {
			t.Errorf("%s:\n got %s\nwant %s", command, got, want)
		}
	}
	where := "ask one of unix:" + own + "/g"
	if got := overHTTP(t, its, http.MethodGet, "/v1/ids/02MVRE9KJ2642"); !strings.Contains(got, `"sid":2`) ||
		!strings.Contains(got, `"holder":null`) || !strings.Contains(got, where) {
		t.Errorf("decoded: %s", got)
	}
	for _, request := range []string{"GET /v1/cluster", "GET /v1/watermark", "GET /v1/events", "POST /v1/workers",
		"POST /v1/workers/1:extend"} {
		method, path, _ := strings.Cut(request, " ")
		if got := overHTTP(t, its, method, path); !strings.HasPrefix(got, "501") || !strings.Contains(got, where) {
			t.Errorf("%s: %s", request, got)
		}
	}
	for _, command := range []string{"ID.STATUS", "ID.WATERMARK"} {
		if got := overRESP(t, its, command); !strings.HasPrefix(got, "-ERR "+command) || !strings.Contains(got, where) {
			t.Errorf("%s: %s", command, got)
		}
	}
	for what, ask := range map[string]func(context.Context, *grpc.ClientConn) (any, error){
		"cluster": func(ctx context.Context, c *grpc.ClientConn) (any, error) {
			return pb.NewAdminServiceClient(c).GetCluster(ctx, &pb.GetClusterRequest{})
		},
		"drain": func(ctx context.Context, c *grpc.ClientConn) (any, error) {
			return pb.NewAdminServiceClient(c).Drain(ctx, &pb.DrainRequest{})
		},
		"watch": func(ctx context.Context, c *grpc.ClientConn) (any, error) {
			s, err := pb.NewAllocatorServiceClient(c).WatchWatermark(ctx, &pb.WatchWatermarkRequest{})
			if err != nil {
				return nil, err
			}
			return s.Recv()
		},
		"worker": func(ctx context.Context, c *grpc.ClientConn) (any, error) {
			return pb.NewWorkerServiceClient(c).AcquireWorker(ctx, &pb.AcquireWorkerRequest{Name: "a"})
		},
	} {
		if got := overGRPC(t, its, ask); !strings.HasPrefix(got, "Unimplemented") || !strings.Contains(got, where) {
			t.Errorf("gRPC %s: %s", what, got)
		}
	}
	stop()
	for _, name := range []string{"g", "h", "r"} {
		if _, err := os.Stat(filepath.Join(its, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the stop: %s: %v", name, err)
		}
	}
}

var written = regexp.MustCompile(`0[0-9A-Z]{12}`) // an ID in an answer

// TestAgentOrder: over all protocols together IDs rise from call to call, and exceed after, whether
// that is the last ID, one of another agent or one between; also with several callers at once.
func TestAgentOrder(t *testing.T) {
	t.Parallel()
	m := newMoody()
	_, _, its, _ := agentOf(t, m, nil)
	var mu sync.Mutex    // guards the next two
	var highest flake.ID // of the calls that have returned
	seen := map[flake.ID]string{}
	draw := func(name string, after flake.ID) {
		t.Helper()
		mu.Lock()
		before := highest
		mu.Unlock()
		answer := draws[name](t, its, after)
		id, err := flake.Parse(written.FindString(answer))
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			t.Errorf("%s: %v in %s", name, err, answer)
		case id <= before || id <= after:
			history.Violated(t, "I2", "%s: %v above %v, and a call that had returned before got %v", name, id, after, before)
		case seen[id] != "":
			history.Violated(t, "I1", "%v twice: over %s and %s", id, seen[id], name)
		}
		seen[id], highest = name, max(highest, id)
	}
	for range 20 {
		for name := range draws {
			draw(name, 0)
			draw(name, highest)
			b, err := m.Node.Next(t.Context(), 1, 0) // as another agent has given it
			fatal.If(t, err)
			draw(name, b.First)
		}
	}
	var all sync.WaitGroup
	for range 2 {
		for name := range draws {
			all.Go(func() {
				for range 50 {
					draw(name, 0)
				}
			})
		}
	}
	all.Wait()
}

// TestAgentPipelineAfterRefusal: what the agent holds is given to the rest of a pipeline of which a request
// was refused, also where that begins with the next block.
func TestAgentPipelineAfterRefusal(t *testing.T) {
	t.Parallel()
	const block, drawn = 64, 40 // Half a block and more: the next one is on its way.
	m := newMoody()
	m.largest = block
	_, _, its, _ := agentOf(t, m, func(c *daemon.AgentConfig) { c.MaxAge = time.Minute })
	var answer string
	wait.Until(t, "all of a block is served", func() bool {
		for range drawn {
			if line := overRESP(t, its, "ID.NEXT"); line != "$13\r\n" {
				t.Fatal(line)
			}
		}
		answer = wholeRESP(t, its, "ID.NEXT AFTER 4611686018427387904"+strings.Repeat("\r\nID.NEXT", block))
		if !strings.HasPrefix(answer, "-ERR AFTER_TOO_FAR ") {
			t.Fatal(answer)
		}
		return strings.Count(answer, "$13\r\n") == block
	})
}

// TestAgentSpace: an agent learns the layout and epoch of its nodes: it gives all forms of their IDs, and decodes them
// as they do.
func TestAgentSpace(t *testing.T) {
	t.Parallel()
	space := flake.Format{Layout: flake.JS53, Epoch: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	_, own, its, _ := agentOf(t, newMoodyOf(space), nil)
	for _, form := range []string{"flake", "int", "ulid", "uuid"} {
		got := overHTTP(t, its, http.MethodPost, "/v1/ids?as="+form)
		id := regexp.MustCompile(`"ids":\["([^"]+)"\]`).FindStringSubmatch(got)
		if id == nil {
			t.Errorf("%s: %s", form, got)
			continue
		}
		about := "/v1/ids/" + id[1] + "?kind=" + form
		want, _, _ := strings.Cut(overHTTP(t, own, http.MethodGet, about), `,"holder_problem":`)
		got, _, _ = strings.Cut(overHTTP(t, its, http.MethodGet, about), `,"holder_problem":`)
		if got != want || !strings.HasPrefix(got, "200") {
			t.Errorf("%s:\n got %s\nwant %s", about, got, want)
		}
	}
}

// TestAgentAdmin: the admin port says whether the agent lives and is ready, which gRPC's health follows,
// counts requests, and answers no page of another site.
func TestAgentAdmin(t *testing.T) {
	t.Parallel()
	m := newMoody()
	a, _, its, _ := agentOf(t, m, func(c *daemon.AgentConfig) {
		c.Settings.Listen.Admin, c.MaxAge = "127.0.0.1:0", 200*time.Millisecond
	})
	admin := "http://" + a.Addresses().Admin
	health := func() string {
		return overGRPC(t, its, func(ctx context.Context, c *grpc.ClientConn) (any, error) {
			res, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{})
			return res.GetStatus(), err
		})
	}
	ready := func(want int, says, serving string) {
		t.Helper()
		wait.Until(t, says, func() bool {
			code, body := get(t, admin+"/readyz?verbose")
			return code == want && strings.Contains(body, says) && health() == "OK "+serving
		})
		if code, body := get(t, admin+"/livez"); code != 200 || body != "ok\n" {
			t.Errorf("livez: %d %s", code, body)
		}
	}
	ready(200, "ok", "SERVING")
	if line := overRESP(t, its, "ID.NEXT"); line != "$13\r\n" {
		t.Fatal(line)
	}
	m.refuses.Store(&node.Refusal{Reason: node.NoSID, Message: "all are held", RetryAfter: 100 * time.Millisecond})
	ready(503, "all are held", "NOT_SERVING") // though nobody asks
	if info := wholeRESP(t, its, "INFO"); !strings.Contains(info, "\nrefusing:NO_SID\r\n") {
		t.Error(info)
	}
	if line := overRESP(t, its, "ID.NEXT"); !strings.HasPrefix(line, "-TRYAGAIN NO_SID ") {
		t.Error(line)
	}
	m.refuses.Store(nil)
	ready(200, "ok", "SERVING")

	overHTTP(t, its, http.MethodPost, "/v1/ids")
	overHTTP(t, its, http.MethodPost, "/v1/ids?count=x")
	if code, body := get(t, admin+"/v1/ids"); code != 404 || !strings.Contains(body, "this is the admin port") {
		t.Errorf("IDs of the admin port: %d %s", code, body)
	}
	foreign, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	if res, err := http.DefaultClient.Do(foreign); err != nil || res.StatusCode != 403 || res.Body.Close() != nil {
		t.Errorf("a page of another site: %v %v", res, err)
	}
	foreign.Header.Del("Sec-Fetch-Site")
	foreign.Host = "rebound.example.com"
	if res, err := http.DefaultClient.Do(foreign); err != nil || res.StatusCode != 421 || res.Body.Close() != nil {
		t.Errorf("a page whose name is bound to this address: %v %v", res, err)
	}
	_, metrics := get(t, admin+"/metrics")
	for _, want := range []string{
		`allocator_requests_total{code="OK",surface="resp_ids"} 1`, `allocator_requests_total{code="NO_SID",surface="resp_ids"} 1`,
		`allocator_requests_total{code="OK",surface="http_ids"} 1`, `allocator_requests_total{code="INVALID_COUNT",surface="http_ids"} 1`,
		"allocator_client_ids_total ",
	} {
		if !strings.Contains(metrics, "\n"+want) {
			t.Errorf("the metrics lack %s:\n%s", want, metrics)
		}
	}
	info := wholeRESP(t, its, "INFO")
	for _, want := range []string{"redis_version:", "allocator_version:test\r\n", "\nnode:moody\r\n", "\nrefusing:\r\n", "\nsid:-1\r\n"} {
		if !strings.Contains(info, want) {
			t.Errorf("INFO lacks %q: %s", want, info)
		}
	}
}

// TestAgentWaits: an agent that no node gives IDs says why, once, and listens when one does.
func TestAgentWaits(t *testing.T) {
	t.Parallel()
	dir, its := t.TempDir(), t.TempDir()
	// First a server that has none of the methods, as of another program or another age.
	l, err := net.Listen("unix", filepath.Join(dir, "g"))
	fatal.If(t, err)
	bare := grpc.NewServer()
	go func() { _ = bare.Serve(l) }()
	a, out, _ := runAgent(t, its, func(c *daemon.AgentConfig) { c.Client.Timeout = time.Second }, "unix:"+dir+"/g")
	wait.Until(t, "the agent says why no node gives IDs", func() bool {
		return strings.Contains(out.String(), "no node gives IDs") && strings.Contains(out.String(), "unimplemented")
	})
	if _, err := os.Stat(filepath.Join(its, "r")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it listens: %v", err)
	}
	bare.Stop()
	newMoody().serve(t, dir)
	<-a.Listening()
}

// TestAgentsThatCannotBe: settings that no agent can have, and a token file that is not there.
func TestAgentsThatCannotBe(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*daemon.AgentConfig){
		"nowhere to listen":      func(c *daemon.AgentConfig) { c.Settings.Listen = config.Listen{} },
		"max-age: 0s is out of":  func(c *daemon.AgentConfig) { c.MaxAge = 0 },
		"max-wait: 1m0s is out":  func(c *daemon.AgentConfig) { c.MaxWait = time.Minute },
		"Targets: is empty":      func(c *daemon.AgentConfig) { c.Client.Targets = nil },
		"option TokenFile":       func(c *daemon.AgentConfig) { c.Client.TokenFile, c.Client.PlaintextToken = "/none", true },
		"everybody who reaches":  func(c *daemon.AgentConfig) { c.Settings.Listen.RESP = "0.0.0.0:6380" },
		"107: use a shorter":     func(c *daemon.AgentConfig) { c.Settings.Listen.RESP = "unix:/" + strings.Repeat("x", 200) },
		"no path of a Unix sock": func(c *daemon.AgentConfig) { c.Client.Targets = []string{"unix:relative"} },
	} {
		cfg := daemon.AgentConfig{Settings: onSockets(config.Default(), "/tmp"), Client: client.Options{Targets: []string{"a:1"}},
			MaxAge: time.Second, MaxWait: time.Second, Logger: slog.New(slog.DiscardHandler)}
		change(&cfg)
		if _, err := daemon.NewAgent(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestAgentLimits: more processes than the limit allows are told so in the words of Redis, and one
// of another agent on the same socket is told who has it.
func TestAgentLimits(t *testing.T) {
	t.Parallel()
	_, own, its, _ := agentOf(t, newMoody(), func(c *daemon.AgentConfig) { c.Settings.Limit.ConnectionsPerSource = 3 })
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for i := range 4 {
		conn, err := net.Dial("unix", filepath.Join(its, "r"))
		fatal.If(t, err)
		open = append(open, conn)
		_ = conn.SetDeadline(time.Now().Add(wait.Most))
		_, _ = io.WriteString(conn, "PING\r\nID.NEXT\r\n")
		got := make([]byte, 64)
		n, err := conn.Read(got)
		if want := map[bool]string{true: "+PONG", false: "-ERR max number of clients reached"}[i < 3]; err != nil ||
			!bytes.HasPrefix(got[:n], []byte(want)) {
			t.Errorf("process %d: %q, %v", i, got[:n], err)
		}
	}
	cfg := daemon.AgentConfig{Settings: onSockets(config.Default(), its), Client: client.Options{Targets: []string{"unix:" + own + "/g"}},
		MaxAge: time.Second, MaxWait: time.Second, Logger: slog.New(slog.DiscardHandler)}
	second, err := daemon.NewAgent(cfg)
	fatal.If(t, err)
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another process listens on") {
		t.Errorf("a second agent: %v", err)
	}
}

// TestAgentRate: the processes of one user are one client of a limited agent, whose refusal names it.
func TestAgentRate(t *testing.T) {
	t.Parallel()
	_, _, its, _ := agentOf(t, newMoody(), func(c *daemon.AgentConfig) {
		c.Settings.Limit.RequestsPerSecond = 3
	})
	began, served := time.Now(), 0
	for range 2 { // processes
		answer := wholeRESP(t, its, "ID.NEXT"+strings.Repeat("\r\nID.NEXT", 49)) // 17 s of the limit
		served += strings.Count(answer, "$13\r\n")
		if !strings.Contains(answer, "-TRYAGAIN RATE_LIMITED ") || !strings.Contains(answer, "retry_after_ms=") {
			t.Errorf("after %d: %q", served, answer)
		}
	}
	if most := 4 + int(3*time.Since(began).Seconds()); served < 3 || served > most {
		t.Errorf("%d processes were served, of 3 to %d", served, most)
	}
}
