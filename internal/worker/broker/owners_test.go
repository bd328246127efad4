package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

func number(i int) Client { return Client{Owner: fmt.Sprint("c", i), Quota: 3} }

// full returns owners with as many clients as are remembered, each with an acquisition.
func full(t *testing.T, now clock.Mono) (*owners, []*owner) {
	o := &owners{window: time.Minute, of: map[string]*owner{}}
	var begun []*owner
	for i := range maxOwners {
		w, _, ok := o.begin(number(i), now)
		if !ok {
			t.Fatal(i)
		}
		begun = append(begun, w)
	}
	return o, begun
}

// TestSharedPlace: an acquisition that began in the place that clients share above a bound ends
// there, although its client has a place of its own by then.
func TestSharedPlace(t *testing.T) {
	now := clock.Mono(time.Hour)
	o, begun := full(t, now)
	w, _, _ := o.begin(number(maxOwners), now)
	if len(o.of) != maxOwners+1 || o.of[""] != w {
		t.Fatalf("%d places, the shared one is %p, not %p", len(o.of), o.of[""], w)
	}
	o.end(begun[0], now, false)
	o.end(begun[1], now, false) // The shared place counts as one.
	if o.begin(number(maxOwners+1), now); len(o.of) != maxOwners+1 {
		t.Error("two of its calls look at all clients within a second")
	}
	o.end(w, now, false)
	now = now.Add(forgetEvery)
	again, _, _ := o.begin(number(maxOwners), now)
	if own := o.of[number(maxOwners).Owner]; own == nil || own != again || o.of["c0"] != nil {
		t.Errorf("a client that costs nothing more was not forgotten for another one")
	}
	o.end(w, now, false)
	if shared := o.of[""]; shared != nil && shared.under != 0 || again.under != 1 {
		t.Errorf("the shared place has %+v, and the client's own %+v", shared, again)
	}
}

// TestForget: a client is remembered as long as an acquisition of it may have left a lease, and
// until it has its calls back.
func TestForget(t *testing.T) {
	now := clock.Mono(time.Hour)
	o, begun := full(t, now)
	o.end(begun[1], now, true) // its outcome is not known
	o.end(begun[2], now, false)
	for o.take(number(2), now) == 0 {
	}
	o.begin(number(maxOwners), now)
	if o.of["c1"] == nil || o.of["c2"] == nil || o.of[number(maxOwners).Owner] != nil {
		t.Error("a client that still costs something was forgotten")
	}
	now = now.Add(o.window)
	if o.begin(number(maxOwners), now); o.of["c1"] == nil {
		t.Error("one whose acquisition may still have a lease was forgotten")
	}
	now = now.Add(forgetEvery)
	o.begin(number(maxOwners+1), now)
	if o.of["c1"] != nil || o.of["c2"] != nil || o.of[number(maxOwners+1).Owner] == nil {
		t.Error("clients that cost nothing any more are remembered")
	}
}

// TestPlacesOfClients: as soon as one client costs nothing, another has its place, and all without one
// have one together.
func TestPlacesOfClients(t *testing.T) {
	now := clock.Mono(time.Hour)
	o, _ := full(t, now)
	first, _, _ := o.begin(number(maxOwners), now)
	second, unsettled, _ := o.begin(number(maxOwners+1), now)
	if first == nil || first != second || unsettled != 1 {
		t.Errorf("two clients without a place have %p and %p", first, second)
	}
	o, begun := full(t, now)
	o.end(begun[0], now, false)
	if w, _, _ := o.begin(number(maxOwners), now); w != o.of[number(maxOwners).Owner] || o.of[""] != nil {
		t.Error("a client without a place did not get one that nobody needs")
	}
}

// TestUnsettled: a client has at most as many acquisitions without an outcome as it may hold workers;
// what may have left a lease counts for as long as that lasts.
func TestUnsettled(t *testing.T) {
	o := &owners{window: time.Minute, of: map[string]*owner{}}
	now := clock.Mono(time.Hour)
	c := Client{Owner: "shop", Quota: 3}
	for n := range 3 {
		w, unsettled, ok := o.begin(c, now)
		if !ok || unsettled != n {
			t.Fatalf("acquisition %d: %v, %d unsettled", n, ok, unsettled)
		}
		if n > 0 {
			o.end(w, now, true)
		}
	}
	for _, after := range []time.Duration{0, o.window, o.window + 1} {
		want := 3
		if after > o.window {
			want = 1
		}
		if _, unsettled, ok := o.begin(c, now.Add(after)); ok != (after > o.window) || unsettled != want {
			t.Errorf("after %v: %v, %d unsettled", after, ok, unsettled)
		}
	}
}

// TestNewQuota: a client's rate follows its quota.
func TestNewQuota(t *testing.T) {
	o := &owners{window: time.Minute, of: map[string]*owner{}}
	now := clock.Mono(time.Hour)
	for _, tc := range []struct{ quota, burst, inASecond int }{{20, 50, 3}, {40, 90, 5}, {5, 20, 1}, {20, 50, 3}} {
		c, n := Client{Owner: "shop", Quota: tc.quota}, 0
		o.take(c, now) // It tells of the quota.
		now = now.Add(10 * time.Minute)
		for o.take(c, now) == 0 {
			n++
		}
		now = now.Add(time.Second)
		for o.take(c, now) == 0 {
			tc.inASecond--
		}
		if n != tc.burst || tc.inASecond != 0 {
			t.Errorf("%+v: %d calls at once", tc, n)
		}
	}
}

// TestWait: a client that waits for as long as it is told is served then, and not before.
func TestWait(t *testing.T) {
	o := &owners{window: time.Minute, of: map[string]*owner{}}
	c := Client{Owner: "shop", Quota: 20}
	for after := range 10 {
		now := clock.Mono(time.Hour).Add(time.Duration(after) * time.Hour)
		for o.take(c, now) == 0 {
		}
		now = now.Add(time.Duration(after) * 30 * time.Millisecond)
		wait := o.take(c, now)
		if early := o.take(c, now.Add(wait-2*time.Millisecond)); early == 0 || early > 3*time.Millisecond {
			t.Errorf("2 ms before the end of a wait of %v: %v", wait, early)
		}
		if late := o.take(c, now.Add(wait)); late != 0 {
			t.Errorf("at the end of a wait of %v: %v", wait, late)
		}
	}
}
