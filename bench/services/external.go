package services

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Groups of cases whose client is redis-benchmark.
const (
	RedisBenchmark          = "one ID a request by redis-benchmark, 64 connections"
	RedisBenchmarkPipelined = "16 requests at once by redis-benchmark, 64 connections"
	RedisThreads            = "16 requests at once by redis-benchmark with two threads, 64 connections"
	RedisSocket             = "one ID a request by redis-benchmark on a Unix socket, 64 connections"
	RedisSocketPipelined    = "16 requests at once by redis-benchmark on a Unix socket, 64 connections"
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

// externalCases returns the cases of redis-benchmark.
func externalCases() (list []Case) {
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
			return func(e *Env) []string {
				if addr(e) == "" || e.RedisBenchmark == "" {
					return nil
				}
				return []string{known(e)}
			}
		}
		add := func(name string, addr, known func(*Env) string, command []string) *Case {
			list = append(list, Case{
				Group:   c.group,
				Name:    name,
				Callers: conns,
				PerOp:   c.depth,
				Servers: servers(addr, known),
				Load:    redisBenchmark(addr, conns, c.depth, command...),
			})
			return &list[len(list)-1]
		}
		floor := func(e *Env) string { return c.on(e).Epoll }
		add(constant, floor, floor, id)
		add("Redis INCR", func(e *Env) string { return c.on(e).Server }, redis, incr)
		own := add("this, RESP", func(e *Env) string { return c.on(e).Node },
			func(e *Env) string { return c.on(e).GRPC }, id)
		own.Ours, own.Mode = true, c.mode
	}
	return list
}

// findTools looks for the program that externalCases run.
func (e *Env) findTools() {
	var err error
	if e.RedisBenchmark, err = exec.LookPath("redis-benchmark"); err != nil {
		e.Missing = append(e.Missing,
			"what redis-benchmark measures: it is not installed (Debian: apt-get install redis-tools)")
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
		out, err := exec.CommandContext(ctx, e.RedisBenchmark, args...).Output()
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

func stderrOf(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}
