// Command run measures everything and writes what it found as Markdown:
// docs/BENCHMARKS.md is made by it. See packages bench and services for what is
// measured, and how.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/bench"
	"github.com/flakelease/allocator/bench/services"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	serve := flag.String("serve", "", "be a server that others are measured beside: tcp, epoll, http, http-limits, grpc or etcd")
	addr := flag.String("addr", "", "where to serve")
	binary := flag.String("allocator", "", "the allocator binary to measure")
	out := flag.String("o", "", "file to write the report to; empty: stdout")
	rounds := flag.Int("rounds", 5, "how often each service is measured")
	slice := flag.Duration("slice", time.Second, "how long a service is measured in a round")
	only := flag.String("only", "", "measure only cases whose group and name this regular expression finds")
	profile := flag.String("cpuprofile", "", "file to write a processor profile of the client to")
	flag.Parse()
	if *serve != "" {
		return services.Serve(*serve, *addr)
	}
	if *binary == "" || *rounds < 1 || *slice <= 0 || flag.NArg() > 0 {
		flag.Usage()
		return errors.New("-allocator is required")
	}
	which, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	r := report{began: time.Now(), rounds: *rounds, slice: *slice, load: loadAverage()}
	if err := r.services(ctx, *binary, which); err != nil {
		return err
	}
	r.inProcess(which)
	if *out == "" {
		r.write(os.Stdout)
		return nil
	}
	var b bytes.Buffer
	r.write(&b)
	return os.WriteFile(*out, b.Bytes(), 0o644)
}

type report struct {
	began    time.Time
	rounds   int
	slice    time.Duration
	load     string // of the machine before
	results  []services.Result
	versions map[string]string
	missing  []string
	times    bench.Times
}

func (r *report) services(ctx context.Context, binary string, only *regexp.Regexp) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var cases []services.Case
	for _, c := range services.Cases() {
		if only.MatchString(c.ID()) {
			cases = append(cases, c)
		}
	}
	if len(cases) == 0 {
		return nil
	}
	w, err := services.Start(ctx, binary, self)
	if err != nil {
		return err
	}
	defer w.Close()
	for _, m := range w.Missing {
		fmt.Fprintln(os.Stderr, "not run:", m)
	}
	r.versions, r.missing = w.Versions, w.Missing
	r.results, err = services.Run(ctx, w, cases, services.Plan{
		Rounds: r.rounds, Warm: r.slice / 4, Slice: r.slice, Seed: uint64(r.began.UnixNano()),
		Tell: func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	return err
}

// rounds of the cases in process: they are short, so that many hit a quiet moment.
const quickRounds, quickSlice = 100, 2 * time.Millisecond

func (r *report) inProcess(only *regexp.Regexp) {
	var cases []bench.Case
	for _, c := range bench.Cases() {
		if only.MatchString(c.Group + ": " + c.Library) {
			cases = append(cases, c)
		}
	}
	fmt.Fprintf(os.Stderr, "in process: %d cases, %d rounds\n", len(cases), quickRounds)
	r.times = bench.Measure(cases, quickRounds, quickSlice)
}

func (r *report) write(w io.Writer) {
	fmt.Fprintf(w, `# Benchmarks

Written by «make bench»: do not edit. It takes some minutes, and runs everything below
again on your machine. Ratios within a run mean something; figures of two runs, or of two
machines, beside each other do not.

| | |
|---|---|
| when | %s, %s |
| commit | %s |
| machine | %s, %d processors for client and servers together, %s |
| system | %s, load %s when it began |
| versions | %s |

`, r.began.UTC().Format("2006-01-02 15:04 UTC"), time.Since(r.began).Round(time.Second), commit(),
		cpuModel(), runtime.NumCPU(), memory(), kernel(), r.load, r.builtWith())
	if v, err := strconv.ParseFloat(r.load, 64); err == nil && v > float64(runtime.NumCPU()) {
		fmt.Fprint(w, "The machine was busy with other work: expect a wide spread, and compare medians.\n\n")
	}
	fmt.Fprintf(w, `## Goals

| | goal | median | of the rounds | |
|---|---|--:|--:|---|
`)
	services.GoalRows(w, r.results)
	r.times.GoalRows(w)
	fmt.Fprintf(w, `
## From another process

Servers and the client are processes of their own on one machine and share its
processors. Three nodes of ours and their etcd run all the time. %d rounds of %v for each
case, in another order in each round. «Empty handlers» answer with the same bytes and do
nothing for it, on the library's default settings. The client is the same for all: it
writes requests by hand for HTTP, Redis and PostgreSQL, and is grpc-go or etcd's own for
the rest. A time is that of one answer, of 16 where as many are asked for at once, or of
64 calls of a prefetching client, of which one takes no longer than reading the clock. The
processor time of PostgreSQL is not known, since it has a process for each connection.

«Steps» says how our IDs of one millisecond follow each other: by random steps (draw)
while the clock keeps up with demand, and by +1 (sustained) once IDs run ahead of it. One
node then has %s IDs a second, which is what the format holds. «Refused» is the worst
round's share of requests that were refused because that was used up.

`, r.rounds, r.slice, services.Count(services.LayoutCap))
	services.Tables(w, r.results)
	fmt.Fprintf(w, `## In process

%d rounds of %v for each case. What another program on the machine does can only add
time: ratios are those of the least times.

`, quickRounds, quickSlice)
	r.times.Tables(w)
	if len(r.missing) > 0 {
		fmt.Fprintf(w, "## Not measured\n\n- %s\n", strings.Join(r.missing, "\n- "))
	}
}

// builtWith lists what is measured, by version.
func (r *report) builtWith() string {
	list := []string{runtime.Version()}
	info, _ := debug.ReadBuildInfo()
	names := []string{
		"google.golang.org/grpc", "go.etcd.io/etcd/server/v3", "github.com/oklog/ulid/v2", "github.com/google/uuid", "github.com/rs/xid",
		"github.com/segmentio/ksuid", "github.com/bwmarrin/snowflake", "github.com/sony/sonyflake",
	}
	for _, name := range names {
		for _, m := range info.Deps {
			if m.Path == name {
				list = append(list, strings.TrimPrefix(name, "github.com/")+" "+m.Version)
			}
		}
	}
	for _, name := range []string{"Redis", "PostgreSQL"} {
		if v := r.versions[name]; v != "" {
			list = append(list, name+" "+v)
		}
	}
	return strings.Join(list, ", ")
}

func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func firstOf(path, prefix string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(strings.TrimLeft(v, "\t :"))
		}
	}
	return "unknown"
}

func cpuModel() string { return firstOf("/proc/cpuinfo", "model name") }

func memory() string {
	var kb int64
	if _, err := fmt.Sscan(firstOf("/proc/meminfo", "MemTotal:"), &kb); err != nil {
		return "memory unknown"
	}
	return fmt.Sprintf("%.0f GiB", float64(kb)/(1<<20))
}

func kernel() string {
	return strings.TrimSpace(runtime.GOOS + " " + firstOf("/proc/sys/kernel/osrelease", ""))
}

func loadAverage() string {
	if f := strings.Fields(firstOf("/proc/loadavg", "")); len(f) > 0 {
		return f[0]
	}
	return "unknown"
}
