package keeper

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Lines returns a logger without times, and what it writes to.
func Lines() (*slog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	return slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), &out
}

// TestOutage: the second call in a row that fails begins an outage, whatever the calls, and the
// next answer ends it. That a lease is gone is an answer too.
func TestOutage(t *testing.T) {
	calls := []func(error) lease.Event{
		func(err error) lease.Event { return lease.Loaded{Err: err} },
		func(err error) lease.Event { return lease.Committed{Err: err} },
		func(err error) lease.Event { return lease.Registered{Err: err} },
		func(err error) lease.Event { return lease.KeptAlive{Err: err} },
	}
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		k := &Keeper{}
		k.status.Store(&published{})
		failed, since, last := 0, clock.Millis(0), clock.Millis(0)
		for now := range clock.Millis(100) {
			var ev lease.Event
			switch rnd.IntN(4) {
			case 0:
				ev = lease.Tick{}
			case 1:
				ev = calls[rnd.IntN(len(calls))]([]error{nil, lease.ErrLeaseGone}[rnd.IntN(2)])
				failed, last = 0, now
			default:
				ev = calls[rnd.IntN(len(calls))](errors.New("away"))
				if failed++; failed == 1 {
					since = now
				}
			}
			k.noteOutage(now, ev)
			if got, want := k.Stats().Outage, map[bool]Outage{true: {since, last, "away"}}[failed > 1]; got != want {
				t.Fatalf("seed %d, %T, %d failed: outage %v, want %v", seed, ev, failed, got, want)
			}
		}
	}
}

type applies struct{ Store }

func (applies) Commit(context.Context, lease.Txn) (bool, lease.View, error) {
	return true, lease.View{}, nil
}

// TestEndedHold: the log says what is known of a holder whose key was deleted. It may live, and refuse.
func TestEndedHold(t *testing.T) {
	log, out := Lines()
	k := &Keeper{cfg: Config{Logger: log, Store: applies{}, Clock: clocktest.NewManual(0)}, answers: make(chan lease.Event, 1)}
	txn := lease.Txn{Op: lease.Expire, SID: 2}
	txn.Seen.Holder.Value.Node, txn.Seen.Window.Value.Ceil = "n3", 5000
	k.call(t.Context(), lease.Commit{Txn: txn})
	k.calls.Wait()
	want := `level=WARN msg="ended the hold of a node whose window is long over, and whose lease lives on" sid=2 node=n3 ` +
		"window_ended=1970-01-01T00:00:05.000Z\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// TestStats: each call is counted once, in every bucket whose bound it does not exceed, and that a
// lease is gone is no error.
func TestStats(t *testing.T) {
	k := &Keeper{}
	k.status.Store(&published{})
	away := errors.New("away")
	for _, err := range []error{nil, away, lease.ErrLeaseGone, nil} {
		k.stats.observe(OpRead, 250*time.Millisecond, err)
	}
	k.stats.observe(OpRead, time.Hour, away)
	k.stats.observe(OpLoad, 100*time.Microsecond, nil)
	k.stats.wrote(Write{Took: 3, At: 20})
	k.stats.wrote(Write{Took: 9, At: 10}) // It began earlier, and was noted later.
	k.stats.alarm(lease.AlarmLost)
	k.stats.alarm(lease.AlarmLost)
	want := Stats{
		Calls: map[Op]CallStats{
			OpRead: {Calls: 5, Errors: 2, Seconds: 3601, Buckets: []uint64{0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4}},
			OpLoad: {Calls: 1, Seconds: .0001, Buckets: []uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		},
		Alarms: map[lease.AlarmKind]uint64{lease.AlarmLost: 2},
		Write:  Write{Took: 3, At: 20},
	}
	got := k.Stats()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	got.Calls[OpRead].Buckets[0] = 99 // It is a copy.
	if again := k.Stats(); !reflect.DeepEqual(again, want) {
		t.Errorf("after the copy was changed: %+v", again)
	}
}
