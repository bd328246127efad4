package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/audit"
)

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// failing is a spool that holds nothing.
type failing struct{}

var errDisk = errors.New("no disk")

func (failing) Create() (audit.Spooled, error) { return nil, errDisk }

// Without room for all IDs nothing is known of them.
func TestUniqueOfFailedDisk(t *testing.T) {
	u := NewUnique(0, failing{})
	for i := range int64(1 << 16) { // more than fit in the smallest memory
		u.Add(&Op{Process: "1", Type: OK, F: FAllocate, Block: Block{flake.ID(i), 1, 1}})
	}
	if r := u.Finish(); r.Verdict != Unknown {
		t.Errorf("after a failed disk: %+v", r)
	}
}

func TestSpansAgainstSet(t *testing.T) {
	for seed := range uint64(2000) {
		r := seeded(seed)
		var s, o spans
		in, other := map[int64]bool{}, map[int64]bool{}
		for range r.IntN(30) {
			from := r.Int64N(200)
			to := from + r.Int64N(8)
			if r.IntN(2) == 0 {
				s.add(from, to)
				for i := from; i <= to; i++ {
					in[i] = true
				}
			} else {
				o.add(from, to)
				for i := from; i <= to; i++ {
					other[i] = true
				}
			}
			if r.IntN(8) == 0 {
				cut := r.Int64N(210)
				o.cut(cut)
				for i := cut; i < 300; i++ {
					delete(other, i)
				}
			}
		}
		for i := 1; i < len(s); i++ {
			if s[i].from <= s[i-1].to+1 {
				t.Fatalf("seed %d: %v touch", seed, s)
			}
		}
		without, shared := int64(-1), int64(-1)
		for i := int64(220); i >= 0; i-- {
			if in[i] && !other[i] {
				without = i
			}
			if in[i] && other[i] {
				shared = i
			}
		}
		if got, ok := s.without(o); ok != (without >= 0) || ok && got != without {
			t.Fatalf("seed %d: %v without %v: %d, want %d", seed, s, o, got, without)
		}
		if got, ok := s.shared(o); ok != (shared >= 0) || ok && got != shared {
			t.Fatalf("seed %d: %v and %v share %d, want %d", seed, s, o, got, shared)
		}
	}
}

// randomRun makes a run of a few processes whose clients overlap, with IDs that
// mostly rise.
func randomRun(r *rand.Rand) []Op {
	s := newScenario()
	busy := map[int]bool{}
	for i := range 30 + r.IntN(60) {
		ms, p := int64(i), r.IntN(5)
		if !busy[p] {
			s.askAfter(ms, p, []string{"", "s"}[p%2], flake.ID(r.IntN(2)*int(flakeAt(int64(max(i-3, 0)), 0, 1))))
		} else {
			jitter := int64(r.IntN(1 + r.IntN(8)))
			s.ok(ms, p, fmt.Sprintf("n%d#%d", 1+r.IntN(2), r.IntN(2)), flakeAt(ms*100-jitter*160, int64(i), flake.SID(r.IntN(2))), 1)
		}
		busy[p] = !busy[p]
	}
	return s.ops
}

// Order, Causal and RealTime say what comparing every pair of calls says.
func TestOrdersAgainstPairs(t *testing.T) {
	found := [3]int{}
	for seed := range uint64(3000) {
		r := seeded(seed)
		ops := randomRun(r)
		order, causal, real := NewOrder(), NewCausal(), NewRealTime()
		type call struct {
			begin, end int
			ask, ok    Op
		}
		var done []call
		open := map[string]int{}
		for i, op := range ops {
			order.Add(&op)
			causal.Add(&op)
			real.Add(&op)
			if seed%2 == 0 { // as a long run does now and then
				order.forget()
				real.all.forget(real.oldest())
			}
			switch op.Type {
			case Invoke:
				open[op.Process] = i
			case OK:
				done = append(done, call{open[op.Process], i, ops[open[op.Process]], op})
			}
		}
		format := flake.Default
		var badOrder, badCausal, badReal bool
		for _, b := range done {
			if b.ask.After != 0 && b.ok.Block.First <= b.ask.After {
				badCausal = true
			}
			for _, a := range done {
				if a.end >= b.begin {
					continue
				}
				smaller := b.ok.Block.First <= a.ok.Block.First
				if smaller && (a.ok.Run == b.ok.Run || a.ask.Session == "s" && b.ask.Session == "s" && a.ask.After != 0 && b.ask.After != 0) {
					badOrder = true
				}
				if smaller && format.SID(a.ok.Block.First) == format.SID(b.ok.Block.First) && a.ok.Run != b.ok.Run {
					least := a.ok.Block.First // that a's process was seen to have on the sid by then
					for _, c := range done {
						if c.ok.Run == a.ok.Run && c.end < b.end && format.SID(c.ok.Block.First) == format.SID(b.ok.Block.First) {
							least = min(least, c.ok.Block.First)
						}
					}
					badOrder = badOrder || b.ok.Block.First >= least
				}
				if format.UnixMilli(a.ok.Block.First)-format.UnixMilli(b.ok.Block.First) > 750 {
					badReal = true
				}
			}
		}
		for i, tc := range []struct {
			c    Checker
			want bool
		}{{order, badOrder}, {causal, badCausal}, {real, badReal}} {
			got := tc.c.Finish()
			if (got.Verdict == Broken) != tc.want {
				t.Fatalf("seed %d: %s: %+v, want broken = %v", seed, got.Check, got, tc.want)
			}
			if tc.want {
				found[i]++
			}
		}
	}
	for i, n := range found {
		if n < 50 || n > 2950 {
			t.Errorf("check %d: %d of 3000 runs are broken: that tests little", i, n)
		}
	}
}
