package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/chaos/real/clockhook"
	"github.com/flakelease/allocator/chaos/real/rig"
)

// windowLeft is how much of its window a node has at least when etcd becomes
// unreachable.
func windowLeft(t rig.Timing) time.Duration { return t.Window - t.ExtendEvery }

// election is how long an election of etcd may take on an overloaded machine.
func election(t rig.Timing) time.Duration { return 2*time.Second + t.Election }

// unled expects that every node issues throughout, and that etcd has a leader again
// after settle, or as much later as elections of the members may take longer.
func unled(settle time.Duration) func(rig.Timing) Expect {
	return func(t rig.Timing) Expect { return unaffected(settle + t.Election)(t) }
}

// windowExhausted expects that targets without etcd issue until their windows end, and again after it is back.
func windowExhausted(t rig.Timing, more time.Duration, what string) Expect {
	return Expect{
		Must:   exhausted,
		Within: t.Window + time.Second,
		May:    []string{exhausted, noSID, starting},
		Settle: 4*time.Second + more,
		Text:   "IDs to the last confirmed millisecond, then WINDOW_EXHAUSTED; recovers soon after" + what,
	}
}

func etcdFaults() []Fault {
	return []Fault{
		{
			Name:   "etcd-member-kill",
			Scope:  Member,
			About:  "kill -9 an etcd member that does not lead",
			Hold:   between(time.Second, 3*time.Second),
			Begin:  killMembers,
			Fired:  membersKilled,
			End:    startMembers,
			Expect: unled(2 * time.Second),
		},
		{
			Name:   "etcd-leader-kill",
			Scope:  Leader,
			Smoke:  true,
			About:  "kill -9 etcd's leader",
			Hold:   between(1500*time.Millisecond, 2*time.Second),
			Begin:  killMembers,
			Fired:  membersKilled,
			End:    startMembers,
			Expect: unled(1500 * time.Millisecond),
		},
		{
			Name:   "etcd-leader-pause",
			Scope:  Leader,
			About:  "SIGSTOP etcd's leader",
			Hold:   between(2*time.Second, 3*time.Second),
			Begin:  pauseMembers,
			Fired:  membersStopped,
			End:    resumeMembers,
			Expect: unled(2 * time.Second),
		},
		{
			Name:  "etcd-quorum-short",
			Scope: Quorum,
			About: "kill -9 two of three etcd members, for less than the windows last",
			Hold: func(t rig.Timing) (time.Duration, time.Duration) {
				d := windowLeft(t) - election(t)
				shortest := max(d/2, d-3*time.Second) // with the default times 20 s
				return shortest, max(d*3/4, shortest)
			},
			Begin:  killMembers,
			Fired:  membersKilled,
			End:    startMembers,
			Expect: unled(4 * time.Second),
		},
		{
			Name:   "etcd-quorum-long",
			Scope:  Quorum,
			Smoke:  true,
			About:  "kill -9 two of three etcd members, until every window is exhausted",
			Hold:   after(window, 2*time.Second, 3*time.Second),
			Begin:  killMembers,
			Fired:  membersKilled,
			End:    startMembers,
			Expect: func(t rig.Timing) Expect { return windowExhausted(t, t.Election, " etcd") },
		},
		{
			Name:  "etcd-disk-error",
			Scope: Leader,
			Needs: ClockHook,
			About: "every fsync of etcd's leader fails with EIO: it must exit, and is started again with a working " +
				"disk",
			Hold:   between(2*time.Second, 3*time.Second),
			Begin:  breakDisk,
			Fired:  diedOf(syscall.EIO),
			End:    mendDisk,
			Expect: unled(2 * time.Second),
		},
		{
			Name:  "etcd-disk-full",
			Scope: Leader,
			Needs: ClockHook,
			About: "every write of etcd's leader to a file fails with ENOSPC: it must exit, and is started again " +
				"with space on its disk",
			Hold:   between(2*time.Second, 3*time.Second),
			Begin:  fillDisk,
			Fired:  diedOf(syscall.ENOSPC),
			End:    mendDisk,
			Expect: unled(2 * time.Second),
		},
		{
			Name:   "etcd-slow-fsync",
			Scope:  Whole,
			Needs:  ClockHook,
			About:  "every fsync of every etcd member takes longer",
			Hold:   between(4*time.Second, 6*time.Second),
			Amount: func(r *rand.Rand) int64 { return int64(100+r.IntN(300)) * int64(time.Millisecond) },
			Unit:   "ns",
			Begin:  slowSync,
			Fired:  syncsSlowed,
			End:    quickSync,
			Expect: unled(3 * time.Second),
		},
	}
}

func each(s *Injection, do func(*rig.Process) error) error {
	var errs []error
	for _, i := range s.Members {
		errs = append(errs, do(s.Etcds[i]))
	}
	return errors.Join(errs...)
}

func killMembers(_ context.Context, s *Injection) error { return each(s, (*rig.Process).Kill) }

func membersKilled(_ context.Context, s *Injection) (string, error) {
	var seen []string
	for _, i := range s.Members {
		exit := s.Etcds[i].Exit()
		if !strings.Contains(exit, "killed") {
			return "", errNotYet
		}
		seen = append(seen, s.Etcds[i].Name+" ended: "+exit)
	}
	return strings.Join(seen, ", "), nil
}

func startMembers(_ context.Context, s *Injection) error {
	var errs []error
	for _, i := range s.Members {
		if !s.Etcds[i].Running() {
			errs = append(errs, s.StartMember(i))
		}
	}
	return errors.Join(errs...)
}

func pauseMembers(_ context.Context, s *Injection) error { return each(s, (*rig.Process).Pause) }

func resumeMembers(_ context.Context, s *Injection) error { return each(s, (*rig.Process).Resume) }

// membersStopped waits until the other members have elected a leader.
func membersStopped(ctx context.Context, s *Injection) (string, error) {
	for _, i := range s.Members {
		if s.Etcds[i].State() != "T" {
			return "", errNotYet
		}
	}
	leader := s.Op.Leader(ctx)
	if leader < 0 || leader == s.Members[0] {
		return "", errNotYet
	}
	return fmt.Sprintf("%s is stopped, and %s leads", s.Etcds[s.Members[0]].Name, s.Etcds[leader].Name), nil
}

func slowSync(_ context.Context, s *Injection) error {
	s.base = slowed(s)
	return syncsTake(s, s.amount())
}

// syncsTake makes the syncs of all members take longer.
func syncsTake(s *Injection, more time.Duration) error {
	var errs []error
	for _, p := range s.Etcds {
		if h := p.Hook(); h != nil {
			errs = append(errs, h.SlowSync(more))
		}
	}
	return errors.Join(errs...)
}

func slowed(s *Injection) (n uint64) {
	for _, p := range s.Etcds {
		if h := p.Hook(); h != nil {
			n += h.Counts().Slowed
		}
	}
	return n
}

func syncsSlowed(_ context.Context, s *Injection) (string, error) {
	n := slowed(s)
	if n <= s.base {
		return "", errNotYet
	}
	return fmt.Sprintf("%d syncs took %v longer", n-s.base, s.amount()), nil
}

// onDisks changes how the disks of the members work.
func onDisks(s *Injection, do func(*clockhook.Hook) error) error {
	return each(s, func(p *rig.Process) error {
		h := p.Hook()
		if h == nil {
			return errNoHook
		}
		return do(h)
	})
}

func breakDisk(_ context.Context, s *Injection) error {
	return onDisks(s, func(h *clockhook.Hook) error { return h.FailSync(syscall.EIO) })
}

func fillDisk(_ context.Context, s *Injection) error {
	return onDisks(s, func(h *clockhook.Hook) error { return h.FailWrite(syscall.ENOSPC) })
}

// diedOf waits until the members have ended, and checks that they logged the error of
// the disk.
func diedOf(errno syscall.Errno) func(context.Context, *Injection) (string, error) {
	return func(_ context.Context, s *Injection) (string, error) {
		var seen []string
		for _, i := range s.Members {
			p := s.Etcds[i]
			if p.Running() {
				return "", errNotYet
			}
			if !strings.Contains(p.Output(p.Run()), errno.Error()) {
				return "", fmt.Errorf("%s ended with %s, and did not log %q", p.Name, p.Exit(), errno)
			}
			seen = append(seen, fmt.Sprintf("%s ended with %s: %v", p.Name, p.Exit(), errno))
		}
		return strings.Join(seen, ", "), nil
	}
}

func mendDisk(ctx context.Context, s *Injection) error {
	err := each(s, func(p *rig.Process) error {
		if h := p.Hook(); h != nil {
			return errors.Join(h.FailSync(0), h.FailWrite(0))
		}
		return nil
	})
	return errors.Join(err, startMembers(ctx, s))
}

func quickSync(_ context.Context, s *Injection) error { return syncsTake(s, 0) }
