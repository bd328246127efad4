// Package devtest runs programs for a test, each in a process that can be killed: a cluster of
// `allocator dev`, more nodes beside it, and programs that use them.
package devtest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// A Process is a program that was started for a test, and is stopped when the test ends.
type Process struct {
	cmd      *exec.Cmd
	ended    chan struct{}
	out, log output.Text
	orderly  bool // It has to stop with exit code 0.
}

// Start starts a program with variables in addition to the environment.
func Start(t *testing.T, env []string, path string, args ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(path, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.log
	p.cmd.WaitDelay = 5 * time.Second // A member of etcd that a node started has them, too.
	fatal.If(t, p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		err := p.cmd.Process.Signal(syscall.SIGTERM) // so that a node stops the member of etcd that it started
		timer := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
		<-p.ended
		timer.Stop()
		if err == nil && p.orderly && !p.cmd.ProcessState.Success() {
			t.Errorf("it was stopped, and ended with: %v", p.cmd.ProcessState)
		}
		if t.Failed() {
			t.Logf("%s %s:\n%s%s", filepath.Base(path), strings.Join(args, " "), &p.out, &p.log)
		}
	})
	return p
}

// Kill ends the process without notice.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Stop ends the process as a supervisor does, and returns its exit code.
func (p *Process) Stop(t *testing.T) int {
	t.Helper()
	p.Signal(t, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(wait.Most):
		t.Fatal("it does not stop")
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends the process a signal.
func (p *Process) Signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	fatal.If(t, p.cmd.Process.Signal(s))
}

// Until waits until the process answers a URL with code.
func (p *Process) Until(t *testing.T, code int, url string) {
	t.Helper()
	p.until(t, fmt.Sprintf("%s answers %d", url, code), func() error {
		res, err := http.Get(url)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != code {
			return fmt.Errorf("%s: %s", url, res.Status)
		}
		return nil
	})
}

func (p *Process) until(t *testing.T, what string, f func() error) {
	t.Helper()
	wait.NoError(t, what, func() error {
		err := f()
		select {
		case <-p.ended:
			if err != nil {
				t.Fatalf("it ended, and did not come to this: %s: %v", what, err)
			}
		default:
		}
		return err
	})
}

// A Node is a running node. Those of `allocator dev` share a process with each other and with etcd.
type Node struct {
	*Process                               `json:"-"`
	Name                                   string `json:"node"`
	SID                                    int
	State                                  string
	GRPC, HTTP, Admin, RESP, Etcd, Console string
}

// Program builds the allocator, and returns its path.
func Program(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute) // the first build takes long
	defer cancel()
	path, err := build.Allocator(ctx, t.TempDir())
	fatal.If(t, err)
	return path
}

// Dev runs a cluster with its own etcd, and returns its nodes.
func Dev(t *testing.T, program string, nodes int, args ...string) (out []Node) {
	t.Helper()
	p := Start(t, nil, program, append([]string{"dev", "--format", "json", "--grpc-port", "0", "--http-port", "0",
		"--nodes", fmt.Sprint(nodes)}, args...)...)
	p.orderly = true
	p.until(t, "dev says where its nodes are", func() error {
		out = nil
		for lines := bufio.NewScanner(strings.NewReader(p.out.String())); len(out) < nodes && lines.Scan(); {
			n := Node{Process: p}
			if err := json.Unmarshal(lines.Bytes(), &n); err != nil {
				return err
			}
			out = append(out, n)
		}
		if len(out) < nodes {
			return fmt.Errorf("%d of %d nodes", len(out), nodes)
		}
		return nil
	})
	return out
}

// Serve runs one more node, and returns when it is ready.
func Serve(t *testing.T, program, etcd, name string, args ...string) Node {
	t.Helper()
	n := Node{Name: name, GRPC: loopback.Address(), HTTP: loopback.Address(), Admin: loopback.Address(), Etcd: etcd}
	n.Process = Start(t, nil, program, append([]string{"serve", "--etcd.endpoints", etcd, "--node.name", name,
		"--listen.grpc", n.GRPC, "--listen.http", n.HTTP, "--listen.admin", n.Admin, "--listen.gossip", loopback.Any},
		args...)...)
	n.Until(t, http.StatusOK, "http://"+n.Admin+"/readyz")
	return n
}
