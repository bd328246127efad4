package worker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
)

const second = time.Second

// granted is the answer of a node whose clock shows now.
func granted(now, notAfter int64) *pb.Worker {
	return &pb.Worker{Id: "17-4", Worker: 17, Term: 4, Handle: "w1.17.4.secret", NotBeforeUnixMs: 1000, NotAfterUnixMs: notAfter,
		NowUnixMs: now, ExtendAtUnixMs: now + 20_000}
}

func refusal(r client.Reason) error { return fmt.Errorf("asked: %w", &client.Refusal{Reason: r}) }

func begin(t *testing.T) *keep {
	t.Helper()
	k, err := newKeep(granted(5000, 65_000), 0)
	fatal.If(t, err)
	return k
}

// expect has k begin a call at now.
func expect(t *testing.T, k *keep, now time.Duration) {
	t.Helper()
	if extend, again := k.next(now); !extend {
		t.Fatalf("at %v nothing is asked until %v", now, again)
	}
}

// until has k wait at now until again.
func until(t *testing.T, k *keep, now, again time.Duration) {
	t.Helper()
	if extend, got := k.next(now); extend || got != again {
		t.Fatalf("at %v: extend %v, again at %v, want %v", now, extend, got, again)
	}
}

func TestKeepExtends(t *testing.T) {
	k := begin(t)
	until(t, k, 0, 20*second)
	expect(t, k, 20*second)
	if err := k.answered(granted(25_000, 85_000), 20*second); err != nil || k.notAfter != 85_000 {
		t.Fatalf("not_after %d, %v", k.notAfter, err)
	}
	// Counted from the beginning of the call, on the node's clock.
	until(t, k, 23*second, 40*second)
	expect(t, k, 40*second)
	// A node that extended nothing, since it was early.
	fatal.If(t, k.answered(granted(45_000, 85_000), 40*second))
	// One that says to extend in the past does not make a loop of it.
	expect(t, k, 60*second)
	w := &pb.Worker{Id: k.id, Handle: k.handle, NotBeforeUnixMs: 1000, NotAfterUnixMs: 85_000, NowUnixMs: 9, ExtendAtUnixMs: 1}
	fatal.If(t, k.answered(w, 60*second))
	until(t, k, 60*second, 60*second+leastEvery)
}

func TestKeepRetries(t *testing.T) {
	k := begin(t)
	now, wait := 20*second, time.Duration(0)
	for range 12 {
		expect(t, k, now)
		k.failed(refusal(client.EtcdUnavailable), now, 0.5)
		_, again := k.next(now)
		if again-now < wait || again-now > lastRetry {
			t.Errorf("after %d failures it waits for %v, before for %v", k.fails, again-now, wait)
		}
		now, wait = again, again-now
	}
	if k.lost != nil || wait != 3*lastRetry/4 {
		t.Errorf("lost: %v, wait %v", k.lost, wait)
	}
	expect(t, k, now)
	if err := k.answered(granted(70_000, 130_000), now); err != nil || k.fails != 0 || k.refusal != nil {
		t.Errorf("%v, %+v", err, k)
	}
}

func TestKeepIsDemanded(t *testing.T) {
	k := begin(t)
	k.wanted()
	until(t, k, 0, demandEvery) // not at once: generators ask thousands of times a second
	expect(t, k, demandEvery)
	fatal.If(t, k.answered(granted(6000, 66_000), demandEvery))
	until(t, k, demandEvery, demandEvery+20*second)
	now := 90 * second
	for range 8 {
		expect(t, k, now)
		k.failed(errors.New("nobody there"), now, 1)
		now += lastRetry
	}
	now -= lastRetry
	k.wanted()
	until(t, k, now, now+lastRetry) // a demand does not undo the pause after failures
}

func TestKeepIsLost(t *testing.T) {
	for reason, lost := range map[client.Reason]bool{
		client.UnknownWorker: true, client.HistoryRewound: true,
		client.EtcdUnavailable: false, client.Starting: false, client.ClockSkew: false, client.Unauthenticated: false, client.PermissionDenied: false, client.Draining: false,
	} {
		k := begin(t)
		expect(t, k, 20*second)
		k.failed(refusal(reason), 21*second, 0)
		if (k.lost != nil) != lost || lost && !errors.Is(k.lost, &client.Refusal{Reason: reason}) {
			t.Errorf("after %s: lost: %v", reason, k.lost)
		}
	}
}

func TestKeepRefusesWrongAnswers(t *testing.T) {
	for what, change := range map[string]func(*pb.Worker){
		"another number": func(w *pb.Worker) { w.Id = "18-4" },
		"another handle": func(w *pb.Worker) { w.Handle = "w1.17.4.other" },
		"another begin":  func(w *pb.Worker) { w.NotBeforeUnixMs++ },
		"an earlier end": func(w *pb.Worker) { w.NotAfterUnixMs = 64_999 },
	} {
		k := begin(t)
		expect(t, k, 20*second)
		answer := granted(25_000, 85_000)
		change(answer)
		if err := k.answered(answer, 20*second); !errors.Is(err, ErrContract) || k.notAfter != 65_000 {
			t.Errorf("%s: %v, not_after %d", what, err, k.notAfter)
		}
	}
	for what, w := range map[string]*pb.Worker{
		"nothing": {}, "no handle": {Id: "1-1", NotBeforeUnixMs: 1, NotAfterUnixMs: 2}, "a wrong interval": {Id: "1-1", Handle: "h", NotBeforeUnixMs: 2, NotAfterUnixMs: 1},
		"no begin": {Id: "1-1", Handle: "h", NotAfterUnixMs: 2},
	} {
		if _, err := newKeep(w, 0); !errors.Is(err, ErrContract) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A clock that was refused may be right if the call was on its way for as long.
func TestWasSlow(t *testing.T) {
	for _, tc := range []struct {
		offset string
		took   time.Duration
		want   bool
	}{
		{"-513", 300 * time.Millisecond, true},
		{"-513", 200 * time.Millisecond, false},
		{"513", 300 * time.Millisecond, false}, // ahead: no way makes a time later
		{"-3600000", 300 * time.Millisecond, false},
		{"", time.Hour, false},
	} {
		err := fmt.Errorf("asked: %w", &client.Refusal{Reason: client.CallerClock, Metadata: map[string]string{"offset_ms": tc.offset, "limit_ms": "250"}})
		if got := wasSlow(err, tc.took); got != tc.want {
			t.Errorf("offset %s after %v: %v", tc.offset, tc.took, got)
		}
	}
	if wasSlow(refusal(client.NoWorker), time.Hour) || wasSlow(errors.New("away"), time.Hour) {
		t.Error("another error is taken for one about clocks")
	}
}
