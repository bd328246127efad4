package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/real/rig"
)

// progressLog writes lines for people, each with the time since the start. It is
// safe for concurrent use.
type progressLog struct {
	mu    sync.Mutex // guards out
	out   io.Writer
	began time.Time
}

func newProgressLog(out io.Writer) *progressLog { return &progressLog{out: out, began: time.Now()} }

func (t *progressLog) line(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if first, _, cut := strings.Cut(text, "\n"); cut {
		text = first + " …"
	}
	fmt.Fprintf(t.out, "%6.1fs  %s\n", time.Since(t.began).Seconds(), text)
}

const progressEvery = 3 * time.Second

// progress reports the state of the run until ctx ends.
func (r *runner) progress(ctx context.Context) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	var before int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ids := r.rig.IDs()
		phase := "no fault"
		if active := r.nemesis.Active(); len(active) > 0 {
			phase = strings.Join(active, " ")
		}
		_, bytes := r.rig.History.Size()
		r.log.line("%s IDs, %s/s; nodes %s; etcd leader %s; history %d MiB; %s", count(ids),
			count(int64(float64(ids-before)/progressEvery.Seconds())),
			r.states(), r.leader(), bytes>>20, phase)
		before = ids
		for _, n := range r.rig.Nodes {
			n.TrimLog()
		}
		for _, p := range r.rig.Etcds {
			p.TrimLog()
		}
	}
}

func (r *runner) leader() string {
	if i := r.rig.Leader(); i >= 0 {
		return r.rig.Etcds[i].Name
	}
	return "none"
}

// states returns the sid of each node, or why it refuses.
func (r *runner) states() string {
	var out []string
	for _, n := range r.rig.Nodes {
		out = append(out, stateOf(n.Sample()))
	}
	return strings.Join(out, " ")
}

func stateOf(s *rig.Sample) string {
	switch {
	case s == nil || !s.Up:
		return "down"
	case s.Value("ready") == 1:
		return fmt.Sprintf("%.0f", s.Value("sid"))
	case s.Reason != "":
		return s.Reason
	}
	return "?"
}

// count writes a number with few digits.
func count(n int64) string {
	switch {
	case n >= 10_000_000:
		return fmt.Sprintf("%.0fM", float64(n)/1e6)
	case n >= 1_000_000:
		return fmt.Sprintf("%.1fM", float64(n)/1e6)
	case n >= 10_000:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprint(n)
}
