package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/unixsocket"
)

const space = "abuse"

// target is what an attack reaches of a node.
type target struct {
	GRPC, HTTP, RESP, Admin, Gossip string // host:port
	Socket                          string // path of a Unix socket for RESP, in the attacks that have one
	Etcd                            string // URL
	Token, Reader                   string // let a caller issue, and read
	Label                           string // gossip.label
}

// node is the allocator under attack, and its etcd.
type node struct {
	target
	dir      string
	honest   string // token
	operator string // token with scope admin
	ca       *x509.CertPool
	group    *group
	etcd     *rig.Process
	process  *rig.Process
	args     []string // for the present run, besides those for every run
}

// newNode makes all that a node needs, for a process that may have memory bytes.
func newNode(dir, allocator, etcd string, memory int64) (*node, error) {
	n := &node{dir: dir, ca: x509.NewCertPool()}
	n.Label = "allocator/" + space
	n.Socket = filepath.Join(dir, "resp.sock")
	addrs := loopback.Addresses(7)
	n.GRPC, n.HTTP, n.RESP, n.Admin, n.Gossip = addrs[0], addrs[1], addrs[2], addrs[3], addrs[4]
	if err := n.credentials(); err != nil {
		return nil, err
	}
	client, peer := "http://"+addrs[5], "http://"+addrs[6]
	n.Etcd = client
	n.etcd = &rig.Process{
		Name:  "etcd",
		Path:  etcd,
		Place: rig.Loopback{},
		Dir:   dir,
		Args: []string{"--name", "etcd", "--data-dir", filepath.Join(dir, "data"),
			"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
			"--initial-advertise-peer-urls", peer,
			"--initial-cluster", "etcd=" + peer, "--log-level", "error"},
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	n.process = &rig.Process{
		Name:  "node",
		Path:  allocator,
		Place: rig.Loopback{},
		Dir:   dir,
		Env:   []string{fmt.Sprintf("GOMEMLIMIT=%d", memory/10*9)},
		Args: []string{"serve", "--node.name", "node", "--space", space, "--etcd.endpoints", client,
			"--listen.grpc", n.GRPC, "--listen.http", n.HTTP, "--listen.resp", n.RESP, "--listen.admin", n.Admin,
			"--listen.gossip", n.Gossip,
			"--gossip.key-file", file("gossip.key"), "--tls.cert", file("cert.pem"), "--tls.key", file("key.pem"),
			"--auth.token-file", file("tokens"),
			"--log.format", "json"},
	}
	return n, nil
}

// argsOf returns what the node runs with for an attack, besides what it always does.
func (n *node) argsOf(a attack) []string {
	args := slices.Clone(a.args)
	if a.clear {
		args = append(args, "--tls.cert", "", "--tls.key", "")
	}
	if a.socket {
		args = append(args, "--listen.resp", unixsocket.Prefix+n.Socket)
	}
	return args
}

// start starts etcd and the node.
func (n *node) start(ctx context.Context) error {
	if err := n.etcd.Start(); err != nil {
		return err
	}
	if err := rig.Until(ctx, 30*time.Second, "etcd answers", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, n.process.Path, "init", "--fresh", "--space", space,
			"--etcd.endpoints", n.Etcd).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		return err
	}
	return n.with(ctx, nil)
}

// with makes the node run with more arguments, and be ready.
func (n *node) with(ctx context.Context, args []string) error {
	if n.process.Running() && slices.Equal(args, n.args) {
		return nil
	}
	if err := n.process.Terminate(20 * time.Second); err != nil {
		_ = n.process.Kill()
	}
	if err := n.process.Start(args...); err != nil {
		return err
	}
	n.args = args
	if err := n.group.add(n.process.PID()); err != nil {
		return err
	}
	return rig.Until(ctx, 60*time.Second, "the node is ready", func(ctx context.Context) error {
		if !n.process.Running() {
			return fmt.Errorf("it ended: %s", n.process.Exit())
		}
		return get(ctx, "http://"+n.Admin+"/readyz", "")
	})
}

func (n *node) stop() {
	_ = n.process.Terminate(10 * time.Second)
	_ = n.process.Kill()
	_ = n.etcd.Kill()
	n.group.remove()
}

// get requires that a page can be read, with a token or "".
func get(ctx context.Context, url, token string) error {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	t := &http.Transport{DisableKeepAlives: true}
	res, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

// usage is what the node holds.
type usage struct {
	// Bytes. Peak is since resetPeak, without pages of the program's file: a control group takes
	// those back before it kills.
	RSS, Peak       int64
	Heap            int64 // bytes, after a garbage collection
	Goroutines, FDs int
}

// usage reads what the node holds. Goroutines and FDs are 0 where the admin port
// does not answer.
func (n *node) usage(ctx context.Context) (u usage) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.process.PID()))
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		v, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			u.RSS = v << 10
		case "VmHWM:":
			u.Peak += v << 10
		case "RssFile:":
			u.Peak -= v << 10
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := get(ctx, "http://"+n.Admin+"/debug/pprof/heap?gc=1", n.operator); err != nil { // collects
		return u
	}
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+n.Admin+"/metrics", nil)
	if err != nil {
		return u
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return u
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		v, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "go_goroutines":
			u.Goroutines = int(v)
		case "go_memstats_heap_inuse_bytes":
			u.Heap = int64(v)
		case "process_open_fds":
			u.FDs = int(v)
		}
	}
	return u
}

// cpu returns the processor time that the node has used.
func (n *node) cpu() time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.process.PID()))
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest) // from the third field on
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * (time.Second / 100)
}

// resetPeak makes the kernel forget the node's peak.
func (n *node) resetPeak() {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.process.PID()), []byte("5"), 0)
}

// credentials writes a certificate, the tokens, and the key of gossip.
func (n *node) credentials() error {
	now := time.Now()
	ca, err := certs.Issue(nil, "abuse", nil, now, 240*time.Hour)
	if err != nil {
		return err
	}
	own, err := certs.Issue(ca, "node", []string{"localhost"}, now, 240*time.Hour)
	if err != nil {
		return err
	}
	n.ca.AddCert(ca.Cert)
	honest, line1, err1 := access.NewToken("honest", "issue")
	token, line2, err2 := access.NewToken("attacker", "issue")
	operator, line3, err3 := access.NewToken("operator", "admin")
	reader, line4, err4 := access.NewToken("reader", "read")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	n.honest, n.Token, n.operator, n.Reader = honest, token, operator, reader
	lines := []string{line1, line2, line3, line4}
	for i := range 1000 { // so many programs that a comparison with each would cost
		_, line, err := access.NewToken(fmt.Sprint("other-", i), "issue")
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	for name, content := range map[string][]byte{
		"cert.pem":   own.CertPEM,
		"key.pem":    own.KeyPEM,
		"tokens":     []byte(strings.Join(lines, "\n") + "\n"),
		"gossip.key": []byte(base64.StdEncoding.EncodeToString(secret) + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(n.dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
