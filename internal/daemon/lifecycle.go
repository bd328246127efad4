package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// lifecycle starts the parts of a node in order and stops them in the reverse order,
// one step after the other. Run's goroutine alone adds the steps and carries them out; every part may call end.
type lifecycle struct {
	log    *slog.Logger
	parts  errgroup.Group
	ending context.Context // ends when the node has to stop
	end    context.CancelFunc
	steps  []stopStep
}

// stopStep is one step of a stop. stop returns when the step is done. Its context ends
// after timeout; stop returns that error if the step could not be finished in time.
type stopStep struct {
	name    string
	timeout time.Duration
	stop    func(context.Context) error
}

func newLifecycle(ctx context.Context, log *slog.Logger) *lifecycle {
	l := &lifecycle{log: log}
	l.ending, l.end = context.WithCancel(ctx)
	return l
}

// onStop adds a step to the stop. It comes before the steps that were added before it.
func (l *lifecycle) onStop(name string, timeout time.Duration, stop func(context.Context) error) {
	l.steps = append(l.steps, stopStep{name, timeout, stop})
}

// start runs a part, and adds its step to the stop: it ends the part's context and waits
// until run has returned.
func (l *lifecycle) start(name string, timeout time.Duration, run func(context.Context) error) {
	// Not the context of Run: a part works on until its step.
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	l.serve(name, func() error {
		defer close(ended)
		return run(ctx)
	})
	l.onStop(name, timeout, func(context.Context) error {
		cancel()
		<-ended
		return nil
	})
}

// serve runs a part that another step stops. The node stops when any part returns.
func (l *lifecycle) serve(name string, run func() error) {
	l.parts.Go(func() error {
		defer l.end()
		if err := run(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// stop carries out the steps, the last one first, and returns the error of the part that
// failed first. A step that exceeds its timeout is logged. The next one waits for it all
// the same: the order is what releases the sid before the connection to etcd is closed.
func (l *lifecycle) stop() error {
	l.end()
	for _, s := range slices.Backward(l.steps) {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
		timedOut := sync.OnceFunc(func() {
			l.log.Warn("stop step timed out", "step", s.name, "timeout", s.timeout)
		})
		timer := time.AfterFunc(max(s.timeout, stepTimeout), timedOut)
		err := s.stop(ctx)
		if late := !timer.Stop(); late || err != nil {
			timedOut() // or wait for the timer's call
		}
		cancel()
	}
	return l.parts.Wait()
}
