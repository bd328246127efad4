package lease

import "time"

const (
	// SlowRetry is the pause before a retry where an operator has to act first, and
	// the longest before a holder registers again: its window is used up meanwhile.
	SlowRetry = time.Second
	// SlowestRetry is the longest pause before a list, or before a node without a sid
	// registers.
	SlowestRetry = 8 * time.Second
)

// Retries counts the failures in a row of one kind of request. The zero value has none.
type Retries struct{ failed int }

// Pause counts one more failure and returns how long to wait after it: about first
// after the first one, then twice as long each time, up to most. Many nodes fail at one
// moment; if all of them asked again at a constant rate, an etcd that is too slow for
// them would stay so.
func (r *Retries) Pause(first, most time.Duration, jitter func(time.Duration) time.Duration) time.Duration {
	d := min(first<<r.failed, most)
	if d < most {
		r.failed++
	}
	return d + jitter(d/2)
}
