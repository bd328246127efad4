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
	now = now.Add(o.window + 1)
	o.begin(number(maxOwners+1), now)
	if o.of["c1"] != nil || o.of["c2"] != nil || o.of[number(maxOwners+1).Owner] == nil {
		t.Error("clients that cost nothing any more are remembered")
	}
}

// TestRate: a client may extend each of its workers six times in a window, and acquire all at once.
func TestRate(t *testing.T) {
	o := &owners{window: time.Minute, of: map[string]*owner{}}
	now := clock.Mono(time.Hour)
	calls := func(c Client) (n int) {
		for o.take(c, now) == 0 {
			n++
		}
		return n
	}
	c := Client{Owner: "shop", Quota: 20}
	if n := calls(c); n != 50 {
		t.Errorf("%d calls at once, want 50", n)
	}
	now = now.Add(10 * time.Second) // 1 + 6·20/60 = 3 a second
	if n := calls(c); n != 30 {
		t.Errorf("%d calls in 10 s, want 30", n)
	}
	if wait := o.take(c, now); wait <= 0 || wait > time.Second/3+time.Millisecond {
		t.Errorf("the next after %v", wait)
	}
}
