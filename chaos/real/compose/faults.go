package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fault is one thing that happens to containers, and how it ends.
type fault struct {
	name       string
	begin, end func(context.Context) error
	lasts      time.Duration
}

// faults requests IDs while faults follow each other, and judges the history.
func (t *test) faults(ctx context.Context) error {
	l, err := t.startLoad(ctx, "faults", "all")
	if err != nil {
		return err
	}
	defer l.abandon()
	on := func(what string, services ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, s := range services {
				if err := t.do(ctx, what, t.name(s)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	list := []fault{
		{"kill -9 allocator-1", on("kill", "allocator-1"), on("start", "allocator-1"), 2 * time.Second},
		{"pause allocator-2 for longer than its lease", on("pause", "allocator-2"), on("unpause", "allocator-2"),
			18 * time.Second},
		t.disconnected("allocator-3", 8*time.Second),
		{"pause two of three nodes, and their members with them: no writes", on("pause", "allocator-2", "allocator-3"),
			on("unpause", "allocator-2", "allocator-3"), 10 * time.Second},
	}
	longest := time.Duration(0)
	for _, f := range list {
		t.logf("%s, for %v", f.name, f.lasts)
		began := time.Now()
		if err := f.begin(ctx); err != nil {
			return err
		}
		wait(ctx, f.lasts)
		if err := f.end(ctx); err != nil {
			return err
		}
		if err := t.answering(ctx); err != nil {
			return fmt.Errorf("after %s: %w", f.name, err)
		}
		longest = max(longest, time.Since(began))
	}
	wait(ctx, 3*time.Second) // every node has to answer again
	end := time.Now()
	wait(ctx, 3*time.Second)
	seen, err := l.stop(ctx)
	if err != nil {
		return err
	}
	if err := seen.judge(t, 5000); err != nil {
		return err
	}
	for _, n := range allocators {
		if last := seen.lastOK[n]; last.Before(end) {
			return fmt.Errorf("%s did not answer again: its last answer came %v before all containers were healthy",
				n, end.Sub(last))
		}
	}
	// At least 25 s of the window are left when etcd goes away.
	switch n := seen.refused["WINDOW_EXHAUSTED"]; {
	case n > 0 && longest < 25*time.Second:
		return fmt.Errorf("%d calls were refused with WINDOW_EXHAUSTED, but etcd was away for less than 25 s", n)
	case n > 0:
		t.skipped = append(t.skipped,
			fmt.Sprintf("that no window runs out: on this machine a fault and its end took %v",
				longest.Round(time.Second)))
	}
	// The SDK goes to another node, whatever happens to one.
	return seen.noRefusalBySDK()
}

// crash kills all nodes while IDs are requested, and starts them again: no ID comes twice.
func (t *test) crash(ctx context.Context) error {
	l, err := t.startLoad(ctx, "crash", "all")
	if err != nil {
		return err
	}
	defer l.abandon()
	for _, what := range []string{"kill", "start"} {
		for _, n := range allocators {
			if err := t.do(ctx, what, t.name(n)); err != nil {
				return err
			}
		}
	}
	if err := t.answering(ctx); err != nil {
		return err
	}
	wait(ctx, 3*time.Second)
	seen, err := l.stop(ctx)
	if err != nil {
		return err
	}
	return seen.judge(t, 500)
}

// disconnected takes a container off the network and puts it back.
func (t *test) disconnected(service string, d time.Duration) fault {
	var network string
	return fault{
		name:  "disconnect " + service,
		lasts: d,
		begin: func(ctx context.Context) (err error) {
			network, err = t.inspect(ctx, "{{range $name, $n := .NetworkSettings.Networks}}{{$name}}{{end}}",
				t.name(service))
			if err != nil {
				return err
			}
			return t.do(ctx, "network", "disconnect", network, t.name(service))
		},
		end: func(ctx context.Context) error {
			return t.do(ctx, "network", "connect", "--alias", service, network, t.name(service))
		},
	}
}

// otherAndBack replaces each node by the other version, the last release if there is one, and
// then each by ours again. Callers of the SDK see no failure in either direction.
func (t *test) otherAndBack(ctx context.Context) error {
	own, err := t.version(ctx, allocators[0])
	if err != nil {
		return err
	}
	if strings.Contains(own, t.other) {
		return fmt.Errorf("both images have version %s", t.other)
	}
	for _, to := range []struct{ name, image, version string }{
		{"to-other", imageOther, t.other}, {"back", imageOwn, own},
	} {
		if err := t.replace(ctx, to.name, to.image, to.version); err != nil {
			return fmt.Errorf("%s: %w", to.name, err)
		}
	}
	return nil
}

func (t *test) version(ctx context.Context, node string) (string, error) {
	return t.run(ctx, "docker", "exec", t.name(node), "/allocator", "version")
}

// replace runs each node from an image, whose program says the version, under a load that
// has the name.
func (t *test) replace(ctx context.Context, name, image, version string) error {
	l, err := t.startLoad(ctx, name, "sdk")
	if err != nil {
		return err
	}
	defer l.abandon()
	wait(ctx, 2*time.Second)
	t.settings = slices.Concat([]string{"ALLOCATOR_IMAGE=" + image}, t.settings[1:])
	for _, n := range allocators {
		t.logf("%s from %s", n, image)
		before, err := t.inspect(ctx, "{{.Id}}", t.name(n))
		if err != nil {
			return err
		}
		if _, err := t.withCompose(ctx, "up", "--detach", "--no-deps", n); err != nil {
			return err
		}
		if after, err := t.inspect(ctx, "{{.Id}}", t.name(n)); err != nil || after == before {
			return fmt.Errorf("%s was not replaced: %w", n, err)
		}
		if err := t.answering(ctx); err != nil {
			return err
		}
		if got, err := t.version(ctx, n); err != nil || !strings.Contains(got, version) {
			return fmt.Errorf("%s runs %q, want %s: %w", n, got, version, err)
		}
	}
	wait(ctx, 2*time.Second)
	seen, err := l.stop(ctx)
	if err != nil {
		return err
	}
	if err := seen.judge(t, 500); err != nil {
		return err
	}
	for _, n := range allocators {
		if seen.answers[n] == 0 {
			return fmt.Errorf("%s answered no request", n)
		}
	}
	return seen.noRefusalBySDK()
}

// stopAndStart stops all nodes as a supervisor would, and starts them again. A sid
// that was not released could be used only after its window has passed.
func (t *test) stopAndStart(ctx context.Context) error {
	if _, err := t.withCompose(ctx, append([]string{"stop"}, allocators...)...); err != nil {
		return err
	}
	for _, n := range allocators {
		if code, err := t.inspect(ctx, "{{.State.ExitCode}}", t.name(n)); err != nil || code != "0" {
			return fmt.Errorf("%s ended with %s, want 0: %w", n, code, err)
		}
		logs, err := t.run(ctx, "sh", "-c", `docker logs "$0" 2>&1`, t.name(n))
		if err != nil || !strings.Contains(logs, "msg=stopped") {
			return fmt.Errorf("%s did not log that it stopped: %w: %s", n, err, tail([]byte(logs), 3))
		}
	}
	if _, err := t.withCompose(ctx, append([]string{"start"}, allocators...)...); err != nil {
		return err
	}
	if err := t.answering(ctx); err != nil {
		return err
	}
	return t.do(ctx, "exec", t.name(allocators[2]), "/allocator", "get", "10")
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// loadRun is a container whose clients request IDs.
type loadRun struct {
	t    *test
	cmd  *exec.Cmd
	file string
	done chan error
}

// startLoad starts clients, and returns when they have written something.
func (t *test) startLoad(ctx context.Context, name, clients string) (*loadRun, error) {
	network, err := t.inspect(ctx, "{{range $name, $n := .NetworkSettings.Networks}}{{$name}}{{end}}",
		t.name(allocators[0]))
	if err != nil {
		return nil, err
	}
	l := &loadRun{t: t, file: filepath.Join(t.dir, name+".jsonl"), done: make(chan error, 1)}
	out, err := os.Create(l.file)
	if err != nil {
		return nil, err
	}
	stderr, err := os.Create(l.file + ".stderr")
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	l.cmd = exec.CommandContext(ctx, "docker", "run", "--rm", "--name", t.project+"-load",
		"--network", network, imageLoad,
		"load", "--addr", strings.Join(allocators, ","), "--clients", clients)
	l.cmd.Env, l.cmd.Stdout, l.cmd.Stderr = t.docker.env, out, stderr
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { l.done <- errors.Join(l.cmd.Wait(), out.Close(), stderr.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return l, until(ctx, func() error {
		if info, err := os.Stat(l.file); err != nil || info.Size() < 20_000 {
			return fmt.Errorf("clients write no history: %w", err)
		}
		return nil
	})
}

// stop lets the clients finish their requests, and reads what they wrote.
func (l *loadRun) stop(ctx context.Context) (*summary, error) {
	if err := l.t.do(ctx, "kill", "--signal", "TERM", l.t.project+"-load"); err != nil {
		return nil, err
	}
	select {
	case err := <-l.done:
		l.done <- nil // abandon waits for it
		if err != nil {
			text, _ := os.ReadFile(l.file + ".stderr")
			return nil, fmt.Errorf("clients: %w: %s", err, tail(text, 5))
		}
	case <-time.After(60 * time.Second):
		return nil, errors.New("clients do not end")
	}
	f, err := os.Open(l.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return summarize(f)
}

// abandon ends clients that were not stopped, after an error.
func (l *loadRun) abandon() {
	select {
	case <-l.done:
	default:
		_ = l.cmd.Process.Kill()
		<-l.done
	}
}
