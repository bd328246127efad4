package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
		"an HTTP port":            {"get --timeout 20s --addr " + addr, cli.ExitUnavailable, "Give the gRPC port of the node", "TLS"},
		"a port that is none":     {"get --addr 127.0.0.1:99999", cli.ExitUsage, "there is no port \"99999\"", "No node answers"},
		"an epoch to come":        {"init --epoch 2200-01-01T00:00:00Z --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "the epoch 2200-01-01T00:00:00Z is in the future", "does not answer"},
		"a layout that has ended": {"init --layout baidu --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "set a later epoch for a new space", "does not answer"},
		"above the clock":         {"init --layout twitter --above 9000000000000000000 --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "ahead of the clock, and at most 10m0s is waited for", "does not answer"},
		"above other bits":        {"init --layout js53 --above 1541815603606036480 --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "more than the 53 bits of layout js53", "does not answer"},
		"above no ID":             {"init --above 01KATESTX --etcd.endpoints http://127.0.0.1:1", cli.ExitUsage, "write it in decimal", "does not answer"},
		"no etcd":                 {"init --timeout 5s --etcd.endpoints http://127.0.0.1:1", cli.ExitUnavailable, "connection refused", "firewall"},
		"an etcd that is none":    {"init --timeout 5s --etcd.endpoints " + web.URL, cli.ExitUnavailable, "an HTTP/1.1 server answers", "firewall"},
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
