package console

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/quota"
	"github.com/flakelease/allocator/internal/server/httpserver"
)

const (
	sampleEvery = 2 * time.Second
	samples     = 450 // 15 min
	maxLines    = 64  // twice as many as a node compares its clock with
)

// history has the offsets of the clocks of the last 15 minutes, and since when which one
// is false. A node is known by its instance.
type history struct {
	mu    sync.Mutex // guards all below
	times []int64    // Unix ms
	lines map[string]*line
	wrong map[string]int64 // since when, Unix ms
}

// line is one clock: its offset in µs from the cluster's time at each of the times.
type line struct {
	name    string
	offsets []*int64 // nil: not known
}

func newHistory() *history { return &history{lines: map[string]*line{}, wrong: map[string]int64{}} }

// Run keeps the history until ctx ends, and returns nil.
func (c *Console) Run(ctx context.Context) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		c.history.add(c.cfg.Clocks(), c.cfg.Node.Config().Name, string(c.cfg.Node.Config().Instance))
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// add takes a measurement.
func (h *history) add(r clock.Report, name, instance string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times = append(h.times, int64(r.Now))
	j := r.Gate.Judgement
	seen := map[string]bool{}
	put := func(name, instance string, offset time.Duration, known bool) {
		l := h.lines[instance]
		if l == nil {
			if len(h.lines) >= maxLines {
				return
			}
			l = &line{name: name}
			h.lines[instance] = l
		}
		for len(l.offsets) < len(h.times)-1 {
			l.offsets = append(l.offsets, nil)
		}
		us := offset.Microseconds()
		if known {
			l.offsets = append(l.offsets, &us)
		} else {
			l.offsets = append(l.offsets, nil)
		}
		seen[instance] = true
	}
	wrong := map[string]bool{instance: j.Finding == clock.SelfFalse}
	put(name, instance, -j.Offset, j.Known)
	for _, p := range r.Peers {
		put(p.Name, p.Instance, p.Offset-j.Offset, p.Fresh)
		wrong[p.Instance] = slices.Contains(j.Falsetickers, p.Name)
	}
	for instance, l := range h.lines {
		if !seen[instance] {
			l.offsets = append(l.offsets, nil)
		}
	}
	if drop := len(h.times) - samples; drop > 0 {
		h.times = slices.Clone(h.times[drop:])
		for instance, l := range h.lines {
			l.offsets = slices.Clone(l.offsets[drop:])
			if !slices.ContainsFunc(l.offsets, func(p *int64) bool { return p != nil }) {
				delete(h.lines, instance)
			}
		}
	}
	for instance, is := range wrong {
		switch since := h.wrong[instance]; {
		case !is:
			delete(h.wrong, instance)
		case since == 0:
			h.wrong[instance] = int64(r.Now)
		}
	}
	for instance := range h.wrong {
		if !wrong[instance] {
			delete(h.wrong, instance)
		}
	}
}

// since returns since when which clock is false.
func (h *history) since() map[string]int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make(map[string]int64, len(h.wrong))
	for instance, at := range h.wrong {
		out[instance] = at
	}
	return out
}

func (c *Console) serveHistory(w http.ResponseWriter, r *http.Request) {
	httpserver.Pay(r, quota.CostScrape/10)
	type lineJSON struct {
		Name     string   `json:"name"`
		Instance string   `json:"instance"`
		Offsets  []*int64 `json:"offsets_us"`
	}
	c.history.mu.Lock()
	out := struct {
		Times []int64    `json:"times_unix_ms"`
		Lines []lineJSON `json:"lines"`
	}{slices.Clone(c.history.times), []lineJSON{}}
	for instance, l := range c.history.lines {
		out.Lines = append(out.Lines, lineJSON{l.name, instance, slices.Clone(l.offsets)})
	}
	c.history.mu.Unlock()
	slices.SortFunc(out.Lines, func(a, b lineJSON) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	sendJSON(w, http.StatusOK, out)
}
