package services

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Groups of cases whose client is somebody else's program.
const (
	RedisBenchmark          = "one ID a request by redis-benchmark, 64 connections"
	RedisBenchmarkPipelined = "16 requests at once by redis-benchmark, 64 connections"
	RedisThreads            = "16 requests at once by redis-benchmark with two threads, 64 connections"
	RedisSocket             = "one ID a request by redis-benchmark on a Unix socket, 64 connections"
	RedisSocketPipelined    = "16 requests at once by redis-benchmark on a Unix socket, 64 connections"
	Wrk                     = "one ID a request by wrk, 64 connections"
)

// A Load runs another program as the client, for about as long as told.
type Load func(ctx context.Context, e *Env, length time.Duration) (external, error)

// external is what such a program measured.
type external struct {
	requests float64 // sent in all
	rate     float64 // a second
	p50, p99 time.Duration
}

// measureExternal runs l, and adds the processor time of the servers.
func measureExternal(ctx context.Context, e *Env, l Load, warm, slice time.Duration,
	cpu func() time.Duration) (Sample, error) {
	if _, err := l(ctx, e, warm); err != nil {
		return Sample{}, err
	}
	used := cpu()
	x, err := l(ctx, e, slice)
	if err != nil {
		return Sample{}, err
	}
	used = cpu() - used
	return Sample{
		IDs:      x.rate,
		Requests: x.rate,
		P50:      x.p50,
		P99:      x.p99,
		CPU:      time.Duration(float64(used) / x.requests),
	}, nil
}

// externalCases returns the cases of redis-benchmark and wrk.
func externalCases() (list []Case) {
	const conns, pipe = 64, 16
	with := func(tool string, servers func(*Env) []string) func(*Env) []string {
		return func(e *Env) []string {
			if e.Tool[tool] == "" {
				return nil
			}
			return servers(e)
		}
	}
	for _, c := range []struct {
		group, mode string
		depth       int
		on          func(*Env) Redis
		options     []string
	}{
		{RedisBenchmark, draw, 1, func(e *Env) Redis { return e.TCP }, nil},
		{RedisBenchmarkPipelined, sustained, pipe, func(e *Env) Redis { return e.TCP }, nil},
		// A client of one thread is busy before the server is.
		{RedisThreads, sustained, pipe, func(e *Env) Redis { return e.TCP }, []string{"--threads", "2"}},
		{RedisSocket, draw, 1, func(e *Env) Redis { return e.Socket }, nil},
		{RedisSocketPipelined, sustained, pipe, func(e *Env) Redis { return e.Socket }, nil},
	} {
		id, incr := slices.Concat(c.options, []string{"ID.NEXT"}), slices.Concat(c.options, []string{"INCR", "id"})
		// servers are none where there is no address, and else those of another address that is known.
		servers := func(addr, known func(*Env) string) func(*Env) []string {
			return with("redis-benchmark", func(e *Env) []string {
				if addr(e) == "" {
					return nil
				}
				return []string{known(e)}
			})
		}
		constant := func(e *Env) string { return c.on(e).Epoll }
		list = append(list, Case{
			Group:   c.group,
			Name:    "a constant answer by epoll, one thread (floor)",
			Callers: conns,
			PerOp:   c.depth,
			Servers: servers(constant, constant),
			Load:    redisBenchmark(constant, conns, c.depth, id...),
		})
		if c.group == RedisBenchmark || c.group == RedisBenchmarkPipelined {
			list = append(list, Case{
				// The echo of a command is a valid answer: an array of its words.
				Group:   c.group,
				Name:    "an echo over TCP, Go (floor)",
				Callers: conns,
				PerOp:   c.depth,
				Servers: with("redis-benchmark", peer("tcp")),
				Load:    redisBenchmark(func(e *Env) string { return e.Peer["tcp"] }, conns, c.depth, "ID.NEXT"),
			})
		}
		theirs, ours := func(e *Env) string { return c.on(e).Server }, func(e *Env) string { return c.on(e).Node }
		list = append(list,
			Case{
				Group:   c.group,
				Name:    "Redis INCR",
				Callers: conns,
				PerOp:   c.depth,
				Servers: servers(theirs, func(e *Env) string { return e.Redis }),
				Load:    redisBenchmark(theirs, conns, c.depth, incr...),
			},
			Case{
				Group:   c.group,
				Name:    "this, RESP",
				Ours:    true,
				Mode:    c.mode,
				Callers: conns,
				PerOp:   c.depth,
				Servers: servers(ours, func(e *Env) string { return c.on(e).GRPC }),
				Load:    redisBenchmark(ours, conns, c.depth, id...),
			})
	}
	return append(list,
		Case{
			Group:   Wrk,
			Name:    "an empty handler, net/http",
			Callers: conns,
			Servers: with("wrk", peer("http")),
			Load:    wrk(func(e *Env) string { return e.Peer["http"] }, conns),
		},
		Case{
			Group:   Wrk,
			Name:    "this, HTTP",
			Ours:    true,
			Mode:    draw,
			Callers: conns,
			Servers: with("wrk", grpcNodes(1)),
			Load:    wrk(func(e *Env) string { return e.Node[0].HTTP }, conns),
		})
}

// findTools looks for the programs that externalCases run.
func (e *Env) findTools() {
	e.Tool = map[string]string{}
	for tool, from := range map[string]string{"redis-benchmark": "redis-tools", "wrk": "wrk"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			e.Missing = append(e.Missing,
				fmt.Sprintf("what %s measures: it is not installed (Debian: apt-get install %s)", tool, from))
			continue
		}
		e.Tool[tool] = path
	}
}

// redisBenchmark takes a number of requests, not a time: the number is that of a
// short run before it, times as many.
func redisBenchmark(addr func(*Env) string, conns, depth int, command ...string) Load {
	once := func(ctx context.Context, e *Env, requests int) (external, error) {
		host, port, _ := net.SplitHostPort(addr(e))
		server := []string{"-h", host, "-p", port}
		if path, ok := strings.CutPrefix(addr(e), unixPrefix); ok {
			server = []string{"-s", path}
		}
		args := slices.Concat(server, []string{"-c", strconv.Itoa(conns), "-P", strconv.Itoa(depth),
			"-n", strconv.Itoa(requests), "--csv"}, command)
		out, err := exec.CommandContext(ctx, e.Tool["redis-benchmark"], args...).Output()
		if err != nil {
			return external{}, fmt.Errorf("redis-benchmark: %w: %s", err, stderrOf(err))
		}
		return parseRedisBenchmark(string(out), requests)
	}
	return func(ctx context.Context, e *Env, length time.Duration) (external, error) {
		first, err := once(ctx, e, 20_000*depth)
		if err != nil {
			return external{}, err
		}
		before := time.Now()
		x, err := once(ctx, e, max(int(first.rate*length.Seconds()), 1000))
		if took := time.Since(before); err == nil && took > 20*length+10*time.Second {
			return x, fmt.Errorf("redis-benchmark took %v for %v", took, length)
		}
		x.requests += first.requests // their processor time counts too
		return x, err
	}
}

// parseRedisBenchmark reads the last line of the output: name, requests a second,
// then latencies in ms: mean, minimum, p50, p95, p99, maximum.
func parseRedisBenchmark(out string, requests int) (external, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	row, err := csv.NewReader(strings.NewReader(lines[len(lines)-1])).Read()
	if err != nil || len(row) < 8 {
		return external{}, fmt.Errorf("redis-benchmark: unknown output %q", out)
	}
	var v [8]float64
	for i, s := range row[1:8] {
		if v[i+1], err = strconv.ParseFloat(s, 64); err != nil {
			return external{}, fmt.Errorf("redis-benchmark: unknown output %q", out)
		}
	}
	ms := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
	return external{requests: float64(requests), rate: v[1], p50: ms(v[4]), p99: ms(v[6])}, nil
}

// wrkScript posts, and prints what parseWrk reads.
const wrkScript = `wrk.method = "POST"
wrk.headers["Accept"] = "text/plain"
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("result %d %d %f %f %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
`

func wrk(addr func(*Env) string, conns int) Load {
	return func(ctx context.Context, e *Env, length time.Duration) (external, error) {
		script := filepath.Join(e.dir, "post.lua")
		if err := os.WriteFile(script, []byte(wrkScript), 0o644); err != nil {
			return external{}, err
		}
		seconds := max(1, int(length.Round(time.Second)/time.Second)) // it knows no shorter time
		out, err := exec.CommandContext(ctx, e.Tool["wrk"], "-t", "1", "-c", strconv.Itoa(conns),
			"-d", strconv.Itoa(seconds), "-s", script,
			"http://"+addr(e)+"/v1/ids").Output()
		if err != nil {
			return external{}, fmt.Errorf("wrk: %w: %s", err, stderrOf(err))
		}
		return parseWrk(string(out))
	}
}

// parseWrk reads the line of wrkScript: requests, then µs: duration, p50, p99; then
// failures.
func parseWrk(out string) (x external, err error) {
	_, line, _ := strings.Cut(out, "\nresult ")
	var took, p50, p99, failures float64
	if _, err := fmt.Sscan(line, &x.requests, &took, &p50, &p99, &failures); err != nil || took <= 0 {
		return x, fmt.Errorf("wrk: unknown output %q", out)
	}
	if failures > 0 {
		return x, fmt.Errorf("wrk: %.0f of %.0f requests failed", failures, x.requests)
	}
	us := func(v float64) time.Duration { return time.Duration(v * float64(time.Microsecond)) }
	x.rate, x.p50, x.p99 = x.requests/us(took).Seconds(), us(p50), us(p99)
	return x, nil
}

func stderrOf(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}
