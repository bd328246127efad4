package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"
)

// Budgets of an attack.
const (
	maxLate = 50 * time.Millisecond // largest excess of a quantile over the higher baseline
	maxKept = 32 << 20              // bytes of the heap in use more than before, maxWait after its end
	maxMore = 64                    // goroutines and open files more than before, the same
	maxWait = 20 * time.Second
	// maxDelay is how late the callers themselves may be: beyond it, the machine is
	// measured and not the node.
	maxDelay = 10 * time.Millisecond
)

// busy is the name of the process that makes the second baseline.
const busy = "busy"

// suite is one run.
type suite struct {
	dir    string
	length time.Duration
	memory int64 // bytes that the node may use
	// quantile of the latency that is judged, in percent: on a machine with other work
	// the median shows what the node does, and the 99th what the machine does.
	quantile float64
	out      io.Writer
	limit    string // what bounds the node's memory
	node     *node
	callers  *callers

	quiet, busy seen
	results     []result
}

// result is what an attack did.
type result struct {
	attack  attack
	sent    string // the attack's own summary
	seen    seen
	before  usage
	after   usage
	cpu     float64  // processors that the node used
	exit    string   // empty while the node runs
	broken  []string // budgets
	unknown string   // why its latency could not be judged
}

// run measures the baselines, then attacks.
func (s *suite) run(ctx context.Context, attacks []attack) error {
	s.callers.call(ctx, time.Second) // connects
	if s.quiet = s.callers.call(ctx, s.length/2); s.quiet.Steady.Failed > 0 {
		return fmt.Errorf("%d honest calls failed without an attack: %v", s.quiet.Steady.Failed, s.quiet.Failure)
	}
	stop, err := s.spawn(busy)
	if err != nil {
		return err
	}
	s.busy = s.callers.call(ctx, s.length/2)
	stop()
	fmt.Fprintf(s.out, "a node %s; honest p99 %.1f ms at rest, %.1f ms on the busy machine\n", s.limit,
		ms(s.quiet.at(99)), ms(s.busy.at(99)))
	for _, a := range attacks {
		r, err := s.attack(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		s.results = append(s.results, r)
		fmt.Fprintf(s.out, "%-18s %-22s failed %d (late %d) of %d, p50 %.1f p99 %.1f ms, new connections %d/%d, "+
			"/livez %d/%d, memory %d, at most %d, heap %d then %d MiB, CPU %.2f; %s\n", a.name, r.verdict(),
			r.seen.Steady.Failed, r.seen.Steady.Late, r.seen.Steady.Calls, ms(r.seen.at(50)), ms(r.seen.at(99)),
			r.seen.Fresh.Failed, r.seen.Fresh.Calls,
			r.seen.Probes.Failed, r.seen.Probes.Calls, r.before.RSS>>20, r.after.Peak>>20, r.before.Heap>>20,
			r.after.Heap>>20, r.cpu, r.sent)
		if r.unknown != "" {
			fmt.Fprintf(s.out, "%-18s   %s\n", "", r.unknown)
		}
		if len(r.broken) > 0 {
			fmt.Fprintf(s.out, "%-18s   the attack: %s\n", "", r.attack.sends)
		}
		for _, b := range r.broken {
			fmt.Fprintf(s.out, "%-18s   %s\n", "", b)
		}
		if r.seen.Failure != nil {
			fmt.Fprintf(s.out, "%-18s   first failure: %v\n", "", r.seen.Failure)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// attack carries one out and judges it.
func (s *suite) attack(ctx context.Context, a attack) (result, error) {
	r := result{attack: a}
	if err := s.node.with(ctx, s.node.argsOf(a)); err != nil {
		return r, err
	}
	callers := s.callers
	if a.clear {
		var err error
		if callers, err = newCallers(s.node, a); err != nil {
			return r, err
		}
		defer callers.close()
	}
	if quiet := callers.call(ctx, time.Second); quiet.Steady.Failed > 0 { // after a restart it connects
		callers.call(ctx, time.Second)
	}
	s.node.resetPeak()
	r.before = s.node.usage(ctx)
	pid := s.node.process.PID()
	stop, err := s.spawn(a.name)
	if err != nil {
		return r, err
	}
	cpu, began := s.node.cpu(), time.Now()
	r.seen = callers.call(ctx, s.length)
	r.cpu = max(0, (s.node.cpu()-cpu).Seconds()/time.Since(began).Seconds())
	r.sent = stop()
	for end := time.Now().Add(maxWait); ; time.Sleep(500 * time.Millisecond) {
		r.after = s.node.usage(ctx)
		if s.node.process.PID() != pid {
			r.exit = s.node.process.Exit()
			break
		}
		if r.kept() == "" || time.Now().After(end) || ctx.Err() != nil {
			break
		}
	}
	r.judge(s.quantile, max(s.quiet.at(s.quantile), s.busy.at(s.quantile)), s.memory)
	return r, nil
}

// kept says what the node still holds of an attack that is over.
func (r *result) kept() string {
	b, a := r.before, r.after
	switch {
	case a.Heap > b.Heap+maxKept:
		return fmt.Sprintf("it keeps %d MiB", (a.Heap-b.Heap)>>20)
	case a.Goroutines == 0:
		return "it shows no metrics"
	case a.Goroutines > b.Goroutines+maxMore:
		return fmt.Sprintf("it keeps %d goroutines", a.Goroutines-b.Goroutines)
	case a.FDs > b.FDs+maxMore:
		return fmt.Sprintf("it keeps %d open files", a.FDs-b.FDs)
	}
	return ""
}

// judge finds the budgets that were broken.
func (r *result) judge(quantile float64, busy time.Duration, memory int64) {
	add := func(format string, args ...any) { r.broken = append(r.broken, fmt.Sprintf(format, args...)) }
	if r.exit != "" {
		add("the node ended: %s", r.exit)
	} else if kept := r.kept(); kept != "" {
		add("%v later %s", maxWait, kept)
	}
	if r.after.Peak > memory {
		add("%d MiB are more than the node may use", r.after.Peak>>20)
	}
	for _, c := range []struct {
		name string
		count
	}{{"calls", r.seen.Steady}, {"calls on new connections", r.seen.Fresh}, {"probes", r.seen.Probes}} {
		if c.Failed > 0 || c.Calls == 0 {
			add("%d of %d %s failed", c.Failed, c.Calls, c.name)
		}
	}
	if at := r.seen.at(quantile); at <= maxLate+busy {
		return
	} else if r.seen.Delay > maxDelay {
		r.unknown = fmt.Sprintf("p%.0f is not judged: the callers themselves were %.0f ms late", quantile,
			ms(r.seen.Delay))
	} else {
		add("p%.0f %.0f ms", quantile, ms(at))
	}
}

func (r *result) verdict() string {
	switch {
	case len(r.broken) == 0 && r.unknown != "":
		return "unknown"
	case len(r.broken) == 0:
		return "pass"
	}
	return "FAIL"
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// burn keeps every processor busy until ctx ends.
func burn(ctx context.Context) {
	var all sync.WaitGroup
	for range runtime.NumCPU() {
		all.Go(func() {
			for n := 0; n&0xffff != 0 || ctx.Err() == nil; n++ {
			}
		})
	}
	all.Wait()
}
