package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// insides are three machines, 127.0.0.1 to 127.0.0.3, on which nodes run with etcd inside.
type insides struct {
	t        *testing.T
	dir, bin string
	clients  int              // their port for nodes; the next one is for the members
	nodes    [4]*proc.Process // by machine, from 1: the latest
	join     string
}

func newInsides(t *testing.T) *insides {
	t.Helper()
	bin, err := buildDev()
	fatal.If(t, err)
	c := &insides{t: t, dir: t.TempDir(), bin: bin, join: "127.0.0.1,127.0.0.2,127.0.0.3"}
	c.clients = portsInARow(t, toGossip+1)
	t.Cleanup(func() {
		for i := range c.nodes {
			c.stop(i)
			if pid := c.etcd(i); i > 0 && pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	c.must("etcd", "certs", "--hosts", c.join, "--out", filepath.Join(c.dir, "pki"))
	return c
}

// The ports of each machine, from clients on.
const (
	toMembers = iota + 1 // etcd's own
	toGRPC
	toHTTP
	toAdmin
	toGossip
)

// portsInARow returns the first of n ports that nobody uses, below those of outgoing connections.
func portsInARow(t *testing.T, n int) int {
	t.Helper()
	for first, last := loopback.Port(), 0; first != 0; {
		if last = max(last, first); last-first+1 == n {
			return first
		}
		next := loopback.Port()
		if next != last+1 {
			first = next
		}
		last = next
	}
	t.Fatalf("no %d ports in a row are free", n)
	return 0
}

func (c *insides) machine(i int) string { return fmt.Sprintf("127.0.0.%d", i) }
func (c *insides) data(i int) string    { return filepath.Join(c.dir, fmt.Sprintf("m%d", i)) }

// settings are those of machine i, as flags.
func (c *insides) settings(i int) []string {
	host, pki := c.machine(i), filepath.Join(c.dir, "pki")
	return []string{
		"--etcd.join", c.join, "--etcd.address", host, "--etcd.inside", c.data(i),
		"--etcd.port-clients", strconv.Itoa(c.clients),
		"--etcd.tls.ca", filepath.Join(pki, "ca.pem"),
		"--etcd.tls.cert", filepath.Join(pki, host+".pem"), "--etcd.tls.key", filepath.Join(pki, host+".key"),
	}
}

// start starts the node of machine i.
func (c *insides) start(i int, more ...string) {
	c.t.Helper()
	host := c.machine(i)
	args := append([]string{"serve", "--node.name", "node-" + strconv.Itoa(i)}, c.settings(i)...)
	for _, l := range []struct {
		name string
		port int
	}{{"grpc", toGRPC}, {"http", toHTTP}, {"admin", toAdmin}, {"gossip", toGossip}} {
		args = append(args, "--listen."+l.name, net.JoinHostPort(host, strconv.Itoa(c.clients+l.port)))
	}
	cmd := exec.Command(c.bin, append(args, more...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The member writes to the node's stderr and may outlive it: Wait must not wait for that.
	cmd.WaitDelay = 100 * time.Millisecond
	c.nodes[i] = proc.Run(c.t, cmd)
}

// stop stops the node of machine i in order.
func (c *insides) stop(i int) {
	if c.nodes[i] != nil {
		if err := c.nodes[i].Stop(patience); errors.Is(err, proc.ErrKilled) {
			c.t.Error(err)
		}
	}
}

// crash kills the node of machine i, and leaves its member.
func (c *insides) crash(i int) { c.nodes[i].Kill() }

// etcd returns the process of the member of machine i; 0: none.
func (c *insides) etcd(i int) int {
	text, err := os.ReadFile(filepath.Join(c.data(i), "etcd.lock"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 0 || syscall.Kill(pid, 0) != nil {
		return 0
	}
	return pid
}

func (c *insides) try(args ...string) (string, error) {
	cmd := exec.Command(c.bin, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (c *insides) must(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("allocator %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// command runs a command with the settings of machine i behind its own words.
func (c *insides) command(i int, words ...string) (string, error) {
	return c.try(append(words, c.settings(i)...)...)
}

// says waits until a command with the settings of machine i prints a text.
func (c *insides) says(i int, want string, words ...string) {
	c.t.Helper()
	wait.NoError(c.t, strings.Join(words, " "), func() error {
		out, err := c.command(i, words...)
		if !strings.Contains(out, want) {
			return fmt.Errorf("%w: %s; want %q", err, out, want)
		}
		return nil
	})
}

// changes repeats a command while it changes nothing: a member whose answer comes late may stop the quorum.
func (c *insides) changes(i int, words ...string) (out string) {
	c.t.Helper()
	wait.NoError(c.t, strings.Join(words, " "), func() (err error) {
		out, err = c.command(i, words...)
		if err != nil && !strings.Contains(out, "nothing was changed") && !strings.Contains(out, "unhealthy cluster") {
			c.t.Fatalf("%s: %v, %s", strings.Join(words, " "), err, out)
		}
		return err
	})
	return out
}

// draws waits until machine i gives an ID.
func (c *insides) draws(i int) {
	c.t.Helper()
	wait.NoError(c.t, "an ID", func() error {
		r, err := http.Post(fmt.Sprintf("http://%s:%d/v1/ids", c.machine(i), c.clients+toHTTP), "", nil)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", r.StatusCode)
		}
		return nil
	})
}

func (c *insides) logged(i int, want string) {
	c.t.Helper()
	wait.NoError(c.t, "the log of machine "+strconv.Itoa(i), func() error {
		if !strings.Contains(c.nodes[i].Log(), want) {
			return fmt.Errorf("it does not say %q", want)
		}
		return nil
	})
}

// TestEtcdInside starts the same line on three machines and takes the cluster through the life of
// its members: crashes of either process, lost data, a member replaced, removed, and back.
func TestEtcdInside(t *testing.T) {
	tier.Check(t, "builds the program, and runs three nodes with etcd inside")
	t.Parallel()
	c := newInsides(t)

	// Nobody begins before all are there, and init waits for them.
	c.start(1)
	c.logged(1, "127.0.0.2 to answer")
	c.start(2)
	c.logged(2, "127.0.0.3 to answer")
	if c.etcd(1) != 0 || c.etcd(2) != 0 {
		t.Error("a member began without the third")
	}
	if _, err := os.Stat(filepath.Join(c.data(1), "member.json")); err == nil {
		t.Error("a member that waits has written who it is")
	}
	initialized := make(chan error)
	go func() {
		out, err := c.command(1, "init", "--fresh", "--timeout", "1m")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		initialized <- err
	}()
	began := time.Now()
	c.start(3)
	fatal.If(t, <-initialized)
	c.draws(3)
	t.Logf("the first ID came %v after the third start", time.Since(began).Round(time.Millisecond))
	for i := 1; i <= 3; i++ {
		c.draws(i)
	}
	memory(t, c)
	wait.NoError(t, "a snapshot by itself", func() error {
		list, err := filepath.Glob(c.data(1) + "/snapshots/hourly-*.db")
		if len(list) == 0 {
			return fmt.Errorf("none: %v", err)
		}
		return nil
	})
	if out, err := c.command(1, "etcd", "restore", filepath.Join(c.data(1), "member.json"), "--yes"); err == nil || !strings.Contains(out, "is no snapshot of etcd") {
		t.Errorf("restore of another file: %v, %s", err, out)
	}
	c.says(1, "3 of 3 voting members answer, 2 are needed: 1 more may fail", "etcd", "status")
	if out := c.changes(2, "etcd", "defragment", "--yes"); strings.Count(out, ": defragmented") != 3 {
		t.Errorf("defragment: %s", out)
	}

	// A crash of either process leaves the other.
	member := c.etcd(1)
	c.crash(1)
	if c.etcd(1) != member {
		t.Error("the member ended with its node")
	}
	c.says(2, "3 of 3 voting members answer", "etcd", "status")
	c.start(1)
	c.logged(1, "taken over")
	c.draws(1)
	if c.etcd(1) != member {
		t.Error("the member was restarted")
	}
	if member == 0 { // Kill would take it for this process and its children.
		t.Fatal("nothing is known of the member's process")
	}
	fatal.If(t, syscall.Kill(member, syscall.SIGKILL))
	c.draws(1)
	c.logged(1, "etcd inside ended")
	wait.NoError(t, "the member", func() error {
		if pid := c.etcd(1); pid == 0 || pid == member {
			return fmt.Errorf("process %d", pid)
		}
		return nil
	})
	if out, err := c.try(append([]string{"serve", "--listen.grpc", "127.0.0.1:0"}, c.settings(1)...)...); err == nil || !strings.Contains(out, "in use by another node") {
		t.Errorf("a second node on one directory: %v, %s", err, out)
	}

	// A certificate is renewed on one machine, and its member restarted beside those with the old ones.
	pki := filepath.Join(c.dir, "pki")
	old := readFile(t, filepath.Join(pki, "127.0.0.2.pem"))
	c.must("etcd", "certs", "--hosts", "127.0.0.2", "--out", pki, "--renew")
	if readFile(t, filepath.Join(pki, "127.0.0.2.pem")) == old {
		t.Error("the certificate was not renewed")
	}
	member = c.etcd(2)
	c.stop(2)
	c.says(1, "2 of 3 voting members answer", "etcd", "status")
	c.draws(1)
	night := pages.Open(t, "../../docs/how-to/the-first-night.md").Text(t, "seen: a member ends")
	_, seen, _ := strings.Cut(night, "node-1 says: ")
	seen, _, _ = strings.Cut(seen, "…")
	wait.NoError(t, "the sentence of the first night", func() error {
		out, err := c.try("status", "--addr", net.JoinHostPort(c.machine(1), strconv.Itoa(c.clients+toGRPC)))
		if err != nil || !strings.Contains(out, "\n"+seen) {
			return fmt.Errorf("%w: %s; want %q", err, out, seen)
		}
		return nil
	})
	c.start(2)
	c.says(1, "3 of 3 voting members answer", "etcd", "status")
	c.draws(2)
	if c.etcd(2) == member {
		t.Error("the member was not restarted")
	}

	// A node that stops takes its member along.
	member = c.etcd(3)
	c.stop(3)
	if syscall.Kill(member, 0) == nil {
		t.Error("the member outlives the stop of its node")
	}

	// With one member away no other may be removed. Its data is lost: it does not begin again, and is
	// replaced under its address, by itself.
	if out, err := c.command(1, "etcd", "remove", "127.0.0.2", "--yes"); err == nil || !strings.Contains(out, "the quorum would not survive this") {
		t.Errorf("remove with one away: %v, %s", err, out)
	}
	fatal.If(t, os.Rename(c.data(3), c.data(3)+"-lost"))
	c.start(3)
	c.logged(3, "its data was lost")
	c.draws(3) // as a client of the other two
	if c.etcd(3) != 0 {
		t.Error("a member whose data was lost began again")
	}
	out := c.changes(1, "etcd", "replace", "127.0.0.3", "--dry-run")
	if !strings.Contains(out, "does the quorum survive this? yes") || !strings.Contains(out, "nothing was changed") {
		t.Errorf("replace --dry-run: %s", out)
	}
	t.Logf("%s", c.changes(1, "etcd", "replace", "127.0.0.3", "--yes", "--reason", "data lost"))
	c.logged(1, `msg="action of an operator" action="replace 127.0.0.3 with 127.0.0.3" `)
	c.logged(1, ` by=os-user from=etcd reason="data lost"`)
	c.says(1, "3 of 3 voting members answer", "etcd", "status")
	c.logged(3, "votes now")

	// The old data comes back, and is no longer used. Then the member is removed, and joins as a new one.
	c.stop(3)
	fatal.If(t, os.Rename(c.data(3), c.data(3)+"-new"))
	fatal.If(t, os.Rename(c.data(3)+"-lost", c.data(3)))
	c.start(3)
	c.logged(3, "removed 127.0.0.3 from their cluster")
	c.stop(3)
	c.changes(1, "etcd", "remove", "127.0.0.3", "--yes", "--reason", "old data")
	c.logged(2, `msg="action of an operator" action="remove 127.0.0.3" `)
	c.logged(2, ` by=os-user from=etcd reason="old data"`)
	c.says(1, "2 of 2 voting members answer", "etcd", "status")
	fatal.If(t, os.RemoveAll(c.data(3)))
	c.start(3)
	c.says(1, "3 of 3 voting members answer", "etcd", "status")
	c.draws(3)
}

// TestEtcdInsideGrows takes a cluster from one member to three and back, as the guide says.
func TestEtcdInsideGrows(t *testing.T) {
	tier.Check(t, "builds the program, and runs three nodes with etcd inside")
	t.Parallel()
	c := newInsides(t)
	all := c.join
	c.join = c.machine(1)
	c.start(1)
	if out, err := c.command(1, "init", "--fresh", "--timeout", "1m"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.draws(1)
	c.join = all
	for i := 2; i <= 3; i++ {
		c.start(i)
		c.says(1, fmt.Sprintf("%d of %d voting members answer", i, i), "etcd", "status")
		c.draws(i)
	}
	// The first node has the whole list from its next start on, and goes on from its data.
	c.stop(1)
	c.start(1)
	c.says(2, "3 of 3 voting members answer", "etcd", "status")
	c.draws(1)
	for i := 3; i >= 2; i-- {
		c.changes(1, "etcd", "remove", c.machine(i), "--yes") // etcd refuses until all have been connected for some seconds.
		c.says(1, fmt.Sprintf("%d of %d voting members answer", i-1, i-1), "etcd", "status")
		c.logged(i, "removed "+c.machine(i)+" from their cluster")
		c.draws(i) // as a client
	}
	c.stop(2)
	c.stop(3)
	c.draws(1)
}

// memory prints what a node and its member hold at rest.
func memory(t *testing.T, c *insides) {
	for i := 1; i <= 3; i++ {
		sum := 0
		for _, pid := range []int{c.nodes[i].Cmd.Process.Pid, c.etcd(i)} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				return
			}
			_, rest, _ := strings.Cut(string(text), "VmRSS:")
			kb, _ := strconv.Atoi(strings.Fields(rest)[0])
			sum += kb
		}
		t.Logf("machine %d: node and member hold %d MiB", i, sum>>10)
		if sum>>10 > 120 {
			t.Errorf("machine %d: node and member hold %d MiB, want 120 at most", i, sum>>10)
		}
	}
}

// A node that cannot run a member says why and writes nothing.
func TestEtcdInsideBadInput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	file := certstest.File(t, t.TempDir(), "file", nil)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--etcd.inside", dir, "--etcd.endpoints", "http://127.0.0.1:1"}, "etcd.endpoints is set too"},
		{[]string{"--etcd.join", "a,b,c", "--etcd.endpoints", "http://127.0.0.1:1"}, "etcd.endpoints is set too"},
		{[]string{"--etcd.inside", dir, "--etcd.join", "127.0.0.1,127.0.0.1"}, "named twice"},
		{[]string{"--etcd.inside", dir, "--etcd.join", "A.example,a.example", "--etcd.insecure"}, "named twice"},
		{[]string{"--etcd.inside", dir, "--etcd.join", "10.0.0.1:2380"}, "is not a host"},
		{[]string{"--etcd.inside", dir, "--etcd.join", "198.51.100.1,198.51.100.2,198.51.100.3"}, "could change what nodes were granted"},
		{[]string{"--etcd.inside", dir, "--etcd.join", "127.0.0.1", "--etcd.address", "127.0.0.9"}, "is not in etcd.join"},
		{[]string{"--etcd.inside", dir, "--etcd.tls.ca", file}, "all of etcd.tls.ca, etcd.tls.cert and etcd.tls.key"},
		{[]string{"--etcd.inside", dir, "--etcd.port-clients", "70000"}, "out of range"},
		{[]string{"--etcd.inside", dir, "--lease.ttl", "2s"}, "that etcd inside grants"},
		{[]string{"--etcd.inside", file}, "is not a directory"},
		{[]string{"--etcd.inside", "/proc/none"}, "etcd.inside: /proc/none"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"serve", "--listen.grpc", "127.0.0.1:0"}, tc.args...), strings.NewReader(""), &out, &errs, nil)
		if code != 2 || !strings.Contains(errs.String(), tc.want) {
			t.Errorf("%v: exit code %d, %s; want 2 and %q", tc.args, code, errs.String(), tc.want)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
}

// What a machine lacks for a while after its start is no wrong setting: the unit starts the node again.
func TestEtcdInsideNotYet(t *testing.T) {
	taken, pki := t.TempDir(), t.TempDir()
	lock, err := os.Create(filepath.Join(taken, "node.lock"))
	fatal.If(t, err)
	defer lock.Close()
	fatal.If(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	authority := certstest.NewAuthority(t, "ours")
	ca := certstest.File(t, pki, "ca.pem", authority.PEM)
	cert, key := authority.Issue(t, "later", time.Hour, 2*time.Hour).Write(t, pki, "later")
	dir := filepath.Join(t.TempDir(), "new")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--etcd.inside", dir, "--etcd.join", "198.51.100.1,198.51.100.2", "--etcd.insecure"}, "is an address of this machine"},
		{[]string{"--etcd.inside", dir, "--etcd.join", "a.invalid,b.invalid", "--etcd.address", "a.invalid", "--etcd.insecure"}, "has no address"},
		{[]string{"--etcd.inside", dir, "--etcd.tls.ca", ca, "--etcd.tls.cert", cert, "--etcd.tls.key", key}, "check this machine's clock"},
		{[]string{"--etcd.inside", dir, "--tls.cert", cert, "--tls.key", key}, "check this machine's clock"},
		{[]string{"--etcd.inside", taken}, "in use by another node"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"serve", "--listen.grpc", "127.0.0.1:0"}, tc.args...), strings.NewReader(""), &out, &errs, nil)
		if code != cli.ExitUnavailable || !strings.Contains(errs.String(), tc.want) {
			t.Errorf("%v: exit code %d, %s; want 3 and %q", tc.args, code, errs.String(), tc.want)
		}
	}
	if strings.Contains(" "+strings.Join(field(readFile(t, "../../deploy/systemd/allocator.service"), "RestartPreventExitStatus"), " ")+" ", " 3 ") {
		t.Error("the unit does not start such a node again")
	}
}

// TestEtcdInsideUnderPressure takes every core with requests for IDs, at nodes that have etcd
// inside. No election happens, and no window is lost.
func TestEtcdInsideUnderPressure(t *testing.T) {
	tier.Nightly(t, "takes all cores for half a minute")
	c := newInsides(t)
	for i := 1; i <= 3; i++ {
		c.start(i)
	}
	if out, err := c.command(1, "init", "--fresh", "--timeout", "1m"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i := 1; i <= 3; i++ {
		c.draws(i)
	}
	before := c.elections()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup
	var ids, failures atomic.Int64
	for i := 1; i <= 3; i++ {
		sdk, err := client.New(client.Options{Targets: []string{net.JoinHostPort(c.machine(i), strconv.Itoa(c.clients+toGRPC))}, Unordered: true})
		fatal.If(t, err)
		defer sdk.Close()
		for range 16 * runtime.NumCPU() {
			all.Go(func() {
				for ctx.Err() == nil {
					if b, err := sdk.Block(ctx, 1); err == nil {
						ids.Add(int64(b.Count))
					} else if ctx.Err() == nil {
						failures.Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d IDs in 30 s, one a request; %d calls failed; leaders changed %d times before and %d times after", ids.Load(), failures.Load(), before, c.elections())
	if after := c.elections(); after != before {
		t.Errorf("the leader changed %d times under load", after-before)
	}
	for i := 1; i <= 3; i++ {
		if log := c.nodes[i].Log(); strings.Contains(log, "WINDOW_EXHAUSTED") || strings.Contains(log, "lease lost") {
			t.Errorf("machine %d lost its window", i)
		}
		c.draws(i)
	}
}

// elections returns how often machine 1 saw a leader change.
func (c *insides) elections() (n int) {
	c.t.Helper()
	pki := filepath.Join(c.dir, "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "127.0.0.1.pem"), filepath.Join(pki, "127.0.0.1.key"))
	fatal.If(c.t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(readFile(c.t, filepath.Join(pki, "ca.pem"))))
	r, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}}}).
		Get(fmt.Sprintf("https://127.0.0.1:%d/metrics", c.clients))
	fatal.If(c.t, err)
	defer r.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r.Body); err != nil {
		c.t.Fatal(err)
	}
	_, rest, ok := strings.Cut(b.String(), "\netcd_server_leader_changes_seen_total ")
	if !ok {
		c.t.Fatal("etcd counts no changes of its leader")
	}
	line, _, _ := strings.Cut(rest, "\n")
	if n, err = strconv.Atoi(line); err != nil {
		c.t.Fatal(err)
	}
	return n
}
