package nemesis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/load"
	"github.com/flakelease/allocator/chaos/real/clockhook"
	"github.com/flakelease/allocator/chaos/real/record"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
)

// takeoverFaults show why a lease alone is not enough: a holder is paused, another
// process acquires its sid and issues from it, and the holder goes on unaware. While
// there are free sids nobody takes one that was held, so the pool is filled first.
func takeoverFaults() []Fault {
	hold := func(t rig.Timing) (time.Duration, time.Duration) {
		d := max(t.TTL+2*time.Second, t.Window) + 2500*time.Millisecond
		return d, d + 500*time.Millisecond
	}
	gone := []string{connection, timeout, noSID, exhausted, starting}
	return []Fault{
		{
			Name:      "stop-takeover",
			Class:     Processes,
			Exclusive: true,
			About: "the pool is full: SIGSTOP a node until another process has its sid and issues from it, then " +
				"SIGCONT",
			Hold: hold,
			Begin: takeSID(func(_ context.Context, s *Injection) (func() error, error) {
				return s.Node.Resume, s.Node.Pause()
			}),
			Fired: sidTakenOver,
			End:   resumeHolder,
			Expect: backWith(gone, 5*time.Second,
				"no ID above its old ceiling: NO_SID until a sid is free; the other issues from the sid"),
		},
		{
			Name:      "suspend-takeover",
			Class:     Clocks,
			Exclusive: true,
			Needs:     ClockHook,
			About: "the same, but the machine is suspended: its monotonic clock does not count the time in " +
				"which its lease expired",
			Hold:  hold,
			Begin: takeSID(suspendUntil),
			Fired: sidTakenOver,
			End:   resumeHolder,
			Expect: backWith(append(gone, clockReasons...), backAfterSkew,
				"no ID above its old ceiling, even if its lease seems valid; NO_SID until a sid is free"),
		},
	}
}

// suspendUntil suspends the node's machine until resume is called.
func suspendUntil(ctx context.Context, s *Injection) (resume func() error, err error) {
	h, err := hookOf(s)
	if err != nil {
		return nil, err
	}
	suspended, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() {
		_, err := h.Suspend(suspended, time.Hour, clockhook.Asleep)
		done <- err
	}()
	return func() error {
		end()
		return <-done
	}, nil
}

// takeSID pauses the node until the extra node has its sid and clients are answered
// from it.
func takeSID(pause func(context.Context, *Injection) (resume func() error, err error)) func(context.Context,
	*Injection) error {
	return func(ctx context.Context, s *Injection) error {
		sid, err := sidOf(s)
		if err != nil {
			return err
		}
		s.base = uint64(sid)
		if err := fillPool(ctx, s); err != nil {
			return err
		}
		extra := s.Spare()
		if err := rig.Until(ctx, 10*time.Second, extra.Name+" answers NO_SID", func(ctx context.Context) error {
			return hasNoSID(ctx, s)
		}); err != nil {
			return err
		}
		if s.resume, err = pause(ctx, s); err != nil {
			return err
		}
		within := s.Timing.TTL + s.Timing.Window + 10*time.Second
		if err := rig.Until(ctx, within, fmt.Sprintf("%s has sid %d", extra.Name, sid),
			func(ctx context.Context) error { return hasSID(ctx, extra, sid) }); err != nil {
			return err
		}
		s.stopClients = s.startClients(extra)
		s.Seen = fmt.Sprintf("%s is paused, and %s issues from its sid %d", s.Node.RunName(), extra.RunName(), sid)
		return nil
	}
}

// hasSID returns nil if the node is ready with that sid.
func hasSID(ctx context.Context, n *rig.Node, sid flake.SID) error {
	if err := n.Ready(ctx); err != nil {
		return err
	}
	if got := n.Scrape(ctx).Value("sid"); got != float64(sid) {
		return fmt.Errorf("%s has sid %.0f", n.Name, got)
	}
	return nil
}

// startClients starts clients of the node; stop ends them and returns the violations
// that they found. They call often: most milliseconds are used, and most of each, so
// that another process that issues from the same sid would almost surely collide.
func (s *Injection) startClients(n *rig.Node) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex // guards broken
	var broken []error
	l := &record.Recorder{
		History: s.History,
		Format:  s.Format,
		Dial:    s.Dial,
		Broken: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			broken = append(broken, err)
		},
	}
	only := []*record.Node{{Name: n.Name, HTTP: n.HTTP, GRPC: n.GRPC, MayAnswer: n.MayAnswer}}
	var all sync.WaitGroup
	for i, c := range []record.Client{
		{Via: load.GRPC, Counts: []int{1}, Nodes: only, Every: 2 * time.Millisecond},
		{Via: load.Stream, Counts: []int{min(10_000, s.MaxCount())}, Nodes: only, Every: 2 * time.Millisecond},
		{Via: load.HTTP, Counts: []int{1, min(1000, s.MaxCount())}, Nodes: only, Every: 40 * time.Millisecond},
	} {
		all.Go(func() { l.Run(ctx, firstExtraClient+int(s.ID)*10+i, c) })
	}
	return func() error {
		cancel()
		all.Wait()
		mu.Lock()
		defer mu.Unlock()
		return errors.Join(broken...)
	}
}

// firstExtraClient is the number of the first client that a fault starts.
const firstExtraClient = 100_000

// sidTakenOver verifies that the holder is paused and the other has its sid.
func sidTakenOver(ctx context.Context, s *Injection) (string, error) {
	if state := s.Node.State(); state != "T" {
		return "", fmt.Errorf("%w: process state %q", errNotYet, state)
	}
	if err := hasSID(ctx, s.Spare(), flake.SID(s.base)); err != nil {
		return "", fmt.Errorf("%w: %w", errNotYet, err)
	}
	return seen(ctx, s)
}

// together is how long both run at least: several renewals.
const together = 2 * time.Second

// resumeHolder resumes the holder while the other issues from its sid, waits until it
// has detected the loss, and then lets it acquire a sid again.
func resumeHolder(ctx context.Context, s *Injection) error {
	var errs []error
	n, extra := s.Node, s.Spare()
	if s.resume != nil {
		errs = append(errs, s.resume())
		s.resume = nil
	}
	if s.stopClients != nil { // the other has the sid
		select {
		case <-ctx.Done():
		case <-time.After(together):
		}
		errs = append(errs, rig.Until(ctx, 10*time.Second, n.Name+" gives its sid up", func(ctx context.Context) error {
			switch now := n.Scrape(ctx); {
			case !now.Up:
				return fmt.Errorf("%s does not answer", n.Name)
			case now.Value("sid") == float64(s.base):
				return fmt.Errorf("%s reports sid %d, which %s holds", n.Name, s.base, extra.Name)
			}
			return nil
		}))
		errs = append(errs, s.stopClients())
		s.stopClients = nil
	}
	from := time.Now()
	errs = append(errs, extra.Terminate(10*time.Second), s.undo())
	if err := rig.Until(ctx, 30*time.Second, n.Name+" has a sid again", n.Ready); err != nil {
		errs = append(errs, err)
	} else {
		s.Healed = fmt.Sprintf(
			"%s gave the sid up after it resumed, and was ready %d ms after the other was terminated", n.Name,
			time.Since(from).Milliseconds())
	}
	return errors.Join(errs...)
}
