package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/load"
)

// benchAgainst runs the command against a handler, by HTTP.
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
	code = cli.Run(ctx, args, strings.NewReader(""), &o, &e, nil, "", func(a *cli.App) *cobra.Command {
		root := &cobra.Command{Use: "allocator"}
		root.AddCommand(Command(a))
		return root
	})
	return code, o.String(), e.String()
}

func viewOf(t *testing.T, out string) view {
	t.Helper()
	var v view
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return v
}

// TestBenchFinds: a cluster that returns an ID twice, or lower ones later, does
// not pass.
func TestBenchFinds(t *testing.T) {
	var n atomic.Int64
	for name, next := range map[string]func() int64{
		"twice": func() int64 { return 1<<60 + n.Add(1)/2 },
		"lower": func() int64 { return 1<<60 - n.Add(1) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var asked atomic.Int64
		code, out, stderr := benchUntil(ctx, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 100 {
				cancel()
			}
			fmt.Fprintln(w, flake.ID(next()))
		}, "--for", "10m", "--callers", "2")
		cancel()
		v := viewOf(t, out)
		if code != cli.ExitInvalid || !strings.Contains(stderr, "not sound") || v.Check.Duplicates+v.Check.OutOfOrder == 0 ||
			name == "twice" && v.Check.Duplicates == 0 || name == "lower" && v.Check.Duplicates != 0 {
			t.Errorf("%s: exit code %d, %s%s", name, code, out, stderr)
		}
	}
}

// TestBenchOpenLoop: requests that were due while the server stalled are in the
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
	if code != cli.ExitOK || v.Requests+v.NotStarted < 195 || v.LatencyNs["p90"] < (500*time.Millisecond).Nanoseconds() {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	n.Store(0)
	code, out, stderr = benchAgainst(t, stall, "--for", "2s", "--callers", "1")
	v = viewOf(t, out)
	if code != cli.ExitOK || v.LatencyNs["max"] < time.Second.Nanoseconds() || v.LatencyNs["p50"] > v.LatencyNs["max"]/2 {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
}

// TestBenchInterrupted: an interrupted bench prints its results, and requests that
// the interrupt cut off are no failures of a node.
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
		if code != cli.ExitInterrupted || stderr != "" || !v.Early || v.Requests < 40 || v.Requests > 49 || v.Failed != 0 || v.Check.Checked != v.IDs ||
			v.Seconds > 60 || v.NotStarted > 10_000 || v.LatencyNs["p50"] == 0 {
			t.Errorf("rate %s: exit code %d, %s%s", rate, code, out, stderr)
		}
	}
}

// TestBenchRefused: refusals are counted by reason, and are no latencies.
func TestBenchRefused(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int64
	_, out, stderr := benchUntil(ctx, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 50 {
			cancel()
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"reason":"NO_SID","detail":"none"}`)
	}, "--for", "10m", "--callers", "3")
	if v := viewOf(t, out); v.Refused["NO_SID"] < 40 || v.Requests != 0 || v.Failed != 0 || len(v.LatencyNs) != 0 {
		t.Errorf("%s%s", out, stderr)
	}
}

// TestVerdict: what a bench ends with, whatever it measured.
func TestVerdict(t *testing.T) {
	refused := load.Result{Refused: map[string]int64{"NO_SID": 3}, Refusal: errors.New("NO_SID: none")}
	for name, tc := range map[string]struct {
		result result
		code   int
		says   string
	}{
		"answers":                   {result{Result: &load.Result{Requests: 1, Failed: 5, Failure: io.EOF}}, cli.ExitOK, ""},
		"refusals alone":            {result{Result: &refused}, cli.ExitInvalid, "all requests were refused: NO_SID: none"},
		"refusals, and interrupted": {result{Result: &refused, interrupted: true}, cli.ExitInterrupted, ""},
		"failures alone":            {result{Result: &load.Result{Failed: 1, Failure: io.EOF}}, cli.ExitUnavailable, "no node answers: EOF"},
		"another protocol": {
			result{Result: &load.Result{Failed: 1, Failure: errors.New("it looked like an HTTP/1.1 header")}},
			cli.ExitUnavailable, "An HTTP/1.1 server answers there",
		},
		"nothing": {result{Result: &load.Result{}}, cli.ExitUnavailable, "no answer came within 0s"},
		"an ID twice": {
			result{Result: &load.Result{Requests: 9, Check: &load.Checks{Duplicates: 1}}, interrupted: true},
			cli.ExitInvalid, "the IDs are not sound: 1 duplicates",
		},
	} {
		err, code := tc.result.verdict(), cli.ExitOK
		if exit, ok := errors.AsType[*cli.ExitError](err); ok {
			code = exit.Code
		}
		if code != tc.code || !strings.Contains(fmt.Sprint(err), tc.says) {
			t.Errorf("%s: exit code %d, %v; want %d, %q", name, code, err, tc.code, tc.says)
		}
	}
}
