package daemon_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
)

// TestRESP: a node with a RESP listener serves them, counts them, turns
// away those above the limit, and ends their connections when it stops.
func TestRESP(t *testing.T) {
	t.Parallel()
	c := daemontest.Settings(t, "a", shared)
	c.Listen.RESP, c.Limit.Connections = "127.0.0.1:0", 2
	daemontest.Init(t, c)
	r := start(t, c)
	r.untilReady(t)
	dial := func() (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", r.Addresses().RESP)
		fatal.If(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(wait.Most))
		return conn, bufio.NewReader(conn)
	}
	conn, in := dial()
	var last flake.ID
	for range 3 {
		if _, err := io.WriteString(conn, "ID.NEXT\r\n"); err != nil {
			t.Fatal(err)
		}
		head, err1 := in.ReadString('\n')
		text, err2 := in.ReadString('\n')
		id, err3 := flake.Parse(strings.TrimSuffix(text, "\r\n"))
		if err := errors.Join(err1, err2, err3); err != nil || head != "$13\r\n" || id <= last {
			t.Fatalf("%q %q after %v: %v", head, text, last, err)
		}
		last = id
	}
	second, secondIn := dial()
	if _, err := io.WriteString(second, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := secondIn.ReadString('\n'); line != "+PONG\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := io.WriteString(second, "AUTH wrong\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := secondIn.ReadString('\n'); line != "+OK\r\n" || !strings.Contains(r.Log.String(), `callers="all, whatever token they send"`) {
		t.Errorf("a token that nobody asked for: %q, %v", line, err)
	}
	if _, third := dial(); true {
		if line, err := third.ReadString('\n'); line != "-ERR max number of clients reached\r\n" {
			t.Errorf("one too many: %q, %v", line, err)
		}
	}
	_, m := get(t, "http://"+r.Addresses().Admin+"/metrics")
	for _, want := range []string{
		"allocator_requests_total{code=\"OK\",surface=\"resp_ids\"} 3\n",
		"allocator_request_duration_seconds_count{surface=\"resp_ids\"} 3\n",
		"allocator_connections{listener=\"resp\"} 2\n",
		"allocator_connections_refused_total{listener=\"resp\"} 1\n",
	} {
		if !strings.Contains(m, want) {
			t.Errorf("metrics: no %q", want)
		}
	}
	fatal.If(t, r.Stop())
	if b, err := io.ReadAll(in); err != nil || len(b) > 0 {
		t.Errorf("after the node has stopped: %q, %v", b, err)
	}
}
