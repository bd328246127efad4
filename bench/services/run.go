package services

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

// Plan holds the parameters of a run.
type Plan struct {
	Rounds int
	Warm   time.Duration // warm-up before each slice
	Slice  time.Duration // time that a case is measured in a round
	Seed   uint64        // draws the order of the cases
	Notify func(string)  // progress
}

// A Result is a case with a sample for each round.
type Result struct {
	Case
	Samples []Sample
}

// Run measures the cases that e has servers for. It ends when a case fails.
func Run(ctx context.Context, e *Env, cases []Case, p Plan) ([]Result, error) {
	var results []Result
	for _, c := range cases {
		if len(c.Servers(e)) > 0 {
			results = append(results, Result{Case: c})
		}
	}
	rnd := rand.New(rand.NewPCG(p.Seed, 1))
	for round := range p.Rounds {
		for _, i := range rnd.Perm(len(results)) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r := &results[i]
			s, err := r.once(ctx, e, p)
			if err != nil {
				return nil, fmt.Errorf("%s: %e", r.ID(), err)
			}
			r.Samples = append(r.Samples, s)
			p.Notify(fmt.Sprintf("round %d of %d: %-60s %12.0f IDs/s", round+1, p.Rounds, r.ID(), s.IDs))
		}
	}
	return results, nil
}

func (r *Result) once(ctx context.Context, e *Env, p Plan) (Sample, error) {
	addrs := r.Servers(e)
	cpu := func() time.Duration { return e.CPU(addrs...) }
	if r.Load != nil {
		return measureExternal(ctx, e, r.Load, p.Warm, p.Slice, cpu)
	}
	callers, closeAll, err := r.Open(ctx, e, r.Callers)
	if err != nil {
		return Sample{}, err
	}
	defer closeAll()
	runtime.GC() // or this case would pay for the garbage of the one before
	return measure(ctx, callers, max(r.PerOp, 1), max(r.Every, 1), max(p.Warm, r.Warm), p.Slice, cpu)
}

// Verdict is the result of a run for a goal.
type Verdict struct {
	Goal
	Got      Spread // ours divided by the peer's, IDs a second or processor time, or IDs a second
	Met      bool
	Ours     time.Duration // 99th percentile, where the goal bounds that
	Theirs   time.Duration
	Measured bool // both cases were measured
}

// Judge compares results with a goal.
func Judge(g Goal, results []Result) Verdict {
	v := Verdict{Goal: g}
	find := func(id string) *Result {
		i := slices.IndexFunc(results, func(r Result) bool { return r.ID() == id })
		if i < 0 {
			return nil
		}
		return &results[i]
	}
	ours := find(g.Case)
	if ours == nil {
		return v
	}
	if g.Peer == "" {
		v.Measured, v.Got = true, ours.spread(Sample.ids)
	} else {
		theirs := find(g.Peer)
		if theirs == nil {
			return v
		}
		ratios := make([]float64, len(ours.Samples))
		for i := range ratios {
			a, b := ours.Samples[i], theirs.Samples[i]
			ratios[i] = a.IDs / b.IDs
			if g.CPU > 0 {
				ratios[i] = a.cpu() / b.cpu()
			}
		}
		v.Measured, v.Got = true, SpreadOf(ratios)
		v.Ours = time.Duration(ours.spread(Sample.p99).Median)
		v.Theirs = time.Duration(theirs.spread(Sample.p99).Median)
	}
	v.Met = v.Got.Median >= g.AtLeast && (g.CPU == 0 || v.Got.Median <= g.CPU) &&
		(g.P99 == 0 || float64(v.Ours) <= g.P99*float64(v.Theirs))
	return v
}

func (s Sample) ids() float64 { return s.IDs }
func (s Sample) p50() float64 { return float64(s.P50) }
func (s Sample) p99() float64 { return float64(s.P99) }
func (s Sample) cpu() float64 { return float64(s.CPU) }

func (r *Result) spread(of func(Sample) float64) Spread {
	values := make([]float64, len(r.Samples))
	for i, s := range r.Samples {
		values[i] = of(s)
	}
	return SpreadOf(values)
}

// Spread is the minimum, the median and the maximum of some values.
type Spread struct{ Min, Median, Max float64 }

// SpreadOf returns the spread of values, of which there is at least one.
func SpreadOf(values []float64) Spread {
	v := slices.Sorted(slices.Values(values))
	return Spread{v[0], (v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[len(v)-1]}
}
