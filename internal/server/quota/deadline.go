package quota

import (
	"os"
	"sync"
	"time"
)

// deadline is the deadline of one direction of a connection. Package net/http sets five of them for each request,
// nearly all later than the one before, and a timer for each took a twelfth of the processor time of a request. So a
// timer is set only for a call that is under way, and only if the socket's deadline is later than the wanted one. If it
// is earlier, the call ends too early: it is then made again, with the wanted deadline.
type deadline struct {
	mu    sync.Mutex
	want  time.Time // zero: none
	armed time.Time // the socket's; zero: none. It is not later than want during a call.
	calls int       // calls of the socket under way
}

// longAgo is later than the times that packages set as a deadline to end a call.
var longAgo = time.Unix(60, 0)

// earlier reports whether a deadline is earlier than another one. The zero time is later than all.
func earlier(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// set sets the deadline. arm sets that of the socket.
func (d *deadline) set(t time.Time, arm func(time.Time) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.want = t
	if d.calls == 0 {
		return nil
	}
	return d.arm(arm)
}

// arm arms the socket if its deadline is too late.
func (d *deadline) arm(arm func(time.Time) error) error {
	if !earlier(d.want, d.armed) {
		return nil
	}
	d.armed = d.want
	return arm(d.want)
}

// begin begins a call of the socket. end must follow, unless it returns an error.
func (d *deadline) begin(arm func(time.Time) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if earlier(d.want, longAgo) {
		return os.ErrDeadlineExceeded
	}
	if err := d.arm(arm); err != nil {
		return err
	}
	d.calls++
	return nil
}

// end ends a call that returned an error or nil. It reports whether the call ended at a
// deadline that was too early, so that it is to be made again.
func (d *deadline) end(err error, arm func(time.Time) error) (again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls--
	if err == nil || !os.IsTimeout(err) || !earlier(d.armed, d.want) {
		return false
	}
	d.armed = d.want
	return arm(d.want) == nil
}
