package session

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

func show(a lease.Action) string {
	switch a := a.(type) {
	case nil:
		return "-"
	case lease.Register:
		return fmt.Sprintf("register on %d", a.Lease)
	case lease.KeepAlive:
		return fmt.Sprintf("renew %d", a.Lease)
	case lease.Revoke:
		return fmt.Sprintf("revoke %d", a.Lease)
	}
	return fmt.Sprintf("%T", a)
}

// TestSession goes through every transition of the package comment. Each line is what
// happens at a second, and the request that is sent then.
func TestSession(t *testing.T) {
	lost := errors.New("timed out")
	for name, lines := range map[string]string{
		"granted and renewed": `
			0 unknown space: -
			0 tick: -
			1 tick: register on 0
			1 tick: -
			1 granted 7: -
			3 tick: -
			4 tick: renew 7
			5 renewed: -
			6 tick: -
			7 tick: renew 7`,
		"the space is found meanwhile": `
			0 unknown space: -
			0 hurry: -
			0 tick: register on 0`,
		"taking fails, ever more slowly": `
			0 tick: register on 0
			0 failed: -
			1 tick: register on 0
			1 failed: -
			2 tick: -
			3 tick: register on 0
			3 failed: -
			6 tick: -
			7 tick: register on 0`,
		"a holder retries sooner": `
			0 tick: register on 0
			0 failed, and holds: -
			1 tick: register on 0
			1 failed, and holds: -
			2 tick: register on 0`,
		"a renewal fails": `
			0 tick: register on 0
			0 granted 7: -
			3 tick: renew 7
			4 renewal failed: -
			5 tick: renew 7`,
		"gone": `
			0 tick: register on 0
			0 granted 7: -
			3 tick: renew 7
			4 renewal gone: -
			4 tick: register on 0
			4 granted 8: -
			7 tick: renew 8`,
		"a write shows it gone while it is renewed": `
			0 tick: register on 0
			0 granted 7: -
			3 tick: renew 7
			3 gone: -
			3 tick: -
			4 renewal gone: -
			4 tick: register on 0`,
		"the registration is deleted": `
			0 tick: register on 0
			0 granted 7: -
			1 missing from a list of 0: -
			1 tick: -
			1 missing from a list of 7: -
			1 tick: register on 7
			1 granted 7: -
			1 tick: renew 7`,
		"gone when it is put back": `
			0 tick: register on 0
			0 granted 7: -
			1 missing from a list of 7: -
			1 tick: register on 7
			1 gone when registered: -
			1 tick: register on 0`,
		"the end": `
			0 tick: register on 0
			0 end: -
			0 granted 7: -
			0 end: revoke 7
			0 end: -
			0 revoked: -
			0 end: done`,
	} {
		t.Run(name, func(t *testing.T) {
			s := New(lease.Config{
				TTL: 10 * time.Second, KeepAliveEvery: 3 * time.Second, RetryAfter: time.Second,
				Jitter: func(time.Duration) time.Duration { return 0 },
			})
			for line := range strings.Lines(strings.TrimSpace(lines)) {
				before, want, _ := strings.Cut(strings.TrimSpace(line), ": ")
				second, what, _ := strings.Cut(before, " ")
				d, err := time.ParseDuration(second + "s")
				if err != nil {
					t.Fatal(err)
				}
				now := clock.Mono(d)
				var on lease.LeaseID
				_, _ = fmt.Sscanf(what, "granted %d", &on)
				_, _ = fmt.Sscanf(what, "missing from a list of %d", &on)
				answer := func(ev lease.Event) { err = s.Answered(now, ev, what == "failed, and holds") }
				got := "-"
				switch what, _, _ := strings.Cut(what, " "+fmt.Sprint(on)); what {
				case "tick":
					got = show(s.Next(now, true))
				case "unknown space":
					got = show(s.Next(now, false))
				case "hurry":
					s.Hurry(now)
				case "granted":
					answer(lease.Registered{Lease: on})
				case "failed", "failed, and holds":
					if answer(lease.Registered{Err: lost}); !errors.Is(err, lost) {
						t.Errorf("%s: %v", line, err)
					}
				case "gone when registered":
					answer(lease.Registered{Err: lease.ErrLeaseGone})
				case "renewed":
					answer(lease.KeptAlive{})
				case "renewal failed":
					answer(lease.KeptAlive{Err: lost})
				case "renewal gone":
					answer(lease.KeptAlive{Err: lease.ErrLeaseGone})
				case "gone":
					s.Gone(now)
				case "missing from a list of":
					s.Listed(now, on, true)
				case "revoked":
					answer(lease.Revoked{Err: lost})
				case "end":
					a, done := s.End()
					if got = show(a); done {
						got = "done"
					}
				default:
					t.Fatalf("what is %q?", what)
				}
				if got != want {
					t.Errorf("%s: got %q", line, got)
				}
				if gone := strings.Contains(what, "gone"); errors.Is(err, lease.ErrLeaseGone) != (gone && what != "gone") || gone && s.ID() != 0 {
					t.Errorf("%s: %v on lease %d", line, err, s.ID())
				}
				if strings.HasPrefix(what, "renewed") && s.Until() != clock.Mono(14*time.Second) {
					t.Errorf("%s: the lease ends at %d, and it was asked for at 4 s for 10 s", line, s.Until())
				}
			}
		})
	}
}
