package check

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/loopback"
)

// programs is a directory that TestMain removes.
var programs string

// build builds the program with its dev command, and returns its path.
var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "allocator")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/allocator")
	cmd.Dir, cmd.Env = top, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
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

// output keeps what a process logs, for tests that fail.
type output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.buf.Bytes()
	return string(b[max(0, len(b)-3000):])
}

// start runs a program until the test ends, and returns what it prints.
func start(t *testing.T, path string, args ...string) io.Reader {
	t.Helper()
	logs := &output{}
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
			t.Logf("%s %s:\n%s", filepath.Base(path), args, logs.tail())
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

// certificate writes a certificate for loopback and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "check"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
