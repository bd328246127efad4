package worker_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/worker"
)

// TestTranscripts runs the scenarios in testdata: commands, each followed by the
// requests that the call sends to the store, in lower case, and its end, in upper case.
// Times are in ms since the scenario began.
//
// Commands: "acquire NAME [given] [clock D]", "extend NAME [told MS]" and "release NAME
// [used MS]" with the handle that NAME got last · "fault notapplied|lostreply|late KIND"
// for the next request of that kind, and "deliver" late ones · "pass D" · "expire NAME"
// its lease · "era D" begins one with a floor D from now · "quarantine SID" ·
// "draining" · "edit SID" its window.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		e := newEnv(t, 1)
		e.cfg.Random = func(int) int { return 0 }
		handles := map[string]worker.Handle{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.String()) {
				f := strings.Fields(line)
				if len(f) == 0 || f[0] == "#" {
					continue
				}
				req := request(t, f, handles, e)
				if req == nil {
					e.command(f, handles)
					continue
				}
				e.sent = nil
				end := e.call(req)
				if d, ok := end.(worker.Done); ok && d.Worker != (worker.Worker{}) {
					handles[f[1]] = d.Worker.Handle
				}
				out.WriteString(strings.Join(append(e.sent, show(end)), "\n") + "\n")
			}
			return out.String()
		})
	})
}

var outcomes = map[string]storetest.Outcome{
	"notapplied": storetest.NotApplied,
	"lostreply":  storetest.Applied,
	"late":       storetest.Delayed,
}

func request(t *testing.T, f []string, handles map[string]worker.Handle, e *env) worker.Request {
	option := func(name string) int64 {
		for i := range f[:len(f)-1] {
			if f[i] == name {
				n, err := strconv.ParseInt(f[i+1], 10, 64)
				fatal.If(t, err)
				return n
			}
		}
		return -1
	}
	time := func(name string) clock.Millis {
		if n := option(name); n >= 0 {
			return start + clock.Millis(n)
		}
		return 0
	}
	switch f[0] {
	case "acquire":
		a := acquire(f[1])
		for i, word := range f {
			a.Given = a.Given || word == "given"
			if word == "clock" {
				d, err := parse(f[i+1])
				fatal.If(t, err)
				a.Clock = e.clock.Now().Wall + d
			}
		}
		return a
	case "extend":
		return worker.Extend{Handle: handles[f[1]], NotAfter: time("told")}
	case "release":
		return worker.Release{Handle: handles[f[1]], UsedUntil: time("used")}
	}
	return nil
}

func parse(s string) (clock.Millis, error) {
	d, err := time.ParseDuration(s)
	return clock.MillisOf(d), err
}

func (e *env) command(f []string, handles map[string]worker.Handle) {
	e.t.Helper()
	ctx := e.t.Context()
	switch f[0] {
	case "fault":
		done := false
		e.faulty.SetScript(func(k storetest.Kind, _ int) storetest.Outcome {
			if done || string(k) != f[2] {
				return storetest.Pass
			}
			done = true
			return outcomes[f[1]]
		})
	case "deliver":
		e.faulty.Deliver()
	case "pass":
		d, err := time.ParseDuration(f[1])
		fatal.If(e.t, err)
		e.pass(d)
	case "expire":
		h := handles[f[1]]
		v, _ := e.mem.Read(ctx, h.SID)
		e.mem.Expire(v.SIDs[h.SID].Holder.Lease)
	case "era":
		d, err := parse(f[1])
		fatal.If(e.t, err)
		v, _ := e.mem.Load(ctx)
		e.mem.Put("era", lease.Encode(lease.Era{
			Number:  v.Era.Value.Number + 1,
			Floor:   e.clock.Now().Wall + d,
			Cluster: v.Cluster,
		}))
	case "quarantine":
		n, _ := strconv.Atoi(f[1])
		v, _ := e.mem.Load(ctx)
		author := repair.Author{Instance: "op", Nonce: "op", Now: e.clock.Now().Wall}
		w, err := repair.Quarantine(v, true, flake.SID(n), "a test", true, author)
		fatal.If(e.t, err)
		e.mem.Put("window/"+f[1], lease.Encode(w.Window))
		e.mem.Delete("holder/" + f[1])
	case "draining":
		e.closed = &node.Refusal{Reason: node.Draining, Message: "draining"}
	case "edit":
		e.mem.Put("window/"+f[1], "a1 00000000 {}")
	default:
		e.t.Fatalf("unknown command %q", f)
	}
}
