package services

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/load"
)

// Rates are the requests a second at which latency is measured.
var Rates = []float64{1_000, 5_000, 10_000, 20_000, 40_000}

// curved are the cases that have a curve, ours beside what does the same with the protocol.
var curved = []string{
	"this, HTTP", "an empty handler, net/http", "this, gRPC unary", "an empty handler, grpc-go unary",
	"this, RESP", "Redis INCR",
}

// A Point is the latency at one rate.
type Point struct {
	Rate     float64       // requests a second that came, however long the answers before took
	Answered float64       // requests a second
	P50, P99 time.Duration // From when a request was due, so that a queue counts.
	// P999 is of few requests at low rates.
	P999 time.Duration
}

// kept reports whether the server answered what came.
func (p Point) kept() bool { return p.Answered >= 0.98*p.Rate }

// A Curve is a case at rising rates. It ends at the first rate that was not kept.
type Curve struct {
	Case   string
	Points []Point
}

// Curves measures the latency of single requests on 64 connections at the given rates, in an
// open loop: requests come at their times and do not wait for answers. Only cases whose ID matches are measured.
func Curves(ctx context.Context, e *Env, only *regexp.Regexp, rates []float64, p Plan) (all []Curve, err error) {
	for _, name := range curved {
		for _, c := range Cases() {
			if c.Group != Single || c.Name != name || len(c.Servers(e)) == 0 || !only.MatchString(c.ID()) {
				continue
			}
			curve := Curve{Case: name}
			for _, rate := range rates {
				callers, closeAll, err := c.Open(ctx, e, c.Callers)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				point, err := measureOpen(ctx, callers, rate, p.Warm, p.Slice)
				closeAll()
				if err != nil {
					return nil, fmt.Errorf("%s at %.0f requests a second: %w", name, rate, err)
				}
				curve.Points = append(curve.Points, point)
				p.Notify(fmt.Sprintf("open loop: %-34s %8.0f/s  p50 %v  p99 %v", name, rate, point.P50, point.P99))
				if !point.kept() {
					break
				}
			}
			all = append(all, curve)
		}
	}
	return all, nil
}

func measureOpen(ctx context.Context, callers []Caller, rate float64, warm, slice time.Duration) (Point, error) {
	r := load.New(load.Plan{Workers: workersOf(callers), Rate: rate, WarmUp: warm, Length: slice}).Run(ctx)
	switch {
	case ctx.Err() != nil:
		return Point{}, ctx.Err()
	case r.Failure != nil:
		return Point{}, r.Failure
	case r.Requests == 0:
		return Point{}, fmt.Errorf("services: no answer in %v", slice)
	}
	at := func(q float64) time.Duration { return time.Duration(r.Latency.ValueAtQuantile(q)) }
	return Point{
		Rate:     rate,
		Answered: float64(r.Requests) / slice.Seconds(),
		P50:      at(50),
		P99:      at(99),
		P999:     at(99.9),
	}, nil
}

// CurveTable writes the curves as Markdown: a row for each case, and the 50th and the 99th
// percentile at each rate. A rate that a case could not keep has what it answered instead.
func CurveTable(w io.Writer, rates []float64, curves []Curve) {
	if len(curves) == 0 {
		return
	}
	fmt.Fprintf(w, `## Latency by load

Requests come at fixed times and wait for no answer. A latency counts from when its request was
due, in microseconds: the 50th and the 99th percentile.

| requests a second |%s
|---|%s
`, cells(len(rates), func(i int) string { return Count(rates[i]) }), strings.Repeat("--:|", len(rates)))
	for _, c := range curves {
		fmt.Fprintf(w, "| %s |%s\n", c.Case, cells(len(rates), func(i int) string {
			switch {
			case i >= len(c.Points):
				return "–"
			case !c.Points[i].kept():
				return "only " + Count(c.Points[i].Answered)
			}
			return micros(float64(c.Points[i].P50)) + ", " + micros(float64(c.Points[i].P99))
		}))
	}
	fmt.Fprintln(w)
}

func cells(n int, text func(i int) string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, " %s |", text(i))
	}
	return b.String()
}
