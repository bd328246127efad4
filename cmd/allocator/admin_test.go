package main

import (
	"fmt"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

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
