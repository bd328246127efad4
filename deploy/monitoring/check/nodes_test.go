package check

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/internal/loopback"
)

// programs is a directory that TestMain removes.
var programs string

// program builds the program with its dev command, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return build.Allocator(ctx, programs)
})

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "monitoring-check-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// start runs a program until the test ends, and returns what it prints.
func start(t *testing.T, path string, args ...string) io.Reader {
	t.Helper()
	logs := &output.Text{}
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = logs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(path), args, logs)
		}
	})
	return out
}

// node is a running node, as dev prints it.
type node struct{ Node, HTTP, Admin, Etcd string }

// dev runs a cluster with its own etcd, and returns its nodes.
func dev(t *testing.T, path string, nodes int, args ...string) (out []node) {
	t.Helper()
	args = append([]string{"dev", "--format", "json", "--grpc-port", "0", "--http-port", "0", "--nodes", fmt.Sprint(nodes)}, args...)
	lines := bufio.NewScanner(start(t, path, args...))
	for len(out) < nodes && lines.Scan() {
		var s node
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		out = append(out, s)
	}
	if len(out) < nodes {
		t.Fatalf("dev started %d of %d nodes: %v", len(out), nodes, lines.Err())
	}
	return out
}

// serve runs one more node, and returns the addresses of its HTTP and admin ports.
func serve(t *testing.T, path, etcd, name string, args ...string) node {
	t.Helper()
	s := node{Node: name, HTTP: loopback.Address(), Admin: loopback.Address(), Etcd: etcd}
	start(t, path, append([]string{
		"serve", "--etcd.endpoints", etcd, "--node.name", name, "--listen.grpc", "", "--listen.http", s.HTTP,
		"--listen.admin", s.Admin, "--listen.gossip", loopback.Address(),
	}, args...)...)
	return s
}

// get returns the body of a page; a status other than 200 is an error.
func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	return b, err
}

// await waits until f returns nil.
func await(t *testing.T, what string, within time.Duration, f func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s: %v", within, what, err)
		}
	}
}
