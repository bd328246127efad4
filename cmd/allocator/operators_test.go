package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// process is a node in a process of its own.
type process struct {
	*proc.Process
	grpc string
}

// serve starts a node with short times in a process of its own, and returns when it is ready.
func (d *testCluster) serve(name string, settings ...string) process {
	d.Helper()
	return serve(d.T, append([]string{"serve", "--etcd.endpoints", d.etcd.Endpoint(), "--node.name", name,
		"--lease.window", testWindow.String(), "--watermark.interval", extendEvery.String(), "--lease.ttl", "6s"}, settings...)...)
}

// serve runs "allocator serve" with these arguments and listeners for gRPC and gossip alone, and returns when it is ready.
func serve(t *testing.T, args ...string) process {
	t.Helper()
	cmd := exec.Command("allocator", append(args, "--listen.grpc", "127.0.0.1:0", "--listen.http", "", "--listen.admin", "",
		"--listen.gossip", "127.0.0.1:0", "--log.format", "json")...)
	p := proc.Run(t, cmd)
	t.Cleanup(p.Kill)
	return process{p, p.Prints(t, `"msg":"listening".*?"grpc":"([^"]+)"[\s\S]*"msg":"ready"`)[1]}
}

// eventually repeats a command until what it prints matches all patterns.
func (d *testCluster) eventually(code int, args []string, patterns ...string) {
	d.Helper()
	if args[0] == "doctor" {
		args = append(args, "--etcd.endpoints", d.etcd.Endpoint(), "--lease.window", testWindow.String(), "--watermark.interval", extendEvery.String())
	}
	eventually(d.T, code, args, patterns...)
}

func eventually(t *testing.T, code int, args []string, patterns ...string) {
	t.Helper()
	wait.NoError(t, "allocator "+strings.Join(args, " "), func() error {
		got, out, stderr := allocator(args...)
		for _, p := range patterns {
			if !regexp.MustCompile("(?m)" + p).MatchString(out) {
				return fmt.Errorf("exit code %d; no %q in\n%s%s", got, p, out, stderr)
			}
		}
		if got != code {
			return fmt.Errorf("exit code %d, want %d:\n%s%s", got, code, out, stderr)
		}
		return nil
	})
}

// What operators look at shows two nodes of one name, a node that is paused, and an outage
// of etcd. All nodes are processes of their own.
func TestWhatOperatorsSee(t *testing.T) {
	tier.Check(t, "waits until leases lapse")
	t.Parallel()
	d := deploy(t)
	one, two := d.serve("one"), d.serve("two")
	status := []string{"status", "--addr", one.grpc}
	d.eventually(cli.ExitOK, status, `^two +serving +\d+ +1 +\d+\.\ds +[01]\.\ds ago +open +[+-]\d`, `^one: ready; sid \d+, window left \d+\.\ds; `)
	d.eventually(cli.ExitOK, []string{"doctor", "--expect-nodes", "2"}, `^ok +name +every node has a name of its own`, `^ok +node-count +2 nodes, as expected`, `^ok +node +two .* ready, with sid \d+ and \d+\.\ds of its window left`)
	d.eventually(cli.ExitInvalid, []string{"doctor", "--expect-nodes", "3"}, `^fail +node-count +2 nodes, and 3 are expected`)

	twin := d.serve("two")
	d.eventually(cli.ExitInvalid, []string{"doctor"}, `^fail +name +2 processes have the name two: at `)
	d.eventually(cli.ExitOK, status, `^Several processes are registered as two: `)
	fatal.If(t, twin.Signal(syscall.SIGTERM))

	// A pause is seen at once, and remembered when the registration has lapsed.
	fatal.If(t, two.Signal(syscall.SIGSTOP))
	d.eventually(cli.ExitOK, status, `^two +\S+ +\d+ +1 +-?\d+\.\ds +([2-9]|\d\d+)\.\ds ago `, `^No reply from two \(since \d\d:\d\d:\d\d UTC\)`)
	if _, out, _ := allocator(status...); strings.Contains(out, "All is well") {
		t.Errorf("all is well beside a node that is paused:\n%s", out)
	}
	d.eventually(cli.ExitOK, []string{"watermark", "--addr", one.grpc}, `^  (silent|vanished), since \d\d:\d\d:\d\d: node two \(sid \d+\) `)
	d.eventually(cli.ExitOK, status, `^watermark \S+Z, \d+\.\ds behind: node two \(sid \d+\) `)
	d.eventually(cli.ExitOK, status, `^1 node; `, `^\d+ +\S+ +1 +two +(\d+m)?\d+s ago +(now|in \d+\.\ds) +not released$`)
	d.eventually(cli.ExitOK, []string{"doctor"}, `^warn +unreleased +two has not released sid \d+: it last wrote (\d+m)?\d+s ago`)
	fatal.If(t, two.Signal(syscall.SIGCONT))
	d.eventually(cli.ExitOK, []string{"doctor"}, `^ok +unreleased `, `^ok +node +two `)

	// A state has since when it lasts, once a sample of each 10 s has seen it.
	drain := func(what string) {
		t.Helper()
		if code, out, errs := allocator("admin", what, "--addr", two.grpc); code != cli.ExitOK {
			t.Fatalf("%s: exit code %d\n%s%s", what, code, out, errs)
		}
	}
	drain("drain")
	d.eventually(cli.ExitOK, status, `^two: drained or stopping, so it refuses \(since \d\d:\d\d:\d\d UTC\)\. 1 of 2 nodes serve`)
	drain("undrain")
	d.eventually(cli.ExitOK, status, `^All is well: 2 nodes serve`)

	// Without etcd the nodes are still found, with what is left of their windows.
	d.eventually(cli.ExitOK, status, `^2 nodes; `)
	d.etcd.Stop()
	d.eventually(cli.ExitOK, status, `^etcd cannot be read: `, `^one +\S+ +\d+ +- +\d+\.\ds +\(this node\) `, `^two +\S+ +\d+ +- +(-|\d+\.\ds) +\d+\.\ds ago `, `^one: ready; sid \d+, window left \d+\.\ds; `)
	d.eventually(cli.ExitUnavailable, []string{"doctor", "--addr", one.grpc}, `^fail +etcd +no endpoint answers`,
		`^ok +node +one .* and \d+\.\ds of its window left`, `^ok +node +two .* and \d+\.\ds of its window left`)
	d.eventually(cli.ExitUnavailable, []string{"doctor", "--addr", one.grpc}, `^warn +node +one .* would refuse: WINDOW_EXHAUSTED`)
}
