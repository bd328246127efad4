package services

import (
	"bufio"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// TestClients: the clients that were written for this understand the servers
// they are used with, and count what comes.
func TestClients(t *testing.T) {
	serve := func(kind string) string {
		addr := loopback.Address()
		ended := make(chan error, 1)
		go func() { ended <- Serve(kind, addr) }()
		for end := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
			if c, err := net.Dial("tcp", addr); err == nil {
				_ = c.Close()
				return addr
			}
			select {
			case err := <-ended:
				t.Fatal(kind, err)
			default:
			}
			if time.Now().After(end) {
				t.Fatalf("%s does not answer", kind)
			}
		}
	}
	tcp, http, limits, grpc := serve("tcp"), serve("http"), serve("http-limits"), serve("grpc")
	clients := map[string]func() (Caller, error){
		"tcp 4":     func() (Caller, error) { return tcpCaller(tcp, 4) },
		"http 4":    func() (Caller, error) { return httpCaller(http, 4) },
		"limits 4":  func() (Caller, error) { return httpCaller(limits, 4) },
		"unary 4":   func() (Caller, error) { return unaryCaller(grpc, 4) },
		"stream 4":  func() (Caller, error) { return streamCaller(grpc, 4, 1) },
		"stream, 4": func() (Caller, error) { return streamCaller(grpc, 1, 4) },
	}
	if runtime.GOOS == "linux" {
		epoll := serve("epoll")
		clients["epoll 4"] = func() (Caller, error) { return respCaller(epoll, 4, 1, "ID.NEXT") }
	}
	for name, open := range clients {
		c, err := open()
		if err != nil {
			t.Fatal(name, err)
		}
		for range 3 {
			if n, err := c.Do(); n != 4 || err != nil {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
		c.Close()
	}
}

func TestReplies(t *testing.T) {
	for in, want := range map[string]error{
		":5\r\n": nil, ":\r\n": nil, "$13\r\n02MVQDZ9NFSQ0\r\n": nil, "*2\r\n$13\r\n02MVQDZ9NFSQ0\r\n$10\r\n0123456789\r\n": nil, "+OK\r\n": nil, "$2\r\nab\r\n": nil, "*2\r\n$1\r\na\r\n:1\r\n": nil,
		"-ENTROPY_OVERFLOW too fast\r\n": ErrRefused,
	} {
		r := bufio.NewReader(strings.NewReader(in))
		if err := skipReply(r); !errors.Is(err, want) {
			t.Errorf("%q: %v", in, err)
		}
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("%q was not read to its end", in)
		}
	}
	// Also where it comes in pieces.
	for n := 1; n < 6; n++ {
		r := bufio.NewReader(iotest.OneByteReader(strings.NewReader("$13\r\n02MVQDZ9NFSQ0\r\n:12\r\n")))
		if _, err := r.Peek(n); err != nil || skipReply(r) != nil || skipReply(r) != nil || r.Buffered() != 0 {
			t.Errorf("in pieces: %v, %d bytes left", err, r.Buffered())
		}
	}
	for _, in := range []string{"$13\r\n02MV", "-ERR no\r\n", "$-1\r\n", "?\r\n", "$5\r\nab", ""} {
		if err := skipReply(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("%q passed", in)
		}
	}
}

// TestLoad: what is counted lies within the slice, and refusals apart.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := Caller{Do: func() (int, error) {
			time.Sleep(time.Millisecond)
			if n++; n%2 == 0 {
				return 0, ErrRefused
			}
			return 10, nil
		}}
		used := func() time.Duration { return 0 }
		s, err := measure(t.Context(), []Caller{c}, 1, 1, 20*time.Millisecond, 200*time.Millisecond, used)
		if err != nil || s.IDs < 4990 || s.IDs > 5010 || s.Refused < 0.49 || s.Refused > 0.51 || s.P50 < 990*time.Microsecond {
			t.Errorf("%+v, %v", s, err)
		}
		broken := Caller{Do: func() (int, error) { return 0, io.ErrUnexpectedEOF }}
		_, err = measure(t.Context(), []Caller{broken}, 1, 1, time.Millisecond, time.Millisecond, used)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
}

// TestGoals: each goal names cases that there are, and is judged by its rounds.
func TestGoals(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range Cases() {
		if ids[c.ID()] || c.Ours != (c.Mode != "") || c.Callers < 1 || (c.Open == nil) == (c.Load == nil) {
			t.Errorf("%+v", c)
		}
		ids[c.ID()] = true
	}
	for _, g := range Goals {
		if !ids[g.Case] || g.Peer != "" && !ids[g.Peer] || (g.AtLeast <= 0) == (g.CPU <= 0) {
			t.Errorf("%+v", g)
		}
	}
	result := func(name string, p99 time.Duration, rates ...float64) Result {
		r := Result{Case: Case{Group: Single, Name: name}}
		for _, v := range rates {
			r.Samples = append(r.Samples, Sample{IDs: v, P99: p99})
		}
		return r
	}
	results := []Result{result("a", 5, 100, 300, 200), result("b", 4, 100, 100, 100)}
	goal := Goal{Case: Single + ": a", Peer: Single + ": b", AtLeast: 2}
	if v := Judge(goal, results); !v.Met || v.Got != (Spread{1, 2, 3}) {
		t.Errorf("%+v", v)
	}
	for factor, met := range map[float64]bool{1: false, 1.2: false, 1.25: true} { // 5 and 4
		goal.P99 = factor
		if v := Judge(goal, results); v.Met != met {
			t.Errorf("p99 at most %v times: %+v", factor, v)
		}
	}
	results[0].Samples[0].CPU, results[0].Samples[1].CPU, results[0].Samples[2].CPU = 2, 2, 2
	results[1].Samples[0].CPU, results[1].Samples[1].CPU, results[1].Samples[2].CPU = 3, 4, 5
	for bound, met := range map[float64]bool{0.49: false, 0.5: true} {
		goal := Goal{Case: goal.Case, Peer: goal.Peer, CPU: bound}
		if v := Judge(goal, results); v.Met != met || v.Got != (Spread{0.4, 0.5, 2.0 / 3}) {
			t.Errorf("processor time at most %v times: %+v", bound, v)
		}
	}
	if v := Judge(Goal{Case: goal.Case, AtLeast: 201}, results); v.Met || !v.Measured {
		t.Errorf("%+v", v)
	}
	if v := Judge(Goal{Case: "none"}, results); v.Met || v.Measured {
		t.Errorf("%+v", v)
	}
}

// TestExternal: what other people's clients print is understood, or an error.
func TestExternal(t *testing.T) {
	const out = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n" +
		"\"ID.NEXT\",\"100000.50\",\"0.4\",\"0.1\",\"0.383\",\"0.7\",\"1.207\",\"3.1\"\n"
	if x, err := parseRedisBenchmark(out, 500); err != nil || x != (external{500, 100000.5, 383 * time.Microsecond, 1207 * time.Microsecond}) {
		t.Errorf("%+v, %v", x, err)
	}
	for _, out := range []string{"", "\"a\"\n", "\"a\",\"b\",\"\",\"\",\"\",\"\",\"\",\"\"\n"} {
		if x, err := parseRedisBenchmark(out, 1); err == nil {
			t.Errorf("%q: %+v", out, x)
		}
	}
}

func TestCount(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1 000", 1234567.4: "1 234 567"} {
		if got := Count(v); got != want {
			t.Errorf("%v: %q", v, got)
		}
	}
}

// Requests of an open loop come at their times: what waits for a slow answer is late by as
// much, and a rate that is not kept is said to be none.
func TestOpenLoop(t *testing.T) {
	slow := func(d time.Duration) []Caller {
		return []Caller{{Do: func() (int, error) { time.Sleep(d); return 1, nil }}}
	}
	synctest.Test(t, func(t *testing.T) {
		// The kernel's sleep takes no simulated time, so that requests are 2 ms early here.
		kept, err := measureOpen(t.Context(), slow(10*time.Millisecond), 50, 0, time.Second)
		if err != nil || !kept.kept() || kept.P50 < 7*time.Millisecond || kept.P50 > 9*time.Millisecond {
			t.Errorf("50 a second: %+v, %v", kept, err)
		}
		behind, err := measureOpen(t.Context(), slow(20*time.Millisecond), 200, 0, time.Second)
		if err != nil || behind.kept() || behind.P99 < 300*time.Millisecond {
			t.Errorf("200 a second of a server that answers 50: %+v, %v", behind, err)
		}
		broken := []Caller{{Do: func() (int, error) { return 0, errors.New("broken") }}}
		if _, err := measureOpen(t.Context(), broken, 50, 0, 100*time.Millisecond); err == nil {
			t.Error("a server that fails was measured")
		}
	})
	var b strings.Builder
	CurveTable(&b, []float64{50, 200, 1000}, []Curve{{"this", []Point{{Rate: 50, Answered: 50, P50: time.Millisecond, P99: 2 * time.Millisecond}, {Rate: 200, Answered: 49}}}})
	if !strings.Contains(b.String(), "| this | 1 000, 2 000 | only 49 | – |\n") {
		t.Errorf("the table:\n%s", &b)
	}
	for _, name := range curved {
		n := 0
		for _, c := range Cases() {
			if c.Group == Single && c.Name == name {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d cases are named %q", n, name)
		}
	}
}

// TestPostgres: the processor time of PostgreSQL is that of the processes which answer, too.
func TestPostgres(t *testing.T) {
	e, err := newEnv("", "")
	fatal.If(t, err)
	defer e.Close()
	if e.startPostgres(t.Context()); e.Postgres == "" {
		t.Skip("not run: ", e.Missing)
	}
	c, err := pgCaller(e.Postgres, "", "select count(*) from generate_series(1, 1000000)")
	fatal.If(t, err)
	defer c.Close()
	pids, err := e.pgServer.Processes()
	fatal.If(t, err)
	used, first := e.CPU(e.Postgres), cpuOf(pids[0])
	if _, err := c.Do(); err != nil {
		t.Fatal(err)
	}
	used, first = e.CPU(e.Postgres)-used, cpuOf(pids[0])-first
	if used < 10*time.Millisecond || first > used/2 {
		t.Errorf("a count of a million rows took %v, %v of it in the first process", used, first)
	}
}

// TestStartChart: a line for each kind has a dot for each round, at its time.
func TestStartChart(t *testing.T) {
	var b strings.Builder
	startChart(&b, []string{"a node", "dev"}, [][]float64{{0.2, 10}, {2000, 9000, 100}})
	for _, want := range []string{
		`>a node</text>
  <circle cx="430" cy="19" r="5"/>
  <circle cx="551" cy="19" r="5"/>
`, `>dev</text>
  <circle cx="830" cy="45" r="5"/>
  <circle cx="830" cy="45" r="5"/>
  <circle cx="672" cy="45" r="5"/>
</svg>
`, `x="672" y="70" text-anchor="middle">100 ms</text>`,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s\nlacks %s", &b, want)
		}
	}
}
