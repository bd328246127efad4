package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// shared is where one etcd listens for all tests that do not stop it; each has its own space.
var shared string

func TestMain(m *testing.M) {
	etcd, endpoint, err := etcdsim.OnLoopback()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = endpoint
	flag.Parse()
	if err := flag.Set("test.parallel", "24"); err != nil { // what is parallel here waits, and computes little
		panic(err)
	}
	code := m.Run()
	etcd.Close()
	if err := goleak.Find(goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon")); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// short makes windows that run out within a test.
func short(c config.Config) config.Config {
	c.Lease = config.Lease{
		Window: 3 * time.Second, ExtendEvery: 500 * time.Millisecond, TTL: 5 * time.Second,
		KeepAlive: time.Second, ReloadEvery: 2 * time.Second, CallTimeout: time.Second,
	}
	return c
}

// running is a daemon under way.
type running struct{ *daemontest.Running }

func start(t *testing.T, c config.Config) *running {
	t.Helper()
	return &running{daemontest.Start(t, c, daemon.Host{})}
}

func (r *running) untilReady(t *testing.T) {
	t.Helper()
	wait.Until(t, "the node is ready", func() bool { return r.Node().Ready() == nil })
}

func (r *running) next(t *testing.T) flake.ID {
	t.Helper()
	var id flake.ID
	wait.NoError(t, "an ID", func() error { // A window may end while a busy machine does nothing for the node.
		b, err := r.Node().Next(t.Context(), 1, 0)
		id = b.First
		return err
	})
	return id
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	fatal.If(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fatal.If(t, err)
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode, string(body)
}

func store(t *testing.T, c config.Config) *etcdstore.Store {
	t.Helper()
	client, err := etcdstore.Dial(etcdstore.Config{Endpoints: c.Etcd.Endpoints})
	fatal.If(t, err)
	t.Cleanup(func() { _ = client.Close() })
	s, err := etcdstore.New(client, c.Root, c.Space)
	fatal.If(t, err)
	return s
}

func TestFirstID(t *testing.T) {
	c := daemontest.Settings(t, "a", shared)
	daemontest.Init(t, c)
	r := start(t, c)
	r.untilReady(t)
	id := r.next(t)

	if code, body := get(t, "http://"+r.Addresses().Admin+"/readyz"); code != 200 {
		t.Errorf("readyz: %d %s", code, body)
	}
	if _, body := get(t, "http://"+r.Addresses().HTTP+"/v1/ids/"+id.String()); !strings.Contains(body, `"node":"a"`) {
		t.Errorf("decode does not name the holder: %s", body)
	}
	_, body := get(t, "http://"+r.Addresses().Admin+"/metrics")
	for _, want := range []string{
		"allocator_ids_issued_total 1\n", "allocator_ready 1\n", `allocator_build_info{version="test"} 1`,
		`allocator_requests_total{code="OK",surface="http_decode"} 1`,
		`allocator_request_duration_seconds_count{surface="http_decode"} 1`,
		`allocator_etcd_call_errors_total{op="acquire"} `,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics: no %q", want)
		}
	}
	if code, body := get(t, "http://"+r.Addresses().Admin+"/debug/pprof/goroutine?debug=1"); code != 200 || !strings.Contains(body, "goroutine profile: total") {
		t.Errorf("a profile, for a caller on loopback: %d %.200s", code, body)
	}
}

// Incident T23 (registry away at the start, and a number from a file instead), docs/INCIDENTS.md.
func TestEtcdAppearsLater(t *testing.T) {
	etcd, endpoint, err := etcdsim.OnLoopback()
	fatal.If(t, err)
	t.Cleanup(etcd.Close) // after the node, whose sid it takes back
	c := short(daemontest.Settings(t, "a", endpoint))
	daemontest.Init(t, c)
	etcd.Stop()

	r := start(t, c)
	if code, _ := get(t, "http://"+r.Addresses().Admin+"/livez"); code != 200 {
		t.Errorf("livez: %d", code)
	}
	_, err = r.Node().Next(t.Context(), 1, 0)
	if !errors.Is(err, &node.Refusal{Reason: node.Starting}) {
		t.Errorf("got %v, want STARTING", err)
	}
	wait.Until(t, "says that it waits for etcd", func() bool {
		return strings.Contains(r.Log.String(), "waiting for etcd") && strings.Contains(r.Log.String(), endpoint)
	})
	fatal.If(t, etcd.Start())
	r.untilReady(t)
}

func TestWaitsForSpace(t *testing.T) {
	c := daemontest.Settings(t, "a", shared)
	r := start(t, c)
	wait.Until(t, "says what to run", func() bool {
		_, err := r.Node().Next(t.Context(), 1, 0)
		return errors.Is(err, &node.Refusal{Reason: node.Starting}) && strings.Contains(err.Error(), "allocator init")
	})
	daemontest.Init(t, c)
	r.untilReady(t)
}

// Incident T41 (another epoch or layout in one cluster), docs/INCIDENTS.md.
func TestOtherFormatEndsTheNode(t *testing.T) {
	for name, change := range map[string]func(*config.Config){
		"layout": func(c *config.Config) { c.Layout = flake.Fleet },
		"epoch":  func(c *config.Config) { c.Epoch += 1000 },
	} {
		t.Run(name, func(t *testing.T) {
			c := daemontest.Settings(t, "a", shared)
			daemontest.Init(t, c)
			have := c
			change(&c)
			log := slog.New(slog.DiscardHandler)
			d, err := daemon.New(daemon.Config{Settings: c, Version: "test", Logger: log})
			fatal.If(t, err)
			err = d.Run(t.Context())
			var format *lease.FormatError
			if !errors.As(err, &format) || format.Space != have.Format() || format.Node != c.Format() {
				t.Errorf("got %v, want both formats", err)
			}
			_, _, err = daemon.Init(t.Context(), c, daemon.Beginning{Fresh: true}, log)
			if !errors.As(err, &format) || format.Space != have.Format() || format.Node != c.Format() {
				t.Errorf("init: got %v, want both formats", err)
			}
		})
	}
}

// TestInitRefusesFirst: what cannot be is found out before anything is asked of etcd.
func TestInitRefusesFirst(t *testing.T) {
	outside := new(lease.RangeError)
	for name, tc := range map[string]struct {
		change func(*config.Config, *daemon.Beginning)
		want   func(error) bool
	}{
		"an epoch to come": {
			func(c *config.Config, _ *daemon.Beginning) {
				c.Epoch = clock.Millis(time.Now().Add(time.Hour).UnixMilli())
			},
			func(err error) bool { return errors.Is(err, daemon.ErrClock) },
		},
		"above an ID to come": {
			func(c *config.Config, b *daemon.Beginning) { b.Above = 1 << 62 },
			func(err error) bool { return errors.Is(err, daemon.ErrAbove) },
		},
		"a range of other sids": {
			func(c *config.Config, _ *daemon.Beginning) { c.SIDRange = lease.SIDRange{From: 30, To: 33} },
			func(err error) bool { return errors.As(err, &outside) && outside.Setting == "sid-range" },
		},
		"other sids reserved": {
			func(_ *config.Config, b *daemon.Beginning) { b.Reserved = lease.SIDSet{{From: 30, To: 33}} },
			func(err error) bool { return errors.As(err, &outside) && outside.Setting == "--reserve" },
		},
	} {
		c, begin := daemontest.Settings(t, "a", "http://127.0.0.1:1"), daemon.Beginning{Fresh: true}
		tc.change(&c, &begin)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		created, _, err := daemon.Init(ctx, c, begin, slog.New(slog.DiscardHandler))
		if created || !tc.want(err) || ctx.Err() != nil {
			t.Errorf("%s: created %v, %v", name, created, err)
		}
		cancel()
	}
	c := daemontest.Settings(t, "a", shared)
	if _, err := daemon.FindSpace(t.Context(), c, daemon.Beginning{}, slog.New(slog.DiscardHandler)); !errors.Is(err, daemon.ErrNoSpace) {
		t.Errorf("no space: %v", err)
	}
}

// A space that exists is compared with the ID that it has to be above.
func TestInitAbove(t *testing.T) {
	c := daemontest.Settings(t, "a", shared)
	c.Layout, c.Epoch = flake.Twitter, clock.Millis(flake.Twitter.Epoch())
	log := slog.New(slog.DiscardHandler)
	ahead := time.Now().Add(3 * time.Second)
	above, err := c.Format().Max(ahead.UnixMilli())
	fatal.If(t, err)
	begin := daemon.Beginning{Fresh: true, Above: above}
	if _, _, err := daemon.Init(t.Context(), c, begin, log); err != nil {
		t.Fatal(err)
	}
	n := start(t, c)
	n.untilReady(t)
	if id := n.next(t); id <= above {
		t.Errorf("issued %d, not above %d", id, above)
	}
	begin.Above += 1 << c.Layout.LowBits()
	if _, _, err := daemon.Init(t.Context(), c, begin, log); !errors.Is(err, daemon.ErrDiffers) {
		t.Errorf("above one of the next millisecond: %v", err)
	}
	if _, err := daemon.FindSpace(t.Context(), c, begin, log); !errors.Is(err, daemon.ErrDiffers) {
		t.Errorf("found above one of the next millisecond: %v", err)
	}
}

func TestBusyPort(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer busy.Close()
	c := daemontest.Settings(t, "a", shared)
	c.Listen.HTTP = busy.Addr().String()
	d, err := daemon.New(daemon.Config{Settings: c, Version: "test", Logger: slog.New(slog.DiscardHandler)})
	fatal.If(t, err)
	err = d.Run(t.Context())
	var port *daemon.PortError
	if !errors.As(err, &port) || port.Key != "listen.http" || !strings.Contains(err.Error(), busy.Addr().String()) {
		t.Errorf("got %v, want the address and the setting", err)
	}
}

func TestNewRefuses(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if _, err := daemon.New(daemon.Config{Settings: config.Default(), Version: "test", Logger: log}); !errors.Is(err, daemon.ErrNoEndpoints) {
		t.Errorf("no endpoints: got %v", err)
	}
	c := daemontest.Settings(t, "a", shared)
	c.Lease.TTL = time.Millisecond
	var rule *config.RuleError
	if _, err := daemon.New(daemon.Config{Settings: c, Version: "test", Logger: log}); !errors.As(err, &rule) {
		t.Errorf("bad setting: got %v", err)
	}
	c = daemontest.Settings(t, "a", shared)
	c.Etcd.Username, c.Etcd.PasswordFile = "u", "/does/not/exist"
	if _, err := daemon.New(daemon.Config{Settings: c, Version: "test", Logger: log}); err == nil || !strings.Contains(err.Error(), "etcd.password-file") {
		t.Errorf("missing password file: got %v", err)
	}
}

// A node takes sids of its range alone, and says so where it shows who it is. A standby takes one over.
func TestSIDRange(t *testing.T) {
	c := daemontest.Settings(t, "a", shared)
	daemontest.Init(t, c)
	c.SIDRange = lease.SIDRange{From: 24, To: 25}
	began := time.Now()
	one := start(t, c)
	one.untilReady(t)
	if sid := c.Format().SID(one.next(t)); sid != 24 {
		t.Errorf("issues from sid %d, want 24", sid)
	}
	var shown status.Cluster
	_, body := get(t, "http://"+one.Addresses().HTTP+"/v1/cluster")
	if err := json.Unmarshal([]byte(body), &shown); err != nil || len(shown.Nodes) != 1 || shown.Nodes[0].SIDRange != "24" {
		t.Errorf("the cluster's page does not show the range: %v, %s", err, body)
	} else if at := time.UnixMilli(shown.Nodes[0].Started); at.Before(began.Truncate(time.Millisecond)) || at.After(time.Now()) {
		t.Errorf("a node that started at %v says %v", began, at)
	}
	wait.Until(t, "readyz shows the sid", func() bool {
		code, body := get(t, "http://"+one.Addresses().Admin+"/readyz?verbose")
		return code == 200 && strings.Contains(body, "[+] sid: 24 of 24, lease holding")
	})
	c.Node.Name = "b"
	two := start(t, c)
	wait.Until(t, "standby although 31 sids are free", func() bool {
		_, err := two.Node().Next(t.Context(), 1, 0)
		var r *node.Refusal
		return errors.As(err, &r) && r.Reason == node.NoSID && r.Metadata["pool_held"] == "1" && r.Metadata["pool_size"] == "1" &&
			r.Metadata["sid_range"] == "24" && strings.Contains(r.Message, "no sid in 24 (sid-range) is free: 1 of 1 are held by a")
	})
	if code, _ := get(t, "http://"+two.Addresses().Admin+"/readyz"); code != 503 {
		t.Errorf("a standby says that it is ready: %d", code)
	}
	fatal.If(t, one.Stop())
	two.untilReady(t)
	if sid := c.Format().SID(two.next(t)); sid != 24 {
		t.Errorf("issues from sid %d, want 24", sid)
	}
}

// A node needs no listener to hold a sid; it is then registered without addresses.
func TestNoListeners(t *testing.T) {
	c := daemontest.Settings(t, "a", shared)
	daemontest.Init(t, c)
	c.Listen = config.Listen{}
	r := start(t, c)
	r.untilReady(t)
	r.next(t)
	if r.Addresses() != (daemon.Addresses{}) {
		t.Errorf("answers at %+v", r.Addresses())
	}
	v, err := store(t, c).Load(t.Context())
	if err != nil || len(v.Nodes) != 1 || v.Nodes[0].GRPC != "" || v.Nodes[0].HTTP != "" {
		t.Errorf("registered: %+v, %v", v.Nodes, err)
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	if v, err = store(t, c).Load(t.Context()); err != nil || v.SIDs[0].Holder.Exists() || len(v.Nodes) != 0 {
		t.Errorf("left behind: %+v, %v", v, err)
	}
}
