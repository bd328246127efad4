package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/internal/config"
)

// Bounds of a bench.
const (
	maxCallers   = 10_000
	benchTimeout = 10 * time.Second // of one request: what a cluster takes longer for is a failure
)

// benchPlan is what a bench is told.
type benchPlan struct {
	addrs   []string
	via     string
	callers int
	count   int
	length  time.Duration
	warm    time.Duration
	rate    float64 // requests a second; 0: each caller asks again at once
	check   bool
	dialer  dialer
}

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a cluster, and measure it",
		Long: `Bench asks nodes for IDs for a while, and says how many came, how long answers took and
what was refused. It also checks that no ID came twice, and that the IDs of each caller
rise. The IDs are used up.

Without --rate each caller asks again as soon as it is answered (closed loop): that shows
what the cluster can do, but a cluster that stalls is asked less, so latencies look better
than users of it would see. With --rate requests are due at fixed times, whether or not
earlier ones were answered, and a latency counts from when its request was due (open
loop): no stall is left out. Choose enough --callers for the rate, at least one for each
request that may be under way.

An interrupt (Ctrl-C) ends it early, with the figures so far and exit code 130.

Each caller has a connection of its own, and addresses take turns; by sdk all share one
client of the Go SDK. Bench exits with 0 if IDs came and all is well with them, with 1 if
one came twice, a caller's did not rise, or all requests were refused, and with 3 if
nobody answered.`,
		Example: `  allocator bench --for 30s
  allocator bench --addr 10.0.0.5:9000,10.0.0.6:9000 --rate 10000 --via stream
  allocator bench --via http --addr 10.0.0.5:8080 --count 100
  allocator bench --via sdk --callers 1000 --format json`,
		Args: cobra.NoArgs,
	}
	p := benchPlan{}
	flags := cmd.Flags()
	addrs := flags.StringSlice("addr", nil, "addresses of nodes, comma-separated or given several times (or $"+config.EnvAddr+" for gRPC; default the port of the door on this machine)")
	via := choose(cmd, "via", "door to ask at", viaGRPC, viaStream, viaHTTP, viaRESP, viaSDK)
	flags.IntVar(&p.callers, "callers", 64, "how many ask at the same time")
	flags.IntVar(&p.count, "count", 1, "IDs a request")
	flags.DurationVar(&p.length, "for", 10*time.Second, "how long to measure")
	flags.DurationVar(&p.warm, "warm-up", time.Second, "how long to ask before that")
	flags.Float64Var(&p.rate, "rate", 0, "requests a second of all callers together; 0: as many as are answered")
	noCheck := flags.Bool("no-check", false, "do not check the IDs, which takes a part of this machine")
	format := formatFlag(cmd)
	dialing := a.dialFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		p.via, p.check = via.value, !*noCheck
		p.addrs = a.benchAddrs(*addrs, cmd.Flags().Changed("addr"), p.via)
		if err := p.valid(); err != nil {
			return err
		}
		if p.dialer, err = dialing(); err != nil {
			return err
		}
		progress := io.Discard
		if f, ok := a.err.(*os.File); ok {
			if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
				progress = f
			}
		}
		r, err := p.run(cmd.Context(), progress)
		if err != nil {
			return err
		}
		if format.value == "json" {
			err = printLine(a.out, r.json())
		} else {
			err = r.print(a.out)
		}
		if err != nil {
			return err
		}
		return r.verdict()
	}
	return cmd
}

// benchAddrs returns the addresses to ask, each without spaces.
func (a *app) benchAddrs(list []string, given bool, via string) []string {
	listen := config.Default().Listen
	def := listen.GRPC
	switch via {
	case viaHTTP:
		def = listen.HTTP
	case viaRESP:
		def = respAddr
	default:
		if env := a.getenv(config.EnvAddr); env != "" && !given {
			list, given = strings.Split(env, ","), true
		}
	}
	if !given {
		list = []string{def}
	}
	out := make([]string, 0, len(list))
	for _, addr := range list {
		if addr = strings.TrimSpace(addr); addr != "" {
			out = append(out, addr)
		}
	}
	return out
}

// respAddr is where Redis clients find a node, by the examples: nodes have no
// such door unless told.
const respAddr = "127.0.0.1:6380"

func (p benchPlan) valid() error {
	largest := 1_000_000
	if p.via == viaHTTP || p.via == viaRESP {
		largest = 10_000
	}
	switch {
	case len(p.addrs) == 0:
		return usage("--addr: no address is given")
	case p.callers < 1 || p.callers > maxCallers:
		return usage("--callers is %d: it has to be 1 to %d", p.callers, maxCallers)
	case p.count < 1 || p.count > largest:
		return usage("--count is %d: by %s a request may ask for 1 to %d", p.count, p.via, largest)
	case p.length <= 0:
		return usage("--for is %v: it has to be above 0", p.length)
	case p.warm < 0:
		return usage("--warm-up is %v: it has to be 0 or more", p.warm)
	case !(p.rate >= 0) || p.rate > 10_000_000:
		return usage("--rate is %v: it has to be 0 to 10000000", p.rate)
	}
	return nil
}

// benchResult is what a bench found.
type benchResult struct {
	plan benchPlan
	took time.Duration

	interrupted bool  // before the time was over
	requests    int64 // answered with IDs, of those that were measured
	ids         int64
	refused     map[string]int64 // by reason
	failed      int64            // requests without an answer
	failure     error            // one of theirs
	late        int64            // requests that were due and not even begun in time to be measured
	latency     *hdrhistogram.Histogram
	check       *idCheck // nil: not asked for
}

var percentiles = []struct {
	name string
	at   float64
}{{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}, {"p99.99", 99.99}}

func (r *benchResult) rate(n int64) float64 { return float64(n) / r.took.Seconds() }

// reasons returns the reasons for refusals, in order.
func (r *benchResult) reasons() (names []string, sum int64) {
	for name, n := range r.refused {
		names, sum = append(names, name), sum+n
	}
	slices.Sort(names)
	return names, sum
}

func (r *benchResult) loop() string {
	if r.plan.rate > 0 {
		return fmt.Sprintf("open loop at %g requests/s: latency counts from when a request was due", r.plan.rate)
	}
	return "closed loop: a stall hides the requests that were not sent during it; give --rate to see them"
}

func (r *benchResult) print(w io.Writer) error {
	var b strings.Builder
	p := r.plan
	fmt.Fprintf(&b, "%s by %s, %s each, %v after %v\n%s\n\n", count(p.callers, "caller"), p.via, count(p.count, "ID"), r.took.Round(10*time.Millisecond), p.warm, r.loop())
	if r.interrupted {
		fmt.Fprintf(&b, "interrupted, of %v that were asked for\n", p.length)
	}
	fmt.Fprintf(&b, "requests   %12d  %12.0f/s\n", r.requests, r.rate(r.requests))
	fmt.Fprintf(&b, "IDs        %12d  %12.0f/s\n", r.ids, r.rate(r.ids))
	names, sum := r.reasons()
	fmt.Fprintf(&b, "refused    %12d", sum)
	for _, name := range names {
		fmt.Fprintf(&b, "  %s %d", name, r.refused[name])
	}
	fmt.Fprintf(&b, "\nfailed     %12d", r.failed)
	if r.failure != nil {
		fmt.Fprintf(&b, "  %v", r.failure)
	}
	b.WriteByte('\n')
	if p.rate > 0 {
		fmt.Fprintf(&b, "not begun  %12d  that were due: more callers would have begun them\n", r.late)
	}
	if r.requests > 0 {
		b.WriteString("latency  ")
		for _, at := range percentiles {
			fmt.Fprintf(&b, "  %s %v", at.name, shortly(time.Duration(r.latency.ValueAtQuantile(at.at))))
		}
		fmt.Fprintf(&b, "  max %v\n", shortly(time.Duration(r.latency.Max())))
	}
	if c := r.check; c != nil {
		fmt.Fprintf(&b, "checked    %12d  IDs: %d twice, %d out of order", c.checked, c.twice, c.disordered)
		if c.unchecked > 0 {
			fmt.Fprintf(&b, ", and %d that came too late to be checked", c.unchecked)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// shortly rounds a duration to three digits or so.
func shortly(d time.Duration) time.Duration {
	for unit := time.Nanosecond; unit < time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(10 * time.Millisecond)
}

// benchView is the result as JSON: durations in nanoseconds.
type benchView struct {
	Via       string           `json:"via"`
	Callers   int              `json:"callers"`
	Count     int              `json:"count"`
	Rate      float64          `json:"rate"` // 0: closed loop
	Seconds   float64          `json:"seconds"`
	Early     bool             `json:"interrupted,omitempty"` // before the time was over
	Requests  int64            `json:"requests"`
	PerSecond float64          `json:"requests_per_second"`
	IDs       int64            `json:"ids"`
	IDsPerSec float64          `json:"ids_per_second"`
	Refused   map[string]int64 `json:"refused"`
	Failed    int64            `json:"failed"`
	Failure   string           `json:"failure,omitempty"`
	NotBegun  int64            `json:"not_begun"`
	LatencyNs map[string]int64 `json:"latency_ns"`
	Check     *checkView       `json:"check"` // null: not asked for
}

type checkView struct {
	Checked    int64 `json:"checked"`
	Twice      int64 `json:"twice"`
	Disordered int64 `json:"out_of_order"`
	Unchecked  int64 `json:"unchecked"`
}

func (r *benchResult) json() benchView {
	v := benchView{
		Via: r.plan.via, Callers: r.plan.callers, Count: r.plan.count, Rate: r.plan.rate, Seconds: r.took.Seconds(), Early: r.interrupted,
		Requests: r.requests, PerSecond: r.rate(r.requests), IDs: r.ids, IDsPerSec: r.rate(r.ids),
		Refused: r.refused, Failed: r.failed, NotBegun: r.late, LatencyNs: map[string]int64{},
	}
	if r.failure != nil {
		v.Failure = r.failure.Error()
	}
	if r.requests > 0 {
		for _, at := range percentiles {
			v.LatencyNs[at.name] = r.latency.ValueAtQuantile(at.at)
		}
		v.LatencyNs["max"] = r.latency.Max()
	}
	if c := r.check; c != nil {
		v.Check = &checkView{c.checked, c.twice, c.disordered, c.unchecked}
	}
	return v
}

// verdict is the error that the command ends with.
func (r *benchResult) verdict() error {
	_, refused := r.reasons()
	switch c := r.check; {
	case c != nil && c.twice+c.disordered > 0:
		return &exitError{exitInvalid, fmt.Errorf("%d IDs came twice, %d out of order: see docs/OPERATIONS.md, and do not use them", c.twice, c.disordered)}
	case r.interrupted:
		return errInterrupted
	case r.requests > 0:
		return nil
	case refused > 0:
		return &exitError{exitInvalid, errors.New("all requests were refused")}
	case r.failure != nil:
		return &exitError{exitUnavailable, fmt.Errorf("no node answers: %w%s\nIs one running at %s? --via %s asks at that door alone",
			r.failure, r.plan.dialer.hint(r.failure.Error()), strings.Join(r.plan.addrs, ", "), r.plan.via)}
	}
	return &exitError{exitUnavailable, fmt.Errorf("no answer came within %v", r.plan.length)}
}

// live prints a line of progress until ctx ends.
func live(ctx context.Context, w io.Writer, every time.Duration, line func() string) {
	if w == io.Discard {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fmt.Fprintf(w, "\r\x1b[K%s", line())
		case <-ctx.Done():
			fmt.Fprint(w, "\r\x1b[K")
			return
		}
	}
}
