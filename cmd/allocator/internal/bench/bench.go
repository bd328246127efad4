// Package bench holds the command that puts load on a running cluster.
package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/load"
	"github.com/flakelease/allocator/internal/text"
)

// Bounds of a bench.
const (
	maxCallers = 10_000
	timeout    = 10 * time.Second // A request may take this long.
)

// plan holds the flags of bench.
type plan struct {
	addrs  []string
	via    string
	count  int
	dialer remote.Dialer
	load.Plan
	callers int
}

// Command returns "allocator bench".
func Command(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a cluster under load",
		Long: `Bench requests IDs for some time and prints throughput, latency and refusals. It also
checks that no ID is returned twice and that the IDs of each caller rise. The IDs are
used up.

Without --rate, each caller sends its next request as soon as the last one is answered
(closed loop). That shows the highest throughput, but hides what users see of a stall. With
--rate, requests are due at fixed times, and latency counts from then (open loop). Set
--callers to at least the number of requests that may be under way at the same time.

Each caller has its own connection, to the addresses in turn; with --via sdk all callers
share one client of the Go SDK. An interrupt (Ctrl-C) prints the results so far. The exit
code is 1 if an ID came twice, IDs of a caller did not rise, or all requests were refused.`,
		Example: `  allocator bench --for 30s
  allocator bench --addr 10.0.0.5:9000,10.0.0.6:9000 --rate 10000 --via stream
  allocator bench --via http --addr 10.0.0.5:8080 --count 100
  allocator bench --via sdk --callers 1000 --format json`,
		Args: cobra.NoArgs,
	}
	p := plan{}
	flags := cmd.Flags()
	addrs := flags.StringSlice("addr", nil,
		"addresses of nodes, comma-separated or repeated (or $"+config.EnvAddr+" for gRPC; default the listener's "+
			"port on this machine)")
	via := cli.Choose(cmd, "via", "API to use", load.GRPC, load.Stream, load.HTTP, load.RESP, load.SDK)
	flags.IntVar(&p.callers, "callers", 64, "number of concurrent callers")
	flags.IntVar(&p.count, "count", 1, "IDs per request")
	flags.DurationVar(&p.Length, "for", 10*time.Second, "duration of the measurement")
	flags.DurationVar(&p.WarmUp, "warm-up", time.Second, "duration of the load before it")
	flags.Float64Var(&p.Rate, "rate", 0, "requests a second of all callers together; 0: no limit (closed loop)")
	noCheck := flags.Bool("no-check", false, "do not check the IDs, which costs CPU time on this machine")
	format := cli.FormatFlag(cmd)
	dialing := remote.DialFlags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		p.via, p.Check = via.Value, !*noCheck
		p.addrs = addrsOf(a, *addrs, cmd.Flags().Changed("addr"), p.via)
		if err := p.valid(); err != nil {
			return err
		}
		if p.dialer, err = dialing(); err != nil {
			return err
		}
		progress := a.Progress()
		r, err := p.run(cmd.Context(), progress)
		progress.End()
		if err != nil {
			return err
		}
		if format.Value == "json" {
			err = cli.PrintLine(a.Out, r.json())
		} else {
			err = r.print(a.Out)
		}
		if err != nil {
			return err
		}
		return r.verdict()
	}
	return cmd
}

// addrsOf returns the addresses to ask, each without spaces.
func addrsOf(a *cli.App, list []string, given bool, via string) []string {
	listen := config.Default().Listen
	def := listen.GRPC
	switch via {
	case load.HTTP:
		def = listen.HTTP
	case load.RESP:
		def = respAddr
	default:
		if env := a.Getenv(config.EnvAddr); env != "" && !given {
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

// respAddr is the address of the Redis protocol listener in the examples. Nodes
// have that listener only if they are configured to.
const respAddr = "127.0.0.1:6380"

func (p plan) valid() error {
	largest := 1_000_000
	if p.via == load.HTTP || p.via == load.RESP {
		largest = 10_000
	}
	switch {
	case len(p.addrs) == 0:
		return cli.UsageError("--addr: no address is given")
	case p.callers < 1 || p.callers > maxCallers:
		return cli.UsageError("--callers is %d: it has to be 1 to %d", p.callers, maxCallers)
	case p.count < 1 || p.count > largest:
		return cli.UsageError("--count is %d: by %s a request may ask for 1 to %d", p.count, p.via, largest)
	case p.Length <= 0:
		return cli.UsageError("--for is %v: it has to be above 0", p.Length)
	case p.WarmUp < 0:
		return cli.UsageError("--warm-up is %v: it has to be 0 or more", p.WarmUp)
	case !(p.Rate >= 0) || p.Rate > 10_000_000:
		return cli.UsageError("--rate is %v: it has to be 0 to 10000000", p.Rate)
	}
	return nil
}

// run carries the plan out and shows its progress.
func (p plan) run(ctx context.Context, progress *cli.Progress) (*result, error) {
	clients, err := p.open()
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	p.Timeout = timeout
	for i := range p.callers {
		addr := p.addrs[i%len(p.addrs)]
		p.Workers = append(p.Workers, load.Worker{
			Targets: []load.Target{{
				Name:   addr,
				Client: clients[i%len(clients)],
			}},
			Counts:  []int{p.count},
			Ordered: p.via == load.SDK,
		}) // the SDK's order holds whichever node answers
	}
	run := load.New(p.Plan)
	progress.Set("%v", stringer(func() string { return p.progress(run.Result()) }))
	r := &result{Result: run.Run(ctx), plan: p, interrupted: ctx.Err() != nil}
	if r.interrupted && r.Took <= 0 {
		return nil, cli.ErrInterrupted // nothing was measured yet
	}
	return r, nil
}

// open returns a client for each caller, or the one that they share. They contact
// nobody yet. The error comes with the clients to close.
func (p plan) open() (clients []load.Client, err error) {
	config := load.Config{Token: p.dialer.Token, GRPC: p.dialer.Opts}
	if p.dialer.TLS != nil {
		config.TLS = p.dialer.TLS.Config()
	}
	for _, a := range p.addrs {
		if _, _, err := net.SplitHostPort(a); err != nil || strings.HasPrefix(a, ":") {
			return nil, remote.NotHostPort(a)
		}
	}
	if err := p.dialer.MayCall(p.addrs...); err != nil {
		return nil, err
	}
	if p.via == load.SDK {
		c, err := config.OpenSDK(client.Options{Targets: p.addrs, Timeout: timeout})
		if err != nil {
			return nil, cli.UsageError("--via sdk: %w", err)
		}
		return []load.Client{c}, nil
	}
	for i := range p.callers {
		addr := p.addrs[i%len(p.addrs)]
		c, err := config.Open(p.via, addr)
		if err != nil {
			return clients, cli.UsageError("--addr: %q: %w", addr, err)
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// stringer is a text that is made when it is shown.
type stringer func() string

func (s stringer) String() string { return s() }

// progress is a line about a run under way.
func (p plan) progress(r *load.Result) string {
	if r.Took <= 0 {
		return fmt.Sprintf("warming up: %d IDs", r.Drawn)
	}
	refused, _ := r.Refusals()
	return fmt.Sprintf("%v left: %.0f requests/s, %d IDs, %d refused, %d failed, p50 %v, p99 %v",
		(p.Length - r.Took).Round(time.Second), float64(r.Requests)/r.Took.Seconds(), r.Drawn, refused, r.Failed,
		shortly(time.Duration(r.Latency.ValueAtQuantile(50))), shortly(time.Duration(r.Latency.ValueAtQuantile(99))))
}

// result is what a bench found.
type result struct {
	*load.Result
	plan        plan
	interrupted bool // before the time was over
}

var percentiles = []struct {
	name string
	at   float64
}{{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}, {"p99.99", 99.99}}

func (r *result) rate(n int64) float64 { return float64(n) / r.Took.Seconds() }

func (r *result) loop() string {
	if r.plan.Rate > 0 {
		return fmt.Sprintf("open loop at %g requests/s: latency counts from when a request was due", r.plan.Rate)
	}
	return "closed loop: latencies leave out requests that were not sent during a stall; use --rate to include them"
}

func (r *result) print(w io.Writer) error {
	var b strings.Builder
	p := r.plan
	fmt.Fprintf(&b, "%s by %s, %s each, %v after %v\n%s\n\n", text.Count(p.callers, "caller"), p.via,
		text.Count(p.count, "ID"), r.Took.Round(10*time.Millisecond), p.WarmUp, r.loop())
	if r.interrupted {
		fmt.Fprintf(&b, "interrupted; %v were requested\n", p.Length)
	}
	fmt.Fprintf(&b, "requests    %12d  %12.0f/s\n", r.Requests, r.rate(r.Requests))
	fmt.Fprintf(&b, "IDs         %12d  %12.0f/s\n", r.IDs, r.rate(r.IDs))
	sum, reasons := r.Refusals()
	fmt.Fprintf(&b, "refused     %12d", sum)
	for _, reason := range reasons {
		fmt.Fprintf(&b, "  %s %d", reason, r.Refused[reason])
	}
	fmt.Fprintf(&b, "\nfailed      %12d", r.Failed)
	if r.Failed > 0 {
		fmt.Fprintf(&b, "  %v", r.Failure)
	}
	b.WriteByte('\n')
	if p.Rate > 0 {
		fmt.Fprintf(&b, "not started %12d  were due and no caller was free: use more --callers\n", r.NotStarted)
	}
	if r.Requests > 0 {
		b.WriteString("latency   ")
		for _, at := range percentiles {
			fmt.Fprintf(&b, "  %s %v", at.name, shortly(time.Duration(r.Latency.ValueAtQuantile(at.at))))
		}
		fmt.Fprintf(&b, "  max %v\n", shortly(time.Duration(r.Latency.Max())))
	}
	if c := r.Check; c != nil {
		fmt.Fprintf(&b, "checked     %12d  IDs: %d duplicates, %d out of order", c.Checked, c.Duplicates, c.OutOfOrder)
		if c.Unchecked > 0 {
			fmt.Fprintf(&b, "; %d came too late to be compared", c.Unchecked)
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

// view is the result as JSON: durations in nanoseconds.
type view struct {
	Via        string           `json:"via"`
	Callers    int              `json:"callers"`
	Count      int              `json:"count"`
	Rate       float64          `json:"rate"` // 0: closed loop
	Seconds    float64          `json:"seconds"`
	Early      bool             `json:"interrupted,omitempty"` // before the time was over
	Requests   int64            `json:"requests"`
	PerSecond  float64          `json:"requests_per_second"`
	IDs        int64            `json:"ids"`
	IDsPerSec  float64          `json:"ids_per_second"`
	Refused    map[string]int64 `json:"refused"`
	Failed     int64            `json:"failed"`
	Failure    string           `json:"failure,omitempty"`
	NotStarted int64            `json:"not_started"`
	LatencyNs  map[string]int64 `json:"latency_ns"`
	Check      *checkView       `json:"check"` // null: not asked for
}

type checkView struct {
	Checked    int64 `json:"checked"`
	Duplicates int64 `json:"duplicates"`
	OutOfOrder int64 `json:"out_of_order"`
	Unchecked  int64 `json:"unchecked"`
}

func (r *result) json() view {
	v := view{
		Via:        r.plan.via,
		Callers:    r.plan.callers,
		Count:      r.plan.count,
		Rate:       r.plan.Rate,
		Seconds:    r.Took.Seconds(),
		Early:      r.interrupted,
		Requests:   r.Requests,
		PerSecond:  r.rate(r.Requests),
		IDs:        r.IDs,
		IDsPerSec:  r.rate(r.IDs),
		Refused:    r.Refused,
		Failed:     r.Failed,
		NotStarted: r.NotStarted,
		LatencyNs:  map[string]int64{},
	}
	if r.Failed > 0 {
		v.Failure = r.Failure.Error()
	}
	if r.Requests > 0 {
		for _, at := range percentiles {
			v.LatencyNs[at.name] = r.Latency.ValueAtQuantile(at.at)
		}
		v.LatencyNs["max"] = r.Latency.Max()
	}
	if r.Check != nil {
		c := checkView(*r.Check)
		v.Check = &c
	}
	return v
}

// verdict is the error that the command ends with.
func (r *result) verdict() error {
	refused, _ := r.Refusals()
	switch c := r.Check; {
	case c != nil && c.Duplicates+c.OutOfOrder > 0:
		return cli.Exit(cli.ExitInvalid,
			fmt.Errorf("the IDs are not sound: %d duplicates, %d out of order; do not use them, and report it as "+
				"SECURITY.md describes", c.Duplicates, c.OutOfOrder))
	case r.interrupted:
		return cli.ErrInterrupted
	case r.Requests > 0:
		return nil
	case refused > 0:
		return cli.Exit(cli.ExitInvalid, fmt.Errorf("all requests were refused: %w", r.Refusal))
	case r.Failure != nil:
		if hint := r.plan.dialer.Hint(r.Failure.Error()); hint != "" { // something answers
			return cli.Exit(cli.ExitUnavailable, fmt.Errorf("%s%w", hint, r.Failure))
		}
		return cli.Exit(cli.ExitUnavailable,
			fmt.Errorf("no node answers: %w\nIs a node running at %s? --via %s uses that listener alone",
				r.Failure, strings.Join(r.plan.addrs, ", "), r.plan.via))
	}
	return cli.Exit(cli.ExitUnavailable, fmt.Errorf("no answer came within %v", r.plan.Length))
}
