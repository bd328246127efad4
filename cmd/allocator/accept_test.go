package main

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// A space was switched off for 70 days: nodes refuse to begin there until an operator
// accepts the time, with one of several commands that run at once.
func TestAcceptTime(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	if out := d.says(cli.ExitInvalid, "there is nothing to accept: no record shows a time", "admin", "accept-time"); out == "" {
		t.Error("silent")
	}
	then := deployment.WallNow() - clock.MillisOf(70*24*time.Hour)
	d.beginEra(then)
	d.put(windowKey(0), lease.Encode(lease.Window{Era: 1, Term: 3, Instance: "i", Node: "old", Nonce: "x", Base: then, Ceil: then, State: lease.Released, Wall: then}))
	a := d.node("a")
	a.awaitReason(node.Starting)
	d.await("a says what to do", func() bool {
		return strings.Contains(a.Node().Ready().Error(), `ahead of the latest record in etcd: correct it; if it is right, run "allocator admin accept-time"`)
	})

	d.says(cli.ExitOK, "  accepted time: is absent\nthen:\n  accepted time: a1 ", "admin", "accept-time", "--dry-run")
	if out := d.says(cli.ExitOK, `"writes":["accepted time: a1 `, "admin", "accept-time", "--dry-run", "--format", "json"); strings.Contains(out, "written") {
		t.Errorf("a dry run: %s", out)
	}
	d.says(cli.ExitUsage, "nobody can confirm", "admin", "accept-time")
	if got := a.reason(); got != node.Starting {
		t.Fatalf("a answers %q, and nothing was accepted", got)
	}
	var commands sync.WaitGroup
	var mu sync.Mutex // guards wrote
	wrote := 0
	for range 4 {
		commands.Go(func() {
			out, code := d.cli("admin", "accept-time", "--yes", "--format", "json")
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(out, `"written":true`) {
				wrote++
			} else if !strings.Contains(out, `"written":false`) && !(code == cli.ExitInvalid && strings.Contains(out, "accepted times up to ")) {
				t.Errorf("%d: %s", code, out)
			}
		})
	}
	commands.Wait()
	if wrote != 1 {
		t.Errorf("%d commands of 4 accepted a time, want one", wrote)
	}
	a.serves(-1)
	out := d.says(cli.ExitOK, `"written":false`, "admin", "accept-time", "--format", "json")
	var line struct {
		Era         int64
		UntilUnixMs int64 `json:"until_unix_ms"`
		By          string
	}
	if err := json.Unmarshal([]byte(strings.TrimSpace(out)), &line); err != nil || line.Era != 1 || !strings.Contains(line.By, "@") ||
		(clock.Millis(line.UntilUnixMs)-deployment.WallNow()).Duration() < 50*time.Minute {
		t.Errorf("%v: %s", err, out)
	}
	d.says(cli.ExitOK, "nothing was written: ", "admin", "accept-time")
	d.says(cli.ExitInvalid, `there is nothing to accept: node "a" with sid`, "admin", "accept-time", "--until", deployment.WallNow().Time().Add(61*time.Minute).Format(time.RFC3339), "--clock.step-limit", "2h")
	a.stop()
	d.unique()
}
