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

// teller writes lines for people, each with the time since the start. It is safe
// for concurrent use.
type teller struct {
	mu    sync.Mutex // guards out
	out   io.Writer
	began time.Time
}

func newTeller(out io.Writer) *teller { return &teller{out: out, began: time.Now()} }

func (t *teller) line(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if first, _, cut := strings.Cut(text, "\n"); cut {
		text = first + " …"
	}
	fmt.Fprintf(t.out, "%6.1fs  %s\n", time.Since(t.began).Seconds(), text)
}

// tellEvery is how often progress is told.
const tellEvery = 3 * time.Second

// progress tells how the run goes, until ctx ends.
func (r *runner) progress(ctx context.Context) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	var before int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ids := r.rig.IDs()
		phase := "calm"
		if active := r.nemesis.Active(); len(active) > 0 {
			phase = strings.Join(active, " ")
		}
		_, bytes := r.rig.History.Size()
		r.say.line("%s IDs, %s/s; nodes %s; etcd leader %s; history %d MiB; %s", count(ids), count(int64(float64(ids-before)/tellEvery.Seconds())),
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

// states is a word for each node: its sid, or why it refuses.
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

// count writes a number so that its size is seen at once.
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
