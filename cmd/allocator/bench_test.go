package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
)

func TestSpansShare(t *testing.T) {
	s := func(first, last flake.ID) span { return span{first: first, last: last, stride: 10} }
	for _, c := range []struct {
		before, after span
		want          int64
	}{
		{s(0, 90), s(100, 190), 0}, {s(0, 90), s(90, 190), 1}, {s(0, 90), s(50, 190), 5},
		{s(0, 190), s(50, 90), 5}, {s(50, 50), s(50, 50), 1}, {s(0, 90), s(0, 90), 10},
	} {
		if got := c.after.shared(c.before); got != c.want {
			t.Errorf("%+v, %+v: %d", c.before, c.after, got)
		}
	}
}

// TestIDCheck: duplicates are found within an answer's time and across rounds
// of comparing; what comes too late is said to be unchecked, and never passed.
func TestIDCheck(t *testing.T) {
	ms := func(n int) flake.ID { return flake.ID(n) << flake.LowBits }
	block := func(sid flake.SID, first flake.ID, n int) answered {
		return answered{first: first, count: n, stride: 32, sid: sid}
	}
	list := func(ids ...flake.ID) answered { return answered{list: ids} }
	for name, c := range map[string]struct {
		rounds                 [][]answered // each answer is another caller's
		twice, unchecked, seen int64
	}{
		"apart":                       {[][]answered{{block(1, ms(5), 10), block(1, ms(5)+320, 10)}}, 0, 0, 20},
		"overlapping":                 {[][]answered{{block(1, ms(5), 10), block(1, ms(5)+288, 10)}}, 1, 0, 20},
		"the same":                    {[][]answered{{block(1, ms(5), 10), block(1, ms(5), 10)}}, 10, 0, 20},
		"of another sid":              {[][]answered{{block(1, ms(5), 10), block(2, ms(5)+1, 10)}}, 0, 0, 20},
		"single":                      {[][]answered{{list(ms(5)+7, ms(5)+9), list(ms(5) + 8), list(ms(5) + 9)}}, 1, 0, 4},
		"thrice":                      {[][]answered{{list(ms(5)), list(ms(5)), list(ms(5))}}, 2, 0, 3},
		"rounds later":                {[][]answered{{list(ms(5))}, {list(ms(9))}, {list(ms(5))}}, 1, 0, 3},
		"just forgotten":              {[][]answered{{list(ms(5))}, {list(ms(5 + 2*checkKeep))}, {list(ms(5))}}, 1, 0, 3},
		"long forgotten":              {[][]answered{{list(ms(5)), list(ms(6))}, {list(ms(6 + 2*checkKeep))}, {list(ms(5))}}, 0, 1, 4},
		"in a long one, before":       {[][]answered{{block(1, ms(5), 100)}, {block(1, ms(5+2*checkKeep), 1)}, {block(1, ms(5)+64, 2)}}, 2, 0, 103},
		"kept beside what is settled": {[][]answered{{list(ms(5)), list(ms(5 + 2*checkKeep))}, {list(ms(5 + 2*checkKeep))}}, 1, 0, 3},
	} {
		check := newIDCheck()
		for _, round := range c.rounds {
			for _, d := range round {
				check.add(d, 0)
			}
			check.settle(false)
		}
		check.settle(true)
		if check.twice != c.twice || check.unchecked != c.unchecked || check.checked != c.seen || check.disordered != 0 || len(check.pending) != 0 {
			t.Errorf("%s: twice %d, unchecked %d, checked %d, disordered %d", name, check.twice, check.unchecked, check.checked, check.disordered)
		}
	}

	check := newIDCheck()
	last := check.add(block(1, ms(5), 10), 0)
	if last != ms(5)+9*32 {
		t.Errorf("last is %d", last)
	}
	if check.add(block(1, last, 1), last); check.disordered != 1 {
		t.Errorf("%d out of order, want the one that is the last again", check.disordered)
	}
	if check.add(list(last+3, last+2), last); check.disordered != 2 {
		t.Errorf("%d out of order, want 2", check.disordered)
	}
}

// TestIDCheckForgets: memory holds the last seconds alone.
func TestIDCheckForgets(t *testing.T) {
	check := newIDCheck()
	for i := range 20 * checkKeep {
		check.add(answered{list: []flake.ID{flake.ID(i+1) << flake.LowBits}}, 0)
		if i%100 == 0 {
			check.settle(false)
		}
		if n := len(check.pending) + len(check.fresh); n > checkKeep+200 {
			t.Fatalf("%d kept after %d", n, i)
		}
	}
	if len(check.done) != 1 || check.twice+check.unchecked != 0 {
		t.Errorf("%d sids, %d twice, %d unchecked", len(check.done), check.twice, check.unchecked)
	}
}

// bench runs the command against a handler, by HTTP.
func benchAgainst(t *testing.T, h http.HandlerFunc, args ...string) (code int, out, stderr string) {
	t.Helper()
	return benchUntil(t.Context(), h, args...)
}

// benchUntil is benchAgainst, interrupted when ctx ends.
func benchUntil(ctx context.Context, h http.HandlerFunc, args ...string) (code int, out, stderr string) {
	s := httptest.NewServer(h)
	defer s.Close()
	var o, e strings.Builder
	args = append([]string{"bench", "--via", "http", "--addr", strings.TrimPrefix(s.URL, "http://"), "--warm-up", "0s", "--format", "json"}, args...)
	code = run(ctx, args, strings.NewReader(""), &o, &e, nil)
	return code, o.String(), e.String()
}

func viewOf(t *testing.T, out string) benchView {
	t.Helper()
	var v benchView
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return v
}

// TestBenchFinds: a cluster that gives an ID twice, or lower ones later, does
// not pass.
func TestBenchFinds(t *testing.T) {
	var n atomic.Int64
	for name, next := range map[string]func() int64{
		"twice": func() int64 { return 1<<60 + n.Add(1)/2 },
		"lower": func() int64 { return 1<<60 - n.Add(1) },
	} {
		code, out, stderr := benchAgainst(t, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, flake.ID(next()))
		}, "--for", "200ms", "--callers", "2")
		v := viewOf(t, out)
		if code != exitInvalid || !strings.Contains(stderr, "came twice") || v.Check.Twice+v.Check.Disordered == 0 ||
			name == "twice" && v.Check.Twice == 0 || name == "lower" && v.Check.Twice != 0 {
			t.Errorf("%s: exit code %d, %s%s", name, code, out, stderr)
		}
	}
}

// TestBenchOpenLoop: requests that were due while the server stood are in the
// latencies, from when they were due.
func TestBenchOpenLoop(t *testing.T) {
	var n atomic.Int64
	stall := func(w http.ResponseWriter, _ *http.Request) {
		i := n.Add(1)
		if i == 1 {
			time.Sleep(time.Second)
		}
		fmt.Fprintln(w, flake.ID(1<<60+i))
	}
	code, out, stderr := benchAgainst(t, stall, "--for", "2s", "--callers", "1", "--rate", "100")
	v := viewOf(t, out)
	// Of 200 requests 100 were due during that second: every fifth waited for 0.6 s or more.
	if code != exitOK || v.Requests+v.NotBegun < 195 || v.LatencyNs["p90"] < (500*time.Millisecond).Nanoseconds() {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	n.Store(0)
	code, out, stderr = benchAgainst(t, stall, "--for", "2s", "--callers", "1")
	v = viewOf(t, out)
	if code != exitOK || v.LatencyNs["max"] < time.Second.Nanoseconds() || v.LatencyNs["p50"] > v.LatencyNs["max"]/2 {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
}

// TestBenchInterrupted: who ends a bench early has its figures all the same, and
// what the interrupt cut off is no failure of a node.
func TestBenchInterrupted(t *testing.T) {
	for _, rate := range []string{"0", "200"} {
		ctx, cancel := context.WithCancel(t.Context())
		var n atomic.Int64
		code, out, stderr := benchUntil(ctx, func(w http.ResponseWriter, r *http.Request) {
			i := n.Add(1)
			if i == 50 {
				cancel()
			}
			if i >= 50 {
				<-r.Context().Done()
			}
			fmt.Fprintln(w, flake.ID(1<<60+i))
		}, "--for", "10m", "--callers", "2", "--rate", rate)
		cancel()
		v := viewOf(t, out)
		if code != exitInterrupted || stderr != "" || !v.Early || v.Requests < 40 || v.Requests > 49 || v.Failed != 0 || v.Check.Checked != v.IDs ||
			v.Seconds > 60 || v.NotBegun > 10_000 || v.LatencyNs["p50"] == 0 {
			t.Errorf("rate %s: exit code %d, %s%s", rate, code, out, stderr)
		}
	}
}

// TestBenchRefused: refusals are counted by reason, and are no latencies.
func TestBenchRefused(t *testing.T) {
	code, out, stderr := benchAgainst(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"reason":"NO_SID","detail":"none"}`)
	}, "--for", "100ms", "--callers", "3")
	v := viewOf(t, out)
	if code != exitInvalid || v.Refused["NO_SID"] == 0 || v.Requests != 0 || len(v.LatencyNs) != 0 || !strings.Contains(stderr, "all requests were refused") {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	code, out, stderr = benchAgainst(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }, "--for", "100ms", "--callers", "3")
	if v := viewOf(t, out); code != exitUnavailable || v.Failed == 0 || v.IDs != 0 {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
}

// TestRESPAnswers: what a node writes to a Redis client is read as it is meant.
func TestRESPAnswers(t *testing.T) {
	read := func(in string, count int) (*respDoor, error) {
		d := &respDoor{plan: benchPlan{count: count}, r: bufio.NewReader(strings.NewReader(in))}
		return d, d.read(0)
	}
	if d, err := read("$13\r\n02MVQDZ9NFSQ0\r\n", 1); err != nil || len(d.ids) != 1 || d.ids[0].String() != "02MVQDZ9NFSQ0" {
		t.Error(d.ids, err)
	}
	if d, err := read("*2\r\n$13\r\n02MVQDZ9NFSQ0\r\n$13\r\n02MVQDZ9NFSQ1\r\n", 2); err != nil || len(d.ids) != 2 {
		t.Error(d.ids, err)
	}
	for in, reason := range map[string]string{
		"-ERR ENTROPY_OVERFLOW IDs would run ahead (lead_ms=251)\r\n": "ENTROPY_OVERFLOW",
		"-NOAUTH UNAUTHENTICATED no token\r\n":                        "UNAUTHENTICATED",
	} {
		_, err := read(in, 1)
		if r, ok := errors.AsType[*refusedError](err); !ok || r.reason != reason {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, in := range []string{"", "$-1\r\n", "$3\r\nabc\r\n", "*3\r\n", "*1\r\n*1\r\n", ":1\r\n", "-ERR unknown command\r\n", "$99\r\n", "\r\n"} {
		_, err := read(in, 2)
		if _, refused := err.(*refusedError); err == nil || refused {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestSleepUntil(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, 100 * time.Microsecond, 5 * time.Millisecond} {
		at := time.Now().Add(d)
		if sleepUntil(context.Background(), at); time.Now().Before(at) {
			t.Errorf("%v: woke before its time", d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if sleepUntil(ctx, began.Add(time.Hour)); time.Since(began) > time.Minute {
		t.Error("slept on after its context had ended")
	}
}
