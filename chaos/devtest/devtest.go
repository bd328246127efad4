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
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// Start runs a program with variables in addition to the environment, until the test ends.
func Start(t *testing.T, env []string, path string, args ...string) *proc.Process {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	return proc.Run(t, cmd)
}

// A Node is a running node. Those of `allocator dev` share a process with each other and with etcd.
type Node struct {
	*proc.Process                          `json:"-"`
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
	t.Cleanup(func() {
		running := p.Running()
		_ = p.Stop(wait.Most)
		if running && !p.Cmd.ProcessState.Success() {
			t.Errorf("dev was stopped, and ended with: %v", p.Cmd.ProcessState)
		}
	})
	p.Until(t, "dev says where its nodes are", func() error {
		out = nil
		for lines := bufio.NewScanner(strings.NewReader(p.Out.String())); len(out) < nodes && lines.Scan(); {
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
	n.Answers(t, http.StatusOK, "http://"+n.Admin+"/readyz")
	return n
}
