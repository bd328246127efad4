package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// An error names its own cause, and what to do about that.
func TestErrorsNameTheirCause(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	addr := web.Listener.Addr().String()
	for name, c := range map[string]struct {
		args      string
		code      int
		want, not string
	}{
		"an HTTP port":            {"get --timeout 20s --addr " + addr, cli.ExitUnavailable, "allocator: An HTTP/1.1 server answers there. Give the gRPC port of the node", "TLS"},
		"a flag mistyped":         {"get --ass int", cli.ExitUsage, "unknown flag: --ass: did you mean --as?", "\x00"},
		"a setting mistyped":      {"serve --etcd.endpoint x", cli.ExitUsage, "did you mean --etcd.endpoints?", "\x00"},
		"no such flag":            {"events --quantity 1h", cli.ExitUsage, "unknown flag: --quantity", "did you mean"},
		"a form mistyped":         {"get --as flak", cli.ExitUsage, "did you mean flake?", "\x00"},
		"a layout mistyped":       {"dev --layout twiter", cli.ExitUsage, "did you mean twitter?", "\x00"},
		"an integer and a comma":  {"parse 95552449887521538,", cli.ExitInvalid, "bad_length: it has \",\" around the ID: leave that out", "name the kind"},
		"a fraction":              {"parse 95552449887521538.0", cli.ExitInvalid, "floating-point number", "name the kind"},
		"an exponent":             {"parse 9.55524E+16", cli.ExitInvalid, "export them as text", "name the kind"},
		"no ID":                   {"parse banana", cli.ExitInvalid, "6 bytes are no ID: a flake has 13", "name the kind"},
		"a socket without unix":   {"agent --addr 127.0.0.1:9000 --listen.resp /tmp/x.sock", cli.ExitUsage, "for a Unix socket write unix:/path", "everybody"},
		"no port":                 {"get --addr 127.0.0.1", cli.ExitUsage, "write 127.0.0.1:9000", "\x00"},
		"a URL":                   {"get --addr http://127.0.0.1:9000", cli.ExitUsage, "write 127.0.0.1:9000, without http://", "\x00"},
		"no PostgreSQL":           {"fence status --table t --database postgres://u@127.0.0.1:1/d", cli.ExitUnavailable, "allocator: no PostgreSQL answers: give --database", "\x00"},
		"a time without a unit":   {"get --timeout 5", cli.ExitUsage, "--timeout is \"5\", without a unit: write 5s for seconds", "missing unit"},
		"an argument missing":     {"admin quarantine", cli.ExitUsage, "SID is missing: write allocator admin quarantine SID", "received"},
		"an argument too many":    {"get 2 3", cli.ExitUsage, "\"3\" is one argument too many: write allocator get [N]", "received"},
		"an argument of none":     {"agent x", cli.ExitUsage, "\"x\" is one argument too many: write allocator agent\n", "unknown command"},
		"a count below 0":         {"get -3", cli.ExitUsage, "N is \"-3\": write a whole number, at least 1", "Write --"},
		"a count below 0, new":    {"new -1", cli.ExitUsage, "N is \"-1\": write a whole number, at least 1", "Write --"},
		"a time below 0":          {"from-time -1", cli.ExitUsage, "Write -- in front of a number below 0.", "\x00"},
		"no nodes":                {"dev --nodes 0", cli.ExitUsage, "--nodes is 0: it has to be at least 1, and at most 90", "\x00"},
		"more than is printed":    {"get 1000000000000", cli.ExitUsage, "give --yes to get them all", "\x00"},
		"nobody there":            {"get --addr 127.0.0.1:1", cli.ExitUnavailable, "allocator: no node answers at 127.0.0.1:1: is one running?", "transport"},
		"a port that is none":     {"get --addr 127.0.0.1:99999", cli.ExitUsage, "there is no port \"99999\"", "no node answers"},
		"an epoch to come":        {"init --epoch 2200-01-01T00:00:00Z --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "the epoch 2200-01-01T00:00:00Z is in the future", "does not answer"},
		"a layout that has ended": {"init --layout baidu --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "set a later epoch for a new space", "does not answer"},
		"above the clock":         {"init --layout twitter --above 9000000000000000000 --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "ahead of the clock, and at most 10m0s is waited for", "does not answer"},
		"above other bits":        {"init --layout js53 --above 1541815603606036480 --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "more than the 53 bits of layout js53", "does not answer"},
		"above no ID":             {"init --above 01KATESTX --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "write it in decimal", "does not answer"},
		"no etcd":                 {"init --timeout 10s --etcd.endpoints http://127.0.0.1:1", cli.ExitUnavailable, "connection refused", "firewall"},
		"an etcd that is none":    {"init --timeout 10s --etcd.endpoints " + web.URL, cli.ExitUnavailable, "an HTTP/1.1 server answers", "firewall"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := allocator(strings.Fields(c.args)...)
			if code != c.code || !strings.Contains(stderr, c.want) || strings.Contains(stderr, c.not) {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
}

// TestDeadEtcdIsNotWaitedFor: where no member of etcd has a leader, its status says so when each has had its time to
// answer, and not when --timeout has passed.
func TestDeadEtcdIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	began := time.Now()
	code, out, stderr := allocator("etcd", "status", "--timeout", "2m", "--etcd.endpoints", "http://127.0.0.1:1,http://"+silent.Addr().String())
	if code != cli.ExitUnavailable || !strings.Contains(out, "0 of 2 voting members answer") || !strings.Contains(stderr, "none of them has a leader") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// A command that changes the members waits for an election until --timeout.
func TestChangesWaitForALeader(t *testing.T) {
	t.Parallel()
	code, _, stderr := allocator("etcd", "remove", "127.0.0.1", "--timeout", "10s",
		"--etcd.endpoints", "http://127.0.0.1:1")
	if code != cli.ExitUnavailable || strings.Contains(stderr, "leader") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// A mistyped command is answered with those it may have meant.
func TestDidYouMean(t *testing.T) {
	for args, want := range map[string]string{
		"statsu":            "Did you mean status?",
		"admin drian":       "Did you mean drain?",
		"config pritn":      "Did you mean print?",
		"nothing-like-that": "",
	} {
		code, _, stderr := allocator(strings.Fields(args)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, "unknown command") || !strings.Contains(stderr, want) || want == "" && strings.Contains(stderr, "Did you mean") {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	_, want, _ := allocator("version")
	if code, out, stderr := allocator("--version"); code != cli.ExitOK || out != want || want == "" {
		t.Errorf("exit code %d: %s%s, want %s", code, out, stderr, want)
	}
}

// Help of init lists the settings that it uses; those of a node are taken, as from a
// file that both share.
func TestInitHelp(t *testing.T) {
	_, help, _ := allocator("init", "--help")
	for name, listed := range map[string]bool{
		"--etcd.endpoints": true, "--epoch": true, "--fresh": true, "--lease.window": true, "--listen.grpc": false, "--lease.ttl": false, "--limit.": false,
	} {
		if strings.Contains(help, name) != listed {
			t.Errorf("%s is listed: %v", name, !listed)
		}
	}
	code, _, stderr := allocator("init", "--listen.grpc", "127.0.0.1:9000")
	if code != cli.ExitUsage || !strings.Contains(stderr, "init needs etcd") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
