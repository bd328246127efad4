package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/load"
)

// recorded is a history of calls that follow each other, a block of one ID each.
func recorded(t *testing.T, calls ...history.Op) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	now := clock.Mono(0)
	w := history.NewWriter(&buf, history.WriterConfig{Now: func() clock.Mono { now += clock.Mono(time.Millisecond); return now }})
	write := func(op history.Op) {
		if _, err := w.Write(op); err != nil {
			t.Fatal(err)
		}
	}
	write(history.Op{Process: "harness", Type: history.Info, F: history.FSetup, Setup: &history.Setup{Layout: "scalable", EpochMs: flake.DefaultEpoch}})
	for _, op := range calls {
		op.F, op.Process = history.FAllocate, "1"
		ask := op
		ask.Type, ask.Reason, ask.Block = history.Invoke, "", history.Block{Count: 1}
		write(ask)
		op.After = 0
		write(op)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func answer(t *testing.T, node string, ms int64, after flake.ID) history.Op {
	t.Helper()
	id, err := flake.Default.Make(flake.DefaultEpoch+1000+ms, 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	return history.Op{Type: history.OK, Node: node, Run: node, Via: load.SDK, Session: "s", After: after, Block: history.Block{First: id, Count: 1, Stride: 32}}
}

// TestJudge: violations in a history are found, and a history that shows nothing
// does not pass.
func TestJudge(t *testing.T) {
	first := answer(t, "a", 1, 0)
	for name, tc := range map[string]struct {
		calls []history.Op
		want  string
	}{
		"sound":     {[]history.Op{first, answer(t, "a", 2, first.Block.First)}, ""},
		"few calls": {[]history.Op{answer(t, "a", 2, first.Block.First)}, "show nothing"},
		"nothing":   {nil, "show nothing"},
		"twice":     {[]history.Op{first, first, answer(t, "a", 2, first.Block.First)}, "unique: fail"},
		"falling":   {[]history.Op{answer(t, "a", 5, 0), answer(t, "a", 2, first.Block.First)}, "order: fail"},
		"not above": {[]history.Op{first, answer(t, "a", 2, answer(t, "a", 9, 0).Block.First)}, "causal: fail"},
	} {
		s, err := summarize(recorded(t, tc.calls...))
		if err != nil {
			t.Fatal(err)
		}
		run := &test{out: io.Discard, began: time.Now()}
		err = s.judge(run, 2)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

func TestRefusalsBySDK(t *testing.T) {
	refused := history.Op{Type: history.Fail, Reason: "NO_SID", Node: "a", Via: "grpc"}
	s, err := summarize(recorded(t, answer(t, "a", 1, 0), refused))
	if err != nil || s.noRefusalBySDK() != nil || s.refused["NO_SID"] != 1 {
		t.Errorf("a pinned client's refusal: %v, %v", err, s.noRefusalBySDK())
	}
	refused.Via = load.SDK
	s, err = summarize(recorded(t, answer(t, "a", 1, 0), refused))
	if err != nil || s.noRefusalBySDK() == nil || s.answers["a"] != 1 {
		t.Errorf("one of the SDK was not seen: %v", err)
	}
}

// TestWithoutDocker: a run on a machine without Docker reports that nothing was
// tested.
func TestWithoutDocker(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out bytes.Buffer
	err := runTest(t.Context(), nil, &out)
	if err == nil || !strings.Contains(err.Error(), "docker is not installed") {
		t.Errorf("got %v", err)
	}
}
