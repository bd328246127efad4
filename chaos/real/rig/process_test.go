package rig

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
)

func sleeper(t *testing.T) *Process {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("not run: there is no sleep command")
	}
	p := &Process{Name: "sleeper", Place: Loopback{}, Path: path, Args: []string{"60"}, Dir: t.TempDir()}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

func TestProcess(t *testing.T) {
	p := sleeper(t)
	if p.Running() || p.Run() != 0 || p.Exit() != "" {
		t.Errorf("before its start: %v, run %d, exit %q", p.Running(), p.Run(), p.Exit())
	}
	fatal.If(t, p.Start())
	if err := p.Start(); err == nil {
		t.Error("it was started twice")
	}
	fatal.If(t, p.Pause())
	wait.Until(t, "SIGSTOP has stopped it", func() bool { return p.State() == "T" })
	// A stopped process can be killed, and Exit returns how it ended.
	fatal.If(t, p.Kill())
	if p.Running() || !strings.Contains(p.Exit(), "killed") {
		t.Errorf("after the kill: %v, exit %q", p.Running(), p.Exit())
	}
	fatal.If(t, p.Start())
	fatal.If(t, p.Pause())
	fatal.If(t, p.Terminate(wait.Most))
	if p.RunName() != "sleeper#2" || !strings.Contains(p.Exit(), "terminated") {
		t.Errorf("%s ended with %q", p.RunName(), p.Exit())
	}
}

// A call that overlaps a restart is attributed to the right process.
func TestMayAnswer(t *testing.T) {
	n := &Node{Process: sleeper(t)}
	start := func() {
		t.Helper()
		fatal.If(t, n.Start())
	}
	start()
	calm, dying := n.MayAnswer(), n.MayAnswer()
	if got := calm(); got != "sleeper#1" {
		t.Errorf("in calm: %s", got)
	}
	fatal.If(t, n.Kill())
	between := n.MayAnswer()
	start()
	n.Process.mu.Lock()
	n.Process.began = time.Now().Add(time.Hour) // However slow this test is, the process is new.
	n.Process.mu.Unlock()
	if got := dying(); got != "sleeper#1" {
		t.Errorf("the new process was taken to have answered in its first milliseconds: %s", got)
	}
	if got := between(); got != "sleeper#2" {
		t.Errorf("no process ran, and yet %s answered", got)
	}
	n.Process.mu.Lock()
	n.Process.began = time.Now().Add(-time.Second)
	n.Process.mu.Unlock()
	if got := dying(); got != "sleeper#2" {
		t.Errorf("a second after the restart: %s", got)
	}
}

func TestParseMetrics(t *testing.T) {
	s := &Sample{Up: true, Metrics: parseMetrics([]byte(`# HELP allocator_sid The sid held, or -1.
allocator_sid 7
allocator_refusals_total{reason="NO_SID"} 2
allocator_refusals_total{reason="STARTING"} 3
allocator_refusals_totally{reason="STARTING"} 50
allocator_request_duration_seconds_bucket{surface="grpc",le="1"} 9
allocator_clock_verdict{state="open"} 0
allocator_clock_verdict{state="skewed"} 1
go_goroutines 12
allocator_broken
`))}
	if got := s.Value("sid"); got != 7 {
		t.Errorf("sid %v", got)
	}
	if got := s.Sum("refusals_total"); got != 5 {
		t.Errorf("refusals %v", got)
	}
	if got := s.Label("clock_verdict"); got != "skewed" {
		t.Errorf("verdict %q", got)
	}
	if len(s.Metrics) != 6 {
		t.Errorf("kept %v", s.Metrics)
	}
	if s = nil; s.Value("sid") != 0 || s.Sum("x") != 0 || s.Label("x") != "" || s.Has("sid") {
		t.Error("no sample has values")
	}
}

// TestUntilBroken: what the product must not do ends a wait, though a later try would work.
func TestUntilBroken(t *testing.T) {
	tries := 0
	err := Until(t.Context(), time.Minute, "an effect", func(context.Context) error {
		if tries++; tries > 1 {
			return nil
		}
		return fmt.Errorf("%w: it is ready", ErrBroken)
	})
	if !errors.Is(err, ErrBroken) || tries != 1 {
		t.Errorf("%v after %d tries", err, tries)
	}
}
