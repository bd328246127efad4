package broker

import (
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/flakelease/allocator/internal/clock"
)

const (
	// maxOwners bounds the clients that are remembered. Those above it share one place.
	maxOwners = 4096
	// forgetEvery bounds what clients in that place cost: forget reads all others once a second.
	forgetEvery = time.Second
)

// owners bounds what each client costs: its calls, and the leases of acquisitions whose
// outcome nobody knows. A lease of a worker lasts for window.
type owners struct {
	window time.Duration

	mu     sync.Mutex // It guards the fields below.
	of     map[string]*owner
	forgot clock.Mono // when forget looked last
}

// owner is what one client costs: calls at a rate, and acquisitions. So many are under way,
// and lost are the ends of those without an answer of the store: each may have left a lease.
type owner struct {
	calls *rate.Limiter
	under int
	lost  []clock.Mono
}

// get returns what a client costs. mu is held.
func (o *owners) get(c Client, now clock.Mono) *owner {
	w := o.of[c.Owner]
	if w == nil && len(o.of) >= maxOwners && now.Sub(o.forgot) >= forgetEvery {
		o.forget(now)
		o.forgot = now
	}
	if w == nil && len(o.of) >= maxOwners {
		c.Owner = "" // This is no client's name.
		w = o.of[""]
	}
	// Each worker that it may hold is extended three times in a window, and all of them may be acquired at once.
	limit, burst := 1+rate.Limit(6*float64(c.Quota)/o.window.Seconds()), 10+2*c.Quota
	if w == nil {
		w = &owner{calls: rate.NewLimiter(limit, burst)}
		o.of[c.Owner] = w
	}
	if w.calls.Burst() != burst { // The quota was changed.
		w.calls.SetLimitAt(at(now), limit)
		w.calls.SetBurstAt(at(now), burst)
	}
	w.lost = slices.DeleteFunc(w.lost, func(end clock.Mono) bool { return now.Sub(end) > o.window })
	return w
}

// forget drops clients that are no different from new ones.
func (o *owners) forget(now clock.Mono) {
	for name, w := range o.of {
		gone := !slices.ContainsFunc(w.lost, func(end clock.Mono) bool { return now.Sub(end) <= o.window })
		if w.under == 0 && gone && w.calls.TokensAt(at(now)) >= float64(w.calls.Burst()) {
			delete(o.of, name)
		}
	}
}

// at is a monotonic time for package rate, which uses differences alone.
func at(m clock.Mono) time.Time { return time.Unix(0, int64(m)) }

// take counts one call, and returns 0, or for how long the client has to wait.
func (o *owners) take(c Client, now clock.Mono) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.get(c, now)
	if w.calls.AllowN(at(now), 1) {
		return 0
	}
	missing := 1 - w.calls.TokensAt(at(now))
	return max(time.Duration(math.Ceil(missing/float64(w.calls.Limit())*1e9)), time.Millisecond)
}

// begin begins an acquisition, unless as many are unsettled as the client may have
// workers. It returns how many these are, and whom end is told about: the client may have
// another place by then.
func (o *owners) begin(c Client, now clock.Mono) (w *owner, unsettled int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w = o.get(c, now)
	unsettled = w.under + len(w.lost)
	if unsettled >= c.Quota {
		return nil, unsettled, false
	}
	w.under++
	return w, unsettled, true
}

// end ends one that began. lost says that its outcome is not known.
func (o *owners) end(w *owner, now clock.Mono, lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w.under--
	if lost {
		w.lost = append(w.lost, now)
	}
}
