// Package rig starts what the tests of the examples need: an etcd and three nodes, each a
// process, and the examples themselves. It is not an example.
package rig

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
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/internal/loopback"
)

// A Process is a program that was started for a test, and is killed when the test ends.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	log   output.Text
}

// Start starts a program with variables in addition to the environment.
func Start(t *testing.T, env []string, path string, args ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(path, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(path), strings.Join(args, " "), p.Log())
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
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not stop")
	}
	return p.cmd.ProcessState.ExitCode()
}

// Log returns what the process has written.
func (p *Process) Log() string { return p.log.String() }

// Build builds a command of the examples and returns its path.
func Build(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path,
		"github.com/flakelease/allocator/examples/"+name).CombinedOutput()
	if err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

// Cluster is an etcd and three nodes, whose sids are below 16.
type Cluster struct {
	Etcd  string // URL
	GRPC  []string
	Nodes []*Process // the second and the third; the first is in etcd's process
}

// NewCluster starts a cluster that is stopped when the test ends.
func NewCluster(t *testing.T) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // the first build takes long
	defer cancel()
	program, err := build.Allocator(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := Start(t, nil, program, "dev", "--nodes", "1", "--grpc-port", "0", "--http-port", "0", "--format", "json")
	var first struct{ Etcd, GRPC string }
	until(t, p, func() error {
		line, err := bufio.NewReader(strings.NewReader(p.Log())).ReadBytes('\n')
		if err != nil {
			return err
		}
		return json.Unmarshal(line, &first)
	})
	c := &Cluster{Etcd: first.Etcd, GRPC: []string{first.GRPC}}
	for _, name := range []string{"node-2", "node-3"} {
		grpc, admin := loopback.Address(), loopback.Address()
		p := Start(t, nil, program, "serve", "--node.name", name, "--etcd.endpoints", c.Etcd,
			"--worker.sid-range", "16-31",
			"--listen.grpc", grpc, "--listen.admin", admin, "--listen.http", "", "--listen.gossip", "127.0.0.1:0")
		c.GRPC, c.Nodes = append(c.GRPC, grpc), append(c.Nodes, p)
		p.Until(t, http.StatusOK, "http://"+admin+"/readyz")
	}
	return c
}

// Until waits until the process answers a URL with code.
func (p *Process) Until(t *testing.T, code int, url string) {
	t.Helper()
	until(t, p, func() error {
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

func until(t *testing.T, p *Process, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-p.ended:
			t.Fatalf("it ended: %v: %v\n%s", p.cmd.ProcessState, err, p.Log())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
