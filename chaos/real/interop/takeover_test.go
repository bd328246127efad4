package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

const takeoverGuide = "../../../docs/how-to/take-over-snowflakes.md"

// takeover is a takeover in progress: a directory in which the guide's commands run.
type takeover struct {
	t      *testing.T
	dir    string // with ids.txt, and the logs of all generators and nodes in new-rows
	layout flake.Format
	above  string // that adopt printed
	etcd   string
	env    []string
	stop   map[string]func() // of each node: ends its client, then itself
}

// commands returns what the guide has under a mark, with the values of this takeover.
func (k *takeover) commands(mark string) string {
	k.t.Helper()
	here := strings.NewReplacer("2124454377811877890", k.above, "http://10.0.0.1:2379", k.etcd, "twitter", k.layout.Layout.String())
	return here.Replace(pages.Open(k.t, takeoverGuide).Text(k.t, "run: "+mark))
}

// run runs commands and returns what they print, and their exit code.
func (k *takeover) run(commands string) (string, int) {
	k.t.Helper()
	return pages.NewShell(k.t, pages.Config{Dir: k.dir, Env: k.env}).Must(commands)
}

func (k *takeover) rows(name string) string { return filepath.Join(k.dir, "new-rows", name+".txt") }

func (k *takeover) legacy(kind string, worker int) (stop func()) {
	k.t.Helper()
	name := fmt.Sprintf("%s-%d", kind, worker)
	stop = startLegacy(k.t, k.rows(name), kind, worker)
	k.grows(name)
	return stop
}

// grows waits until a log has more IDs than now.
func (k *takeover) grows(name string) {
	k.t.Helper()
	size := func() int64 {
		info, err := os.Stat(k.rows(name))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	was := size()
	wait.Until(k.t, name+" issues", func() bool { return size() > was+20*500 })
}

// node starts a node by commands of the guide, and draws IDs from it until it is stopped.
func (k *takeover) node(name, mark string) {
	k.t.Helper()
	cmd := exec.Command("sh", "-euc", "exec "+k.commands(mark))
	cmd.Dir, cmd.Env = k.dir, append(append(os.Environ(), k.env...), "ALLOCATOR_NODE_NAME="+name)
	n, stop := startProcess(k.t, cmd)
	addr := n.Prints(k.t, `"msg":"listening".*?"grpc":"([^"]+)"[\s\S]*"msg":"ready"`)[1]
	c, err := client.New(client.Options{Targets: []string{addr}, Mode: client.Direct})
	fatal.If(k.t, err)
	f, err := os.OpenFile(k.rows(name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	fatal.If(k.t, err)
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-end:
				ended <- errors.Join(c.Close(), f.Close())
				return
			default:
			}
			id, err := c.Next(k.t.Context())
			if err == nil {
				_, err = fmt.Fprintln(f, int64(id))
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	k.stop[name] = func() {
		k.t.Helper()
		close(end)
		if err := <-ended; err != nil {
			k.t.Errorf("drawing from %s: %v", name, err)
		}
		stop()
	}
	k.grows(name)
}

// drop stops a node.
func (k *takeover) drop(name string) {
	k.t.Helper()
	k.stop[name]()
	delete(k.stop, name)
}

// issued returns the IDs of a log and the sids in them.
func (k *takeover) issued(name string) (ids []flake.ID, sids map[flake.SID]bool) {
	k.t.Helper()
	text, err := os.ReadFile(k.rows(name))
	fatal.If(k.t, err)
	sids = map[flake.SID]bool{}
	for line := range strings.Lines(string(text)) {
		id, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		fatal.If(k.t, err)
		ids = append(ids, flake.ID(id))
		sids[k.layout.SID(flake.ID(id))] = true
	}
	return ids, sids
}

// TestTakeover follows docs/how-to/take-over-snowflakes.md beside real generators in
// processes of their own, which issue throughout.
func TestTakeover(t *testing.T) {
	path, err := buildAllocator()
	fatal.If(t, err)
	etcd := startEtcd(t)
	for kind, layout := range map[string]string{"bwmarrin": "twitter", "sonyflake": "sonyflake"} {
		t.Run(kind, func(t *testing.T) {
			format, err := flake.ParseFormat(layout)
			fatal.If(t, err)
			k := &takeover{t: t, dir: t.TempDir(), layout: format, etcd: etcd, stop: map[string]func(){}, env: []string{
				"PATH=" + filepath.Dir(path) + ":" + os.Getenv("PATH"), "ALLOCATOR_SPACE=" + kind, "ALLOCATOR_ETCD_ENDPOINTS=" + etcd, "ALLOCATOR_LOG_FORMAT=json",
				"ALLOCATOR_LISTEN_GRPC=127.0.0.1:0", "ALLOCATOR_LISTEN_HTTP=127.0.0.1:0", "ALLOCATOR_LISTEN_ADMIN=127.0.0.1:0", "ALLOCATOR_LISTEN_GOSSIP=127.0.0.1:0"}}
			fatal.If(t, os.Mkdir(filepath.Join(k.dir, "new-rows"), 0o700))
			k.follow(kind)
		})
	}
}

func (k *takeover) follow(kind string) {
	t := k.t
	one, two := k.legacy(kind, 1), k.legacy(kind, 2)
	first, second := kind+"-1", kind+"-2"

	// What is exported ends with a whole line.
	if out, code := k.run("cat new-rows/" + first + ".txt | head -n 400 > ids.txt; head -n 500 new-rows/" + second + ".txt >> ids.txt"); code != 0 {
		t.Fatal(out)
	}
	out, code := k.run(k.commands("adopt"))
	if code != 0 || !strings.Contains(out, "layout      "+k.layout.Layout.String()+"\n") || !strings.Contains(out, "sids        2 of ") || !strings.Contains(out, "duplicates  0") {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	k.above = between(out, "--above ", " ")
	above, err := strconv.ParseInt(k.above, 10, 64)
	if err != nil || !strings.Contains(out, " --reserve 0-7\n") {
		t.Fatalf("%v:\n%s", err, out)
	}
	out, code = k.run(k.commands("init"))
	if code != 0 || !strings.Contains(out, "every ID is above "+k.above) || !strings.Contains(out, "sids 0-7 are reserved") {
		t.Fatalf("exit code %d:\n%s", code, out)
	}

	k.node("node-1", "beside")
	k.node("node-2", "beside")
	k.grows(first)
	one()
	k.grows("node-1")
	k.grows(second)
	two()
	for _, node := range []string{"node-1", "node-2"} {
		k.grows(node)
		ids, sids := k.issued(node)
		for sid := range sids {
			if sid < 8 {
				t.Errorf("%s issued as sid %d", node, sid)
			}
		}
		for _, id := range ids {
			if id <= flake.ID(above) {
				t.Fatalf("%s issued %d, not above %d", node, id, above)
			}
		}
	}
	if out, code = k.run(strings.TrimSpace(k.commands("unreserve")) + " --yes"); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	nodes := k.env
	k.env = append(slices.Clone(nodes), "ALLOCATOR_SID_RANGE=0-7")
	k.node("node-3", "beside")
	k.env = nodes
	_, given := k.issued("node-3")
	for sid := range given {
		if sid > 7 {
			t.Errorf("a node of the sids that were given back issued as sid %d", sid)
		}
	}
	for name := range k.stop {
		k.drop(name)
	}

	out, code = k.run(k.commands("audit"))
	if code != 0 || !strings.Contains(out, "duplicates  0\n") {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	var found struct {
		IDs  int64            `json:"ids"`
		SIDs map[string]int64 `json:"sids"`
	}
	asJSON, _ := k.run(strings.TrimSpace(k.commands("audit")) + " --format json")
	if err := json.Unmarshal([]byte(asJSON), &found); err != nil || len(found.SIDs) != 5 || found.IDs < 5000 {
		t.Errorf("%v, %s", err, asJSON)
	}
	t.Logf("%d IDs, of sids %v", found.IDs, found.SIDs)

	// The mistake that the guide warns of: an old generator runs on a sid that a node takes.
	for _, row := range []string{first, second, "node-1", "node-2", "node-3"} {
		fatal.If(t, os.Remove(k.rows(row)))
	}
	old := k.legacy(kind, 9)
	k.env = append(k.env, "ALLOCATOR_SID_RANGE=9")
	k.node("node-4", "beside")
	k.grows(kind + "-9")
	k.drop("node-4")
	old()
	out, code = k.run(k.commands("audit"))
	if n, err := strconv.Atoi(between(out, "duplicates  ", "\n")); code != 1 || err != nil || n == 0 {
		t.Errorf("exit code %d, %v:\n%s", code, err, out)
	}
	t.Logf("with one sid twice: %s duplicates", between(out, "duplicates  ", "\n"))
}

// between returns what is in text after a mark and before the next end.
func between(text, mark, end string) string {
	_, text, _ = strings.Cut(text, mark)
	text, _, _ = strings.Cut(text, end)
	return text
}

// startEtcd starts an etcd for the test and returns its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	path, err := build.Etcd(t.Context(), programs)
	fatal.If(t, err)
	var urls []string
	for _, addr := range loopback.Addresses(2) {
		urls = append(urls, "http://"+addr)
	}
	startProcess(t, exec.Command(path, "--data-dir", filepath.Join(t.TempDir(), "data"), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
		"--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", "default="+urls[1], "--unsafe-no-fsync", "--log-level", "error"))
	wait.NoError(t, "etcd listens", func() error {
		c, err := net.Dial("tcp", strings.TrimPrefix(urls[0], "http://"))
		if err == nil {
			err = c.Close()
		}
		return err
	})
	return urls[0]
}
