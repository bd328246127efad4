package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.serves(-1)
	states := func(code int, args ...string) map[string]string {
		t.Helper()
		out := d.says(code, "", append([]string{"doctor", "--format", "json"}, args...)...)
		got := map[string]string{}
		rank := map[string]int{"ok": 1, "skipped": 2, "warn": 3, "fail": 4}
		for line := range strings.Lines(out) {
			var c struct {
				Name  string `json:"check"`
				State string `json:"state"`
			}
			if err := json.Unmarshal([]byte(line), &c); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if rank[c.State] > rank[got[c.Name]] {
				got[c.Name] = c.State
			}
		}
		return got
	}
	healthy := states(cli.ExitOK)
	for name, state := range map[string]string{ // etcd-endpoint warns of a slow answer, and clock-kernel speaks of this machine: "" is any state
		"etcd-endpoint": "", "etcd-cluster": "ok", "etcd-version": "ok", "etcd-leader": "ok", "etcd-space": "ok", "etcd-compaction": "",
		"etcd-role": "", "space": "ok", "era": "ok", "records": "ok", "ceilings": "ok", "quarantine": "ok", "node": "ok", "clock": "ok",
		"clock-kernel": "", "gossip": "ok",
	} {
		if got := healthy[name]; got == "" || state != "" && got != state {
			t.Errorf("%s is %q where all is well", name, got)
		}
	}
	other := startEtcd(t)
	for _, tc := range []struct {
		name string
		args []string
		fail string
	}{
		{"no space", []string{"--space", "nosuch"}, "space"},
		{"another layout", []string{"--layout", "fleet"}, "space"},
		{"a node that is away", []string{"--addr", "127.0.0.1:1"}, "node"},
	} {
		if got := states(cli.ExitInvalid, tc.args...); got[tc.fail] != "fail" {
			t.Errorf("%s: %s is %s", tc.name, tc.fail, got[tc.fail])
		}
	}
	var out bytes.Buffer
	code := run(t.Context(), []string{"doctor", "--etcd.endpoints", d.etcd.Endpoint() + "," + other.Endpoint()}, os.Stdin, &out, &out, nil)
	if code != cli.ExitInvalid || !strings.Contains(out.String(), "2 different clusters") {
		t.Errorf("two clusters: %d: %s", code, &out)
	}
	a.stop()
	if got := states(cli.ExitOK); got["nodes"] != "warn" || got["clock"] != "skipped" {
		t.Errorf("without nodes: %v", got)
	}
	d.etcd.Stop()
	if got := states(cli.ExitUnavailable); got["etcd"] != "fail" {
		t.Errorf("without etcd: %v", got)
	}
	if code := run(t.Context(), []string{"doctor"}, os.Stdin, &out, &out, nil); code != cli.ExitUsage {
		t.Errorf("without endpoints: %d", code)
	}
}
