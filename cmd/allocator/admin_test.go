package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
)

// A space was switched off for 70 days: nodes refuse to begin there until an operator
// accepts the time.
func TestAcceptTime(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.says(cli.ExitInvalid, "there is nothing to accept: the floor of the era recorded", "admin", "accept-time")
	then := deployment.WallNow() - clock.MillisOf(70*24*time.Hour)
	const era = "/allocator/default/era"
	r, err := d.keys().Get(t.Context(), era)
	if err != nil || len(r.Kvs) != 1 {
		t.Fatal(r, err)
	}
	e, err := lease.Decode[lease.Era](string(r.Kvs[0].Value))
	if err != nil {
		t.Fatal(err)
	}
	e.Floor = then
	d.put(era, lease.Encode(e))
	d.put(windowKey(0), lease.Encode(lease.Window{Era: 1, Term: 3, Instance: "i", Node: "old", Nonce: "x", Base: then, Ceil: then, State: lease.Released, Wall: then}))
	a := d.node("a")
	a.awaitReason(node.Starting)
	wait.Until(t, "a says what to do", func() bool {
		return strings.Contains(a.Node().Ready().Error(), `ahead of the latest record in etcd: correct it; if it is right, run "allocator admin accept-time"`)
	})
	d.says(cli.ExitOK, "  accepted time: is absent\nthen:\n  accepted time: a1 ", "admin", "accept-time", "--dry-run")
	if got := a.reason(); got != node.Starting {
		t.Fatalf("a answers %q, and nothing was accepted", got)
	}
	d.says(cli.ExitOK, `"written":true`, "admin", "accept-time", "--yes", "--format", "json")
	a.serves(-1)
	out := d.says(cli.ExitOK, `"written":false`, "admin", "accept-time", "--format", "json")
	var line struct {
		Era int64
		By  string
	}
	if err := json.Unmarshal([]byte(strings.TrimSpace(out)), &line); err != nil || line.Era != 1 || !strings.Contains(line.By, "@") {
		t.Errorf("%v: %s", err, out)
	}
	a.stop()
	d.unique()
}

// A bad clock has set a ceiling ten years ahead.
//
// Incident T21 (a clock of the future), docs/INCIDENTS.md.
func TestReleaseOfAPoisonedRecord(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	a := d.node("a")
	a.serves(-1)
	sid := a.sid()
	a.stop()
	w := d.record(sid).Value
	above := w.Ceil
	w.Ceil += 10 * 365 * 24 * 3600 * 1000
	w.Nonce = "poison"
	d.put(windowKey(sid), lease.Encode(w))
	b := d.node("a")
	b.serves(-1)
	if b.sid() == sid {
		t.Error("a poisoned sid was taken")
	}
	d.says(cli.ExitInvalid, "fail     ceilings", "doctor")
	d.says(cli.ExitInvalid, "--above TIME", "admin", "release-sid", fmt.Sprint(sid), "--yes")
	// Nor does a recovery follow it into the future.
	d.says(cli.ExitInvalid, "ceilings are far in the future", "admin", "recover", "--yes")
	d.says(cli.ExitOK, "is free", "admin", "release-sid", fmt.Sprint(sid), "--yes", "--above", repair.At(above))
	if got := d.record(sid).Value; got.Ceil != above || got.Term != w.Term+1 {
		t.Errorf("got %+v, want ceiling %d", got, above)
	}
	c := d.node("c", func(c *config.Config) { c.SIDRange = lease.SIDRange{From: flake.SID(sid), To: flake.SID(sid) + 1} })
	c.serves(sid)
	b.stop()
	c.stop()
	d.unique()
}
