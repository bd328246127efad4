//go:build unix

package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// machines are 127.0.0.1 and following, each with a directory, on which members run as processes.
type machines struct {
	t              *testing.T
	dir            string
	clients, peers int // ports
}

func newMachines(t *testing.T) machines {
	t.Helper()
	t.Setenv(serves, "1")
	m := machines{t: t, dir: t.TempDir()}
	for _, port := range []*int{&m.clients, &m.peers} {
		for try := 0; *port == 0; try++ {
			_, text, _ := net.SplitHostPort(loopback.Address())
			if try == 100 {
				t.Fatal("no port is free on two addresses")
			}
			l, err := net.Listen("tcp", "127.0.0.3:"+text)
			if err != nil && try == 0 {
				t.Skipf("not run: this machine has one address of loopback: %v", err)
			}
			if err == nil {
				_ = l.Close()
				*port, _ = strconv.Atoi(text)
			}
		}
	}
	return m
}

func host(i int) string { return fmt.Sprintf("127.0.0.%d", i) }

// node is a node on a machine, without anything but its member.
type node struct {
	*Inside
	log      *output.Text
	restored chan lease.Act
	stop     func()
}

// start starts a node with the directory of machine i at host(at); 0: without an address of its own.
func (m machines) start(i, at int, join ...string) *node {
	m.t.Helper()
	log := &output.Text{}
	restored := make(chan lease.Act, 1)
	cfg := Config{Node: "node-" + host(at), Program: os.Args[0], Log: slog.New(slog.NewTextHandler(log, nil)), Restored: restored}
	cfg.Etcd.Inside = config.Inside{
		Dir:        filepath.Join(m.dir, strconv.Itoa(i)),
		Join:       join,
		Address:    host(at),
		ClientPort: m.clients,
		PeerPort:   m.peers,
		Quota:      64 << 20,
	}
	if at == 0 {
		cfg.Etcd.Inside.Address = ""
	}
	in, err := New(m.t.Context(), cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	n := &node{Inside: in, log: log, restored: restored}
	n.stop = func() {
		if ctx.Err() != nil {
			return
		}
		cancel()
		if err := <-ended; err != nil {
			m.t.Errorf("node at %s: %v", host(at), err)
		}
	}
	m.t.Cleanup(n.stop)
	return n
}

// await waits until the node says that something is so.
func (n *node) await(t *testing.T, what string, so func() bool) {
	t.Helper()
	wait.NoError(t, n.Own.Host+": "+what, func() error {
		if so() {
			return nil
		}
		return fmt.Errorf("%+v\n%s", n.Health(), n.log)
	})
}

// voters waits until so many members vote and answer.
func (n *node) voters(t *testing.T, want int) {
	t.Helper()
	n.await(t, fmt.Sprintf("%d members vote", want), func() bool {
		h := n.Health()
		return h.Up && h.Quorum.Voters == want && h.Quorum.Healthy == want
	})
}

func (n *node) logged(t *testing.T, text string) {
	t.Helper()
	n.await(t, "it logs "+text, func() bool { return strings.Contains(n.log.String(), text) })
}

// with calls the member of the node.
func (n *node) with(t *testing.T, f func(context.Context, *clientv3.Client) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()
	c, err := etcdstore.Dial(etcdstore.Config{Endpoints: []string{n.cfg.Etcd.ClientURL(n.Own.Host)}})
	fatal.If(t, err)
	defer c.Close()
	if err := f(ctx, c); err != nil {
		t.Fatalf("%s: %v", n.Own.Host, err)
	}
}

// A member that was alone on loopback gets an address, tells it to the cluster that is itself, and others join.
func TestAddressIsTold(t *testing.T) {
	tier.Check(t, "runs two members as processes")
	m := newMachines(t)
	one := m.start(1, 1)
	one.voters(t, 1)
	one.logged(t, "has one member")
	one.stop()
	join := []string{host(2), host(3)}
	one, two := m.start(1, 2, join...), m.start(2, 3, join...)
	one.voters(t, 2)
	two.voters(t, 2)
	one.with(t, func(ctx context.Context, c *clientv3.Client) error {
		r, err := c.MemberList(ctx)
		if err != nil {
			return err
		}
		var peers []string
		for _, member := range r.Members {
			peers = append(peers, member.PeerURLs...)
		}
		slices.Sort(peers)
		if want := []string{one.Own.Peer, two.Own.Peer}; !slices.Equal(peers, want) {
			t.Errorf("the members are at %v, want %v", peers, want)
		}
		return nil
	})
	one.await(t, "it notes its address", func() bool {
		data, err := one.Dir.read()
		return err == nil && data.Host == host(2) && data.Peer == one.Own.Peer
	})
}

// A member that is alone listens on a Unix socket that other users cannot open. A second one on its machine
// does not start, and it joins others when it has an address.
func TestSocket(t *testing.T) {
	tier.Check(t, "runs two members as processes")
	m := newMachines(t)
	one := m.start(1, 0)
	one.voters(t, 1)
	one.with(t, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Put(ctx, "key", "value")
		return err
	})
	path := one.cfg.Etcd.Socket()
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the sockets: %v, %v", info, err)
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", m.clients)); err == nil {
		_ = c.Close()
		t.Error("it listens for every user of the machine")
	}
	if syncs := SyncTimes(t.Context(), one.cfg.Etcd); len(syncs) != 1 || syncs[path] == 0 {
		t.Errorf("its disk: %v", syncs)
	}
	if one.hangs(t.Context()) {
		t.Error("it hangs")
	}
	two := m.start(2, 0)
	two.logged(t, "etcd inside ended")
	if h := two.Health(); h.Up {
		t.Errorf("a second one runs: %+v", h)
	}
	two.stop()
	one.stop()
	one = m.start(1, 1)
	one.voters(t, 1)
	one.with(t, func(ctx context.Context, c *clientv3.Client) error {
		r, err := c.Get(ctx, "key")
		if err == nil && len(r.Kvs) != 1 {
			err = errors.New("its data is gone")
		}
		return err
	})
}

// Two members are restored from the copy of a database that is made before an upgrade. They begin together,
// with its keys, and a member that loses its data then is not restored from it again.
func TestLifeOfARestore(t *testing.T) {
	tier.Check(t, "runs two members as processes")
	m := newMachines(t)
	join := []string{host(2), host(3)}
	one, two := m.start(1, 2, join...), m.start(2, 3, join...)
	one.voters(t, 2)
	const keys = 100
	one.with(t, func(ctx context.Context, c *clientv3.Client) (err error) {
		for i := 0; i < keys && err == nil; i++ {
			_, err = c.Put(ctx, fmt.Sprintf("key-%d", i), strconv.Itoa(i))
		}
		return err
	})
	one.stop()
	two.stop()
	fatal.If(t, one.Dir.beforeUpgrade("3.99.0", time.Now(), minFree+1<<30))
	list, err := one.Dir.Snapshots().List(time.Now())
	if err != nil || len(list) != 1 {
		t.Fatalf("the copy: %v, %v", list, err)
	}
	before, err := one.Dir.read()
	fatal.If(t, err)
	plan := func(n *node) (Restored, error) {
		return n.Dir.PlanRestore(list[0].Path, n.Own.Host, n.Own.Peer, Initial(join, n.cfg.Etcd.PeerURL), 0)
	}
	restore := func(n *node) (r Restored) {
		t.Helper()
		r, err := plan(n)
		if err == nil {
			r.Act.By = "alice@" + n.Own.Host
			err = n.Dir.Restore(r, etcdserver.Restore)
		}
		if err != nil || r.Checked || r.Cluster == before.Cluster {
			t.Fatalf("%s: %+v, %v", n.Own.Host, r, err)
		}
		return r
	}
	r := restore(one)
	restore(two)
	one = m.start(1, 2, join...)
	one.logged(t, host(3)+" to answer")
	two = m.start(2, 3, join...)
	one.voters(t, 2)
	two.voters(t, 2)
	if by := (<-one.restored).By; by != "alice@"+one.Own.Host {
		t.Errorf("restored by %q", by)
	}
	one.with(t, func(ctx context.Context, c *clientv3.Client) error {
		got, err := c.Get(ctx, "key-", clientv3.WithPrefix())
		if err == nil && (got.Count != keys || got.Header.ClusterId != r.Cluster) {
			t.Errorf("%d keys in cluster %x, want %d in %x", got.Count, got.Header.ClusterId, keys, r.Cluster)
		}
		return err
	})
	var refusal *member.Refusal
	if _, err := plan(one); !errors.As(err, &refusal) || refusal.Reason != member.Lost {
		t.Errorf("a member that has started is restored again: %v", err)
	}

	two.stop()
	fatal.If(t, os.RemoveAll(string(two.Dir)))
	restore(two) // Nobody on this machine knows that it had started.
	two = m.start(2, 3, join...)
	two.logged(t, "has started from this restore already")
	if h := two.Health(); h.Up {
		t.Errorf("it runs: %+v", h)
	}
}

// The latest hourly snapshot is copied once it was found whole, and again only where that failed. A failure is said
// with what the program printed, which may have a secret, and is no event, in the log alone.
func TestCopies(t *testing.T) {
	for _, tc := range []struct {
		name    string
		program string // what verifies
		script  string
		fails   string
		runs    int // of the command, in three calls
	}{
		{"well", "true", `cp "$2" "$1/copy"`, "", 1},
		{"leaves a process with its output", "true", `sleep 5 & cp "$2" "$1/copy"`, "", 1}, // as ssh with ControlPersist
		{"damaged", "false", "", "false: exit status 1", 0},
		{"no room", "true", "echo no room >&2; exit 3", "sh: exit status 3", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log, dir := &output.Text{}, t.TempDir()
			i := nodeAt("a", Dir(dir), Config{Program: tc.program, Log: slog.New(slog.NewTextHandler(log, nil))})
			command, now := filepath.Join(dir, "copy.sh"), time.Now()
			path := i.Dir.Snapshots().Path(hourly, now)
			i.cfg.Etcd.Inside.SnapshotEvery, i.cfg.Etcd.Inside.SnapshotCommand = time.Hour, "sh "+command+" "+dir
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("data"), 0o600),
				os.WriteFile(i.Dir.Snapshots().Path("before_3.8.0", now.Add(-time.Minute)), nil, 0o600),
				os.WriteFile(command, []byte("echo >> \"$1/runs\"\n"+tc.script+"\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
			for n := range 3 { // The second is in the pause after a failure.
				if i.snapshotIfDue(t.Context(), "", member.Status{}); n == 1 {
					i.snapshotAfter = time.Time{}
				}
			}
			if h := i.Health(); (h.SnapshotFails == "") != (tc.fails == "") || !strings.Contains(h.SnapshotFails, tc.fails) ||
				!strings.Contains(log.String(), tc.fails) || strings.Contains(tc.script, "no room") != strings.Contains(log.String(), "no room") ||
				strings.Contains(h.SnapshotFails, "no room") {
				t.Errorf("it fails with %q, want %q: %s", h.SnapshotFails, tc.fails, log)
			}
			if runs, _ := os.ReadFile(filepath.Join(dir, "runs")); len(runs) != tc.runs {
				t.Errorf("the command ran %d times, want %d", len(runs), tc.runs)
			}
			copied, err := os.ReadFile(filepath.Join(dir, "copy"))
			if done := i.Dir.Copied(); (err == nil && string(copied) == "data" && done.Path == path) != (tc.fails == "") ||
				(done.Path == "") != (tc.fails != "") {
				t.Errorf("copied %q, %v; noted %+v", copied, err, done)
			}
			if i.cfg.Etcd.Inside.SnapshotCommand = ""; tc.fails != "" {
				i.snapshotAfter = time.Now().Add(-time.Second)
				if i.snapshotIfDue(t.Context(), "", member.Status{}); i.Health().SnapshotFails != "" || !strings.Contains(log.String(), "succeeds again") {
					t.Errorf("without the command: %+v, %s", i.Health(), log)
				}
			}
		})
	}
}

// What a program started ends with it, when the node stops or the program's time is over.
func TestExecuteEnds(t *testing.T) {
	if _, err := execute(t.Context(), time.Millisecond, "sleep", "3600"); err == nil || !strings.Contains(err.Error(), "took longer than 1ms") {
		t.Errorf("too long: %v", err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	fatal.If(t, syscall.Mkfifo(pipe, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := execute(ctx, time.Hour, "sh", "-c", "sleep 3600 > "+pipe+" & wait")
		ended <- err
	}()
	f, err := os.Open(pipe) // once sleep has it open
	fatal.If(t, err)
	defer f.Close()
	cancel()
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("sleep holds the pipe: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("it succeeded")
	}
}
