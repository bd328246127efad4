package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// serveAt serves env at an address; "": a free one. stop ends it at once.
func serveAt(t *testing.T, env *servertest.Env, at string) (addr string, stop func()) {
	t.Helper()
	if at == "" {
		at = loopback.Address()
	}
	l, err := net.Listen("tcp", at)
	fatal.If(t, err)
	s := env.GRPC.GRPC()
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String(), s.Stop
}

type eventJSON struct {
	ID, Node, Kind string
	SID            int
	Attributes     map[string]string
	Missed         *struct{ Count int }
}

func parseEvents(t *testing.T, out string) (list []eventJSON) {
	t.Helper()
	for line := range strings.Lines(out) {
		var e eventJSON
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

func TestEvents(t *testing.T) {
	env := servertest.New(t)
	addr, _ := serveAt(t, env, "")
	env.Observe()
	code, out, errs := allocator("events", "--addr", addr)
	if code != cli.ExitOK || errs != "" || !strings.Contains(out, "2026-02-01T00:00:00.000Z  node-a        sid_acquired        sid 7 was acquired\n") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
	code, out, _ = allocator("events", "--format", "json", "--after", "boot-1", "--addr", addr)
	got := parseEvents(t, out)
	if code != cli.ExitOK || len(got) != 2 || got[0].ID != "boot-2" || got[0].Kind != "sid_acquired" || got[0].SID != 7 || got[0].Attributes["term"] != "1" {
		t.Errorf("%d, %+v", code, got)
	}
	if _, out, errs := allocator("events", "--after", "other-1", "--addr", addr); !strings.HasPrefix(errs, "allocator: missed events: ") || strings.Count(out, "\n") != 3 {
		t.Errorf("after an ID of another process: %q, %q", out, errs)
	}
	if code, _, errs := allocator("events", "--new", "--addr", addr); code != cli.ExitUsage || !strings.Contains(errs, "give --follow too") {
		t.Errorf("%d, %q", code, errs)
	}
	if code, _, _ := allocator("events", "--addr", "127.0.0.1:1"); code != cli.ExitUnavailable {
		t.Errorf("no node: %d", code)
	}
	guarded, _, _ := servertest.NewGuarded(t, access.Config{})
	addr, _ = serveAt(t, guarded, "")
	if code, _, errs := allocator("events", "--follow", "--addr", addr); code != cli.ExitInvalid || !strings.Contains(errs, "no token") {
		t.Errorf("no token: %d, %q", code, errs)
	}
}

// A broken connection costs no event and repeats none.
func TestEventsGoOn(t *testing.T) {
	env := servertest.New(t)
	addr, stop := serveAt(t, env, "")
	env.Observe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs output.Text
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"events", "--follow", "--format", "json", "--addr", addr}, strings.NewReader(""), &out, &errs, nil)
	}()
	until := func(what string) {
		t.Helper()
		wait.Until(t, "it prints "+what, func() bool { return strings.Contains(out.String(), what) })
	}
	until("serving")
	stop()
	env.SetVerdict(clock.Skewed) // while nobody is connected
	env.Observe()
	refused := make(chan struct{})
	l, err := net.Listen("tcp", addr)
	fatal.If(t, err)
	go func() {
		defer close(refused)
		for range 3 { // Each call fails.
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	<-refused
	_ = l.Close()
	serveAt(t, env, addr)
	until("CLOCK_SKEW")
	env.SetVerdict(clock.Open)
	env.Observe()
	until(`"after":"CLOCK_SKEW"`)
	cancel()
	if code := <-ended; code != cli.ExitInterrupted || strings.Count(errs.String(), "broke: ") != 1 || strings.Count(errs.String(), "connected again, to the node at "+addr+"\n") != 1 {
		t.Errorf("%d, %q", code, errs.String())
	}
	var ids []string
	for _, e := range parseEvents(t, out.String()) {
		ids = append(ids, e.ID)
	}
	if want := []string{"boot-1", "boot-2", "boot-3", "boot-4", "boot-5"}; !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
}

// TestTopNeedsATerminal: what is drawn again each second is for people.
func TestTopNeedsATerminal(t *testing.T) {
	for args, want := range map[string]string{
		"top": "no terminal", "status --watch": "no terminal", "top --format json": "is for people",
	} {
		if code, _, errs := allocator(strings.Fields(args)...); code != cli.ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %q", args, code, errs)
		}
	}
}

// After every process has restarted, a node and its pages show what happened before.
func TestEventsSince(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	file := filepath.Join(t.TempDir(), "events.jsonl")
	kept := func(c *config.Config) { c.Events.File = file }
	first := d.node("a", kept)
	first.serves(-1)
	// Who did something past the nodes is shown by each of them once, and after a restart too.
	act := func(m *member, done string, args ...string) {
		t.Helper()
		if out, code := d.cli(append(args, "--reason", "why: "+done)...); code != cli.ExitOK {
			t.Fatalf("%d: %s", code, out)
		}
		want := regexp.MustCompile(`level=INFO msg="action of an operator" action="` + done + `" caller=.+@\S+ by=os-user from=etcd reason="why: ` + done + `"`)
		wait.Until(t, "the log says who did it: "+done, func() bool { return want.MatchString(m.Log.String()) })
	}
	act(first, "quarantine sid 20", "admin", "quarantine", "20")
	first.stop()
	second := d.node("a", kept)
	second.serves(-1)
	act(second, "release sid 20", "admin", "release-sid", "20", "--yes")
	act(second, "defragment the members", "etcd", "defragment", "--yes")
	reply, err := http.Get("http://" + second.Addresses().Admin + "/console/events")
	fatal.If(t, err)
	page, err := io.ReadAll(reply.Body)
	_ = reply.Body.Close()
	if got := strings.Count(string(page), `data-kind="started"`); err != nil || got != 2 {
		t.Errorf("%v, %d starts on the page: %s", err, got, page)
	}
	code, out, errs := allocator("events", "--since", "1h", "--addr", second.Addresses().GRPC)
	acts := regexp.MustCompile(`  operator_acted +[^:]+@[^:]+: (quarantine sid 20|release sid 20|defragment the members): why: `)
	if got := acts.FindAllString(out, -1); len(got) != 3 || strings.Count(out, "  operator_acted ") != 3 {
		t.Errorf("acts %q of:\n%s", got, out)
	}
	for kind, want := range map[string]int{"  started ": 2, "  sid_acquired ": 2, "  sid_released ": 1} {
		if got := strings.Count(out, kind); code != cli.ExitOK || got < want {
			t.Errorf("%d: %d events %q: %s", code, got, kind, out)
		}
	}
	if !strings.Contains(errs, "has no events before") {
		t.Errorf("stderr: %s", errs)
	}
	if code, out, errs := allocator("events", "--since", "1ns", "--addr", second.Addresses().GRPC); code != cli.ExitOK || out != "" {
		t.Errorf("%d: %s%s", code, out, errs)
	}
}
