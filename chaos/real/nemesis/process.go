package nemesis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/real/rig"
)

// restartSettle is how long a node may take from its start until it issues on an
// overloaded machine. On an idle one it is well under a second.
const restartSettle = 3500 * time.Millisecond

func processFaults() []Fault {
	gone := []string{connection, timeout, starting, noSID}
	return []Fault{
		{
			Name:   "kill",
			Smoke:  true,
			About:  "kill -9 a node, start it again at once",
			Hold:   between(100*time.Millisecond, 600*time.Millisecond),
			Begin:  kill,
			Fired:  killed,
			End:    restart,
			Expect: backWith(gone, restartSettle, "others issue; it issues again at once with another sid"),
		},
		{
			Name:   "kill-ttl",
			About:  "kill -9 a node, start it again after its lease expired",
			Hold:   after(leaseTTL, time.Second, 2*time.Second),
			Begin:  kill,
			Fired:  killed,
			End:    restart,
			Expect: backWith(gone, restartSettle, "others issue; it issues again at once"),
		},
		{
			Name:   "stop-brief",
			About:  "SIGSTOP a node for less than a second",
			Hold:   between(300*time.Millisecond, 900*time.Millisecond),
			Begin:  pause,
			Fired:  stopped,
			End:    resume,
			Expect: unaffected(2 * time.Second),
		},
		{
			Name:  "stop-ttl",
			Smoke: true,
			About: "SIGSTOP a node until its lease expired",
			Hold:  after(leaseTTL, time.Second, 1500*time.Millisecond),
			Begin: pause,
			Fired: stopped,
			End:   resume,
			Expect: backWith([]string{connection, timeout, noSID, exhausted, starting}, 3500*time.Millisecond,
				"late IDs are inside its own window; then a new tenure"),
		},
		{
			Name:  "stop-window",
			About: "SIGSTOP a node until its window has passed",
			Hold:  after(window, time.Second, 3*time.Second),
			Begin: pause,
			Fired: stopped,
			End:   resume,
			Expect: backWith([]string{connection, timeout, noSID, exhausted, starting}, 3500*time.Millisecond,
				"no ID under the old window; then a new tenure"),
		},
		{
			Name:  "rolling-restart",
			Scope: Whole,
			About: "SIGTERM and start every node, one after the other",
			Hold:  between(time.Second, time.Second),
			Begin: rollingRestart,
			Fired: seen,
			End:   restartAll,
			Expect: backWith([]string{connection, timeout, draining, starting, noSID}, restartSettle,
				"clients that fail over are always answered; every sid is released"),
		},
	}
}

// backWith expects that only the target is affected, and recovers soon.
func backWith(may []string, settle time.Duration, word string) func(rig.Timing) Expect {
	return func(rig.Timing) Expect { return Expect{May: may, Settle: settle, Text: word} }
}

func kill(_ context.Context, s *Injection) error { return s.Node.Kill() }

func killed(_ context.Context, s *Injection) (string, error) {
	exit := s.Node.Exit()
	if !strings.Contains(exit, "killed") {
		return "", errNotYet
	}
	return fmt.Sprintf("%s ended: %s", s.Node.RunName(), exit), nil
}

func restart(_ context.Context, s *Injection) error {
	if err := s.Node.Start(); err != nil && !errors.Is(err, rig.ErrRunning) {
		return err
	}
	return nil
}

func pause(_ context.Context, s *Injection) error { return s.Node.Pause() }

func stopped(_ context.Context, s *Injection) (string, error) {
	if state := s.Node.State(); state != "T" {
		return "", fmt.Errorf("%w: process state %q", errNotYet, state)
	}
	return "the kernel reports the process as stopped", nil
}

func resume(_ context.Context, s *Injection) error { return s.Node.Resume() }

func rollingRestart(ctx context.Context, s *Injection) error {
	for _, n := range s.Nodes {
		if err := n.Terminate(20 * time.Second); err != nil {
			return err
		}
		if exit := n.Exit(); exit != "exit status 0" {
			return fmt.Errorf("%s ended with %s", n.Name, exit)
		}
		if err := n.Start(); err != nil {
			return err
		}
		if err := rig.Until(ctx, 20*time.Second, n.Name+" issues again", n.Ready); err != nil {
			return err
		}
	}
	s.Seen = fmt.Sprintf("%d nodes ended with exit status 0 and issue again", len(s.Nodes))
	return nil
}

func restartAll(_ context.Context, s *Injection) error {
	var errs []error
	for _, n := range s.Nodes {
		if !n.Running() {
			errs = append(errs, n.Start())
		}
	}
	return errors.Join(errs...)
}
