package linear

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// at makes an ID of sid 3 at ms milliseconds past the epoch.
func at(ms int64, entropy uint32) flake.ID {
	id, err := flake.Default.Make(flake.DefaultEpoch+ms, entropy, 3)
	if err != nil {
		panic(err)
	}
	return id
}

type run struct{ ops []history.Op }

func (r *run) answer(begin, end int64, process string, first flake.ID, count int64) *run {
	client := fmt.Sprint(len(r.ops))
	r.ops = append(r.ops,
		history.Op{Time: clock.Mono(begin), Process: client, Type: history.Invoke, F: history.FAllocate},
		history.Op{Time: clock.Mono(end), Process: client, Type: history.OK, F: history.FAllocate, Run: process, Block: history.Block{First: first, Count: count, Stride: 32}})
	return r
}

func (r *run) window(seen int64, process string, base, ceil int64, released bool) *run {
	r.ops = append(r.ops, history.Op{Time: clock.Mono(seen), Process: history.Etcd, Type: history.Info, F: history.FWindow, Run: process,
		Window: &history.Window{SID: 3, Base: flake.DefaultEpoch + base, Ceil: flake.DefaultEpoch + ceil, Released: released}})
	return r
}

func (r *run) judge(cfg Config) (*Ownership, history.Result) {
	o := New(cfg)
	ops := slices.Clone(r.ops)
	slices.SortStableFunc(ops, func(a, b history.Op) int { return int(a.Time - b.Time) })
	for _, op := range ops {
		o.Add(&op)
	}
	return o, o.Finish()
}

func TestOwnership(t *testing.T) {
	held := func() *run { return new(run).window(5, "a", 0, 100, false).window(50, "a", 100, 200, false) }
	for _, tc := range []struct {
		name string
		run  *run
		lag  time.Duration
		want history.Verdict
	}{
		{"rising", held().answer(1, 9, "a", at(10, 0), 5).answer(10, 19, "a", at(10, 5), 5), 0, history.Pass},
		{"two at once, either way", held().answer(1, 9, "a", at(10, 5), 5).answer(2, 9, "a", at(10, 0), 5), 0, history.Pass},
		{"the later call got less", held().answer(1, 9, "a", at(10, 5), 5).answer(10, 19, "a", at(10, 0), 5), 0, history.Broken},
		{"three calls that no order fits", held().answer(1, 9, "a", at(11, 0), 1).answer(10, 30, "a", at(10, 0), 1).answer(2, 40, "a", at(12, 0), 1), 0, history.Broken},
		{"blocks that overlap, at once", held().answer(1, 9, "a", at(10, 0), 5).answer(1, 9, "a", at(10, 4), 5), 0, history.Broken},
		{"outside every window", held().answer(1, 9, "a", at(200, 0), 1), 0, history.Broken},
		{"another's window", held().answer(1, 9, "b", at(10, 0), 1), 0, history.Broken},
		{"over two windows", held().answer(40, 60, "a", at(99, 1<<15-1), 2), 0, history.Pass},
		{"before its window can have been written", held().answer(10, 20, "a", at(150, 0), 1), 10, history.Broken},
		{"as early as it can have been", held().answer(10, 40, "a", at(150, 0), 1), 10, history.Pass},
		{"the time of the write is unknown", held().answer(10, 20, "a", at(150, 0), 1), 0, history.Pass},
		{"after giving back", held().window(60, "a", 0, 50, true).answer(70, 80, "a", at(60, 0), 1), 0, history.Broken},
		{"while giving back", held().window(60, "a", 0, 50, true).answer(55, 80, "a", at(60, 0), 1), 0, history.Pass},
		{"what was not given back", held().window(60, "a", 0, 50, true).answer(70, 80, "a", at(49, 0), 1), 0, history.Pass},
		{"a former holder that still lives", held().window(60, "b", 200, 300, false).answer(61, 62, "b", at(210, 0), 1).answer(70, 80, "a", at(60, 0), 1), 0, history.Pass},
		{"nothing", held(), 0, history.Unknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, got := tc.run.judge(Config{Lag: tc.lag})
			if got.Verdict != tc.want || got.Reason == "" {
				t.Fatalf("got %+v, want %s", got, tc.want)
			}
			var page bytes.Buffer
			shown, err := o.Visualize(&page)
			if err != nil || shown != (tc.want == history.Broken) || shown && !strings.Contains(page.String(), "<html") {
				t.Errorf("page: %v, %v, %d bytes", shown, err, page.Len())
			}
		})
	}
}

// A busy sid: ten clients at once, thousands of answers. It is judged in time,
// and one answer that went back is found among those checked.
func TestOwnershipOfABusySID(t *testing.T) {
	for _, planted := range []bool{false, true} {
		r := rand.New(rand.NewPCG(5, 5))
		s := new(run).window(0, "a", 0, 1<<40, false)
		type client struct{ begin, end int64 }
		for i := range int64(3000) {
			c := client{i*10 - r.Int64N(80) + 100, i*10 + 100 + r.Int64N(20)}
			entropy := uint32(i % 1000)
			ms := i / 1000
			if planted && i == 2000 {
				ms, entropy = 1, 500
			}
			s.answer(c.begin, c.end, "a", at(ms, entropy), 1)
		}
		_, got := s.judge(Config{Timeout: time.Minute})
		if want := map[bool]history.Verdict{false: history.Pass, true: history.Broken}[planted]; got.Verdict != want {
			t.Errorf("planted %v: %+v", planted, got)
		}
	}
}

// More answers than are checked: some are left out, over the whole run.
func TestOwnershipSamples(t *testing.T) {
	s := new(run)
	for i := range int64(1000) {
		s.answer(2*i+1, 2*i+2, "a", at(i, 0), 1)
	}
	o, got := s.judge(Config{Most: 100})
	kept := o.sids[3].answers
	if got.Verdict != history.Pass || len(kept) > 100 || len(kept) < 50 || kept[len(kept)-1].begin < 1800 || kept[0].begin > 200 {
		t.Errorf("%+v: kept %d", got, len(kept))
	}
}
