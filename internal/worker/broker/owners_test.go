package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// TestSharedPlace: an acquisition that began in the place that clients share above a bound ends
// there, although its client has a place of its own by then.
func TestSharedPlace(t *testing.T) {
	o := owners{window: time.Minute, of: map[string]*owner{}}
	many := func(i int) Client { return Client{Owner: fmt.Sprint("c", i), Quota: 3} }
	var begun []*owner
	now := clock.Mono(time.Hour)
	for i := range maxOwners {
		w, _, ok := o.begin(many(i), now)
		if !ok {
			t.Fatal(i)
		}
		begun = append(begun, w)
	}
	late := many(maxOwners)
	for range 5 { // Each would leave one behind; the place would be full after three.
		w, _, ok := o.begin(late, now)
		if !ok {
			t.Fatal("the shared place is full")
		}
		o.end(begun[0], now, false)
		o.end(w, now, false)
		begun[0], _, _ = o.begin(many(0), now)
	}
	if shared := o.of[""]; shared == nil || shared.under != 0 {
		t.Errorf("the shared place has %+v", shared)
	}
}
