package dev

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/server/console"
)

// root is the program with the command dev alone.
func root(a *cli.App) *cobra.Command {
	root := &cobra.Command{Use: "allocator"}
	root.AddCommand(Command(a))
	return root
}

// startDev runs "allocator dev" with args on free ports, and returns the URL of its
// console.
func startDev(t *testing.T, args ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	out, in := io.Pipe()
	var stderr strings.Builder
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(ctx, append([]string{"dev", "--http-port", "0", "--grpc-port", "0", "--format", "json"}, args...), strings.NewReader(""), in, &stderr, nil, "", root)
		_ = in.Close()
	}()
	t.Cleanup(func() {
		stop()
		if code := <-ended; code != cli.ExitOK {
			t.Errorf("dev ended with %d: %s", code, &stderr)
		}
	})
	var line struct{ Console string }
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("dev printed nothing: %v", lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Console == "" {
		t.Fatalf("%s: %v", lines.Bytes(), err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return line.Console
}

// page is the console of a cluster.
type page struct {
	t   *testing.T
	url string
}

func (p page) press(action, target string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.url+"break", strings.NewReader(url.Values{"action": {action}, "target": {target}}.Encode()))
	fatal.If(p.t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	res, err := http.DefaultClient.Do(req)
	fatal.If(p.t, err)
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != 200 {
		p.t.Fatalf("%s %s: HTTP %d %s", action, target, res.StatusCode, text)
	}
}

// until waits for a state of the cluster, and fails for a duplicate.
func (p page) until(what string, ok func(console.Broken) bool) {
	p.t.Helper()
	wait.NoError(p.t, what, func() error {
		var b console.Broken
		fatal.If(p.t, p.get("break/state", &b))
		if b.Duplicates != 0 {
			p.t.Fatalf("%s: %d duplicates", what, b.Duplicates)
		}
		if !ok(b) {
			return fmt.Errorf("%+v", b)
		}
		p.t.Logf("%s: %d IDs", what, b.IDs)
		return nil
	})
}

func (p page) get(path string, to any) error {
	res, err := http.Get(p.url + path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(to)
}

// heldBackBy waits until the line about the watermark, which the page shows, names a node.
func (p page) heldBackBy(node string) {
	p.t.Helper()
	wait.NoError(p.t, node+" holds the watermark back", func() error {
		res, err := http.Get(p.url + "pool")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if !strings.Contains(string(body), " behind: node "+node+" (sid ") {
			return fmt.Errorf("%v, %s", err, body)
		}
		return nil
	})
}

// answers returns a condition: what each node answered last, in order.
func answers(want ...string) func(console.Broken) bool {
	return func(b console.Broken) bool {
		for i, n := range b.Nodes {
			if n.Answer != want[i] {
				return false
			}
		}
		return true
	}
}

// TestBreak presses every button. Whatever is broken, the others serve, no ID comes
// twice, and repairing heals.
func TestBreak(t *testing.T) {
	tier.Check(t, "each fault of the page, in a minute of real time")
	p := page{t, startDev(t)}
	p.until("all serve", answers("OK", "OK", "OK"))
	p.press("skew", "node-2")
	p.until("a wrong clock is found", answers("OK", "CLOCK_SKEW", "OK"))
	p.press("back", "node-3")
	p.press("repair", "node-2")
	p.until("a clock is set right, and one set back is not followed", answers("OK", "OK", "OK"))
	p.press("repair", "node-3")

	p.press("pause", "node-1")
	p.until("the page is served by another", answers("no answer", "OK", "OK"))
	if res, err := http.Get(p.url); err != nil || res.StatusCode != 200 {
		t.Errorf("the page of a paused node: %v", err)
	} else {
		_ = res.Body.Close()
	}
	p.heldBackBy("node-1")
	p.press("kill", "node-2")
	p.until("one paused and one killed", func(b console.Broken) bool {
		return b.Nodes[1].State == string(stopped) && answers("no answer", "no answer", "OK")(b)
	})
	p.press("repair", "node-1")
	p.press("repair", "node-2")
	p.until("a killed node starts again on its ports", answers("OK", "OK", "OK"))
	p.press("kill", "node-2")
	p.press("repair", "node-2")
	p.until("one repaired at once starts again when it has ended", func(b console.Broken) bool {
		return b.Nodes[1].State == string(running) && answers("OK", "OK", "OK")(b)
	})

	p.press("stop", "etcd")
	p.until("etcd is stopped", func(b console.Broken) bool { return b.Etcd == "stopped" && answers("OK", "OK", "OK")(b) })
	p.press("repair", "etcd")
	p.until("etcd runs", func(b console.Broken) bool { return b.Etcd == "running" })
	p.press("cut", "node-3")
	p.until("a node without etcd ends with its window", answers("OK", "OK", "WINDOW_EXHAUSTED"))
	p.press("repair", "node-3")
	p.until("it goes on", answers("OK", "OK", "OK"))
}

// silenced is a transport that notes its end.
type silenced struct {
	cluster.Transport
	ended bool
}

func (s *silenced) Shutdown() error { s.ended = true; return nil }

// TestKilledSaysNothing: before a killed node stops, it has lost its connections: no peer hears that it is draining.
func TestKilledSaysNothing(t *testing.T) {
	m, gossip := newMember(0, "node-1"), new(silenced)
	m.state, m.gossip = running, gossip
	m.kill = func() {
		if !gossip.ended || !m.link.cut {
			t.Errorf("it can still reach peers (%v) or etcd (%v)", !gossip.ended, !m.link.cut)
		}
	}
	if err := m.inject("kill"); err != nil || m.state != stopping {
		t.Errorf("%v, it is %s", err, m.state)
	}
}

var confirmKey = regexp.MustCompile(`name="confirm" value="([A-Z0-9]+)"`)

// TestOperate quarantines a sid, releases it, and drains a node, through the page.
func TestOperate(t *testing.T) {
	p := page{t, startDev(t)}
	p.until("all serve", answers("OK", "OK", "OK"))
	post := func(form url.Values) string {
		t.Helper()
		res, err := http.PostForm(p.url+"operate", form)
		fatal.If(t, err)
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return string(body)
	}
	confirm := func(form url.Values, want string) {
		t.Helper()
		shown := post(form)
		key := confirmKey.FindStringSubmatch(shown)
		if key == nil {
			t.Fatalf("%v shows no plan: %s", form, shown)
		}
		if done := post(url.Values{"confirm": {key[1]}}); !strings.Contains(done, want) {
			t.Fatalf("%v: %s", form, done)
		}
	}
	free := "31" // of 32: three are held, none of which is often this one
	if shown := post(url.Values{"action": {"quarantine"}, "sid": {free}}); confirmKey.FindString(shown) == "" {
		free = "30"
	}
	confirm(url.Values{"action": {"quarantine"}, "sid": {free}, "reason": {"for a test"}}, "quarantine sid "+free+": done.")
	if again := post(url.Values{"action": {"quarantine"}, "sid": {free}}); !strings.Contains(again, "quarantined already: the console of node-1 quarantined it: for a test") {
		t.Errorf("quarantined twice: %s", again)
	}
	confirm(url.Values{"action": {"release-sid"}, "sid": {free}}, "release sid "+free+": done.")
	confirm(url.Values{"action": {"drain"}}, "drain node-1: done.")
	p.until("node 1 is drained", answers("DRAINING", "OK", "OK"))
	confirm(url.Values{"action": {"undrain"}}, "undrain node-1: done.")
	p.until("node 1 serves", answers("OK", "OK", "OK"))
}
