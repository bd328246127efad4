// Command run measures everything and writes the results as Markdown. See packages bench
// and services for what is measured, and how; docs/RESULTS.md has a summary.
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
	serve := flag.String("serve", "", "run a server to compare with: tcp, epoll, http, http-limits, grpc, etcd "+
		"or etcd-member")
	addr := flag.String("addr", "", "address to serve at")
	binary := flag.String("allocator", "", "the allocator binary to measure")
	out := flag.String("o", "", "file for the report, written from a clean commit on a quiet machine, else printed")
	keep := flag.String("json", "", "directory that gets a file with the numbers of the run")
	rounds := flag.Int("rounds", 5, "number of rounds")
	slice := flag.Duration("slice", time.Second, "duration of one measurement of a service")
	only := flag.String("only", "", "measure only cases whose \"group: name\" matches this regular expression")
	peers := flag.Bool("peers", false, "measure the cases in process alone, and fail if a goal is missed")
	sql := flag.Bool("sql", false, "measure inserts into PostgreSQL with -allocator alone")
	failover := flag.Bool("failover", false, "end the node, primary or leader of each service under callers alone")
	cores := flag.Bool("cores", false, "measure -allocator on 1, 2, 4 and more processors alone")
	starts := flag.Bool("starts", false, "measure the time from a start of -allocator until the first ID alone; -o "+
		"gets a chart")
	dev := flag.Bool("dev", false, "measure nodes of the commands serve and dev of -allocator alone")
	curve := flag.Bool("curve", false, "measure the latency at fixed rates of cases that match -only alone")
	flag.Parse()
	if *serve != "" {
		return services.Serve(*serve, *addr)
	}
	which, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if *peers {
		return inProcess(os.Stdout, which)
	}
	if *binary == "" || *rounds < 1 || *slice <= 0 || flag.NArg() > 0 {
		flag.Usage()
		return errors.New("-allocator is required")
	}
	if *sql || *failover || *starts || *cores || *curve || *dev {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		fmt.Printf("commit %s, load %s when it began\n", commit(), loadAverage())
		switch {
		case *sql:
			return services.SQL(ctx, *binary, *rounds, *slice, os.Stdout)
		case *failover:
			return services.Failover(ctx, *binary, self, *rounds, os.Stdout, os.Stderr)
		case *starts:
			var picture bytes.Buffer
			if err := services.Starts(ctx, *binary, self, *rounds, os.Stdout, &picture); err != nil || *out == "" {
				return err
			}
			return os.WriteFile(*out, picture.Bytes(), 0o644)
		case *dev:
			return services.Dev(ctx, *binary, self, plan(*rounds, *slice), os.Stdout)
		case *curve:
			return curves(ctx, *binary, self, which, plan(*rounds, *slice))
		}
		return services.Cores(ctx, *binary, self, plan(*rounds, *slice), os.Stdout)
	}
	r := report{began: time.Now(), rounds: *rounds, slice: *slice, load: loadAverage(), spins: spins()}
	if err := r.services(ctx, *binary, which); err != nil {
		return err
	}
	r.times = measureInProcess(which)
	r.spins = append(r.spins, spins()...)
	if *keep != "" {
		if err := r.keep(*keep); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	r.write(&b)
	because := unfit(commit(), r.load, runtime.NumCPU(), r.spins)
	if *out == "" || len(because) > 0 {
		_, err := os.Stdout.Write(b.Bytes())
		if *out != "" {
			fmt.Fprintf(os.Stderr, "%s is left as it was: %s\n", *out, strings.Join(because, "; "))
		}
		return err
	}
	return os.WriteFile(*out, b.Bytes(), 0o644)
}

type report struct {
	began    time.Time
	rounds   int
	slice    time.Duration
	load     string // load average before the run
	spins    []time.Duration
	results  []services.Result
	curves   []services.Curve
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
	plan := plan(r.rounds, r.slice)
	if r.results, err = services.Run(ctx, w, cases, plan); err != nil || only.String() != "" {
		return err
	}
	plan.Slice *= 3
	r.curves, err = services.Curves(ctx, w, only, services.Rates, plan)
	return err
}

// curves prints the latency at fixed rates in some rounds: compare cases of one round.
func curves(ctx context.Context, binary, self string, only *regexp.Regexp, p services.Plan) error {
	w, err := services.Start(ctx, binary, self)
	if err != nil {
		return err
	}
	defer w.Close()
	for range p.Rounds {
		all, err := services.Curves(ctx, w, only, services.Rates, p)
		if err != nil {
			return err
		}
		services.CurveTable(os.Stdout, services.Rates, all)
	}
	return nil
}

func plan(rounds int, slice time.Duration) services.Plan {
	return services.Plan{
		Rounds: rounds,
		Warm:   slice / 4,
		Slice:  slice,
		Seed:   uint64(time.Now().UnixNano()),
		Notify: func(line string) { fmt.Fprintln(os.Stderr, line) },
	}
}

// Rounds of the cases in process: they are short, so that many run undisturbed.
const quickRounds, quickSlice = 100, 2 * time.Millisecond

func measureInProcess(only *regexp.Regexp) bench.Times {
	var cases []bench.Case
	for _, c := range bench.Cases() {
		if only.MatchString(c.Group + ": " + c.Library) {
			cases = append(cases, c)
		}
	}
	fmt.Fprintf(os.Stderr, "in process: %d cases, %d rounds\n", len(cases), quickRounds)
	return bench.Measure(cases, quickRounds, quickSlice)
}

// inProcess writes the times of the cases in process, and returns an error if one missed its goal. The median of the
// ratios of all rounds is beside each ratio of minimum times: if the two differ much, the machine was busy.
func inProcess(w io.Writer, only *regexp.Regexp) error {
	times := measureInProcess(only)
	times.Tables(w)
	fmt.Fprintln(w, "| | goal | got | | |\n|---|---|--:|--:|---|")
	times.GoalRows(w)
	for _, v := range times.Judge() {
		if v.Measured && !v.Met {
			return fmt.Errorf("%s: the goal is missed", v.Group)
		}
	}
	return nil
}

func (r *report) write(w io.Writer) {
	fmt.Fprintf(w, `# Benchmarks

Generated by `+"`make bench`"+`. Compare ratios within one run only: times of two runs, or of two machines, are
not comparable.

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

Servers and the client are separate processes on one machine and share its processors.
Three of our nodes and their etcd run all the time. Each case runs in %d rounds of %v, in
another order in each round. An "empty handler" answers with the same bytes and does
nothing else, with the library's default settings. The client is the same for all: it
writes requests by hand for HTTP, Redis and PostgreSQL, and uses grpc-go or etcd's client
for the rest. A time is that of one answer; of 16 answers where 16 requests are sent at
once; or of 64 calls of a prefetching client, since one call takes no longer than a clock
read. The processor time of PostgreSQL is that of its process for each connection, and of
the others it has. redis-benchmark is measured by itself.

"Steps" is how our IDs within one millisecond differ: by random steps (draw) while the
clock keeps up with demand, and by +1 (sustained) once IDs run ahead of it. One node then
has %s IDs a second, which is the capacity of the format. "Refused" is the share of
requests that were refused because that capacity was used up, in the worst round.

`, r.rounds, r.slice, services.Count(services.LayoutCap))
	services.Tables(w, r.results)
	services.CurveTable(w, services.Rates, r.curves)
	fmt.Fprintf(w, `## In process

Each case runs in %d rounds of %v. Other load on the machine can only add time: ratios are
those of the minimum times.

`, quickRounds, quickSlice)
	r.times.Tables(w)
	if len(r.missing) > 0 {
		fmt.Fprintf(w, "## Not measured\n\n- %s\n", strings.Join(r.missing, "\n- "))
	}
}

// builtWith lists the versions of what is measured.
func (r *report) builtWith() string {
	list := []string{runtime.Version()}
	info, _ := debug.ReadBuildInfo()
	names := []string{
		"google.golang.org/grpc", "go.etcd.io/etcd/server/v3", "github.com/oklog/ulid/v2", "github.com/google/uuid",
		"github.com/rs/xid",
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
