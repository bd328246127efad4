package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.serves(-1)
	// finds waits until doctor ends with the code and has these states, the worst of each check; "" is any. A node
	// or an etcd that is slow on a busy machine may not answer it at first.
	finds := func(code int, want map[string]string, args ...string) {
		t.Helper()
		args = append([]string{"doctor", "--format", "json"}, args...)
		wait.NoError(t, strings.Join(args, " "), func() error {
			out, got := d.cli(args...)
			states := map[string]string{}
			rank := map[string]int{"ok": 1, "skipped": 2, "warn": 3, "fail": 4}
			for line := range strings.Lines(out) {
				var c struct {
					Name  string `json:"check"`
					State string `json:"state"`
				}
				if err := json.Unmarshal([]byte(line), &c); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				if rank[c.State] > rank[states[c.Name]] {
					states[c.Name] = c.State
				}
			}
			for name, state := range want {
				if is := states[name]; is == "" || state != "" && is != state {
					return fmt.Errorf("%s is %q, want %q:\n%s", name, is, state, out)
				}
			}
			if got != code {
				return fmt.Errorf("exit code %d, want %d:\n%s", got, code, out)
			}
			return nil
		})
	}
	finds(cli.ExitOK, map[string]string{
		"etcd-endpoint": "", "etcd-cluster": "ok", "etcd-version": "ok", "etcd-leader": "ok", "etcd-space": "ok", "etcd-compaction": "",
		"etcd-role": "", "space": "ok", "era": "ok", "records": "ok", "ceilings": "ok", "quarantine": "ok", "node": "ok", "clock": "ok",
		"clock-kernel": "", "gossip": "ok",
	})
	finds(cli.ExitInvalid, map[string]string{"space": "fail"}, "--space", "nosuch")
	finds(cli.ExitInvalid, map[string]string{"space": "fail"}, "--layout", "fleet")
	finds(cli.ExitInvalid, map[string]string{"node": "fail"}, "--addr", "127.0.0.1:1")
	two := d.etcd.Endpoint() + "," + startEtcd(t).Endpoint()
	wait.NoError(t, "two clusters are found", func() error {
		if code, out, errs := allocator("doctor", "--etcd.endpoints", two); code != cli.ExitInvalid || !strings.Contains(out, "2 different clusters") {
			return fmt.Errorf("exit code %d: %s%s", code, out, errs)
		}
		return nil
	})
	a.stop()
	finds(cli.ExitOK, map[string]string{"nodes": "warn", "clock": "skipped"})
	d.etcd.Stop()
	finds(cli.ExitUnavailable, map[string]string{"etcd": "fail"})
	if code, _, _ := allocator("doctor"); code != cli.ExitUsage {
		t.Errorf("without endpoints: %d", code)
	}
}
