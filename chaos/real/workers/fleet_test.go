package workers

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/chaos/wait"
)

// window is worker.window, as short as possible: faults last longer. firstSID and numbers
// are the range: as many as there are programs, so that one more program gets a number
// whose interval has passed.
const (
	window   = 2 * time.Second
	firstSID = 8
	numbers  = 4
)

// fleet is two nodes and the programs that have worker numbers of them.
type fleet struct {
	t       *testing.T
	name    string // and space
	careful bool
	dir     string
	etcd    string
	init    *rig.Process
	nodes   [2]*rig.Process
	proxies [2][]*proxy // Each node has two: for the last program, and for all others.

	programs []*program
	spare    *program // started by faults
}

// program is a generator, with its runner if it has one.
type program struct {
	*rig.Process
	fleet *fleet
}

func (f *fleet) fatalf(format string, args ...any) {
	f.t.Helper()
	f.t.Fatalf(f.name+": "+format, args...)
}

// must ends the test if there is an error.
func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.fatalf("%v", err)
	}
}

// addresses is how many a fleet needs.
const addresses = 8

// newFleet returns a fleet; begin starts it.
func newFleet(t *testing.T, bin binaries, etcd string, addrs []string, careful bool) *fleet {
	t.Helper()
	f := &fleet{t: t, name: "careless", careful: careful, etcd: etcd}
	if careful {
		f.name = "careful"
	}
	f.dir = filepath.Join(t.TempDir(), f.name)
	fatal.If(t, os.Mkdir(f.dir, 0o700))
	process := func(name, path string, hooked bool, args ...string) *rig.Process {
		p := &rig.Process{Name: name, Place: rig.Loopback{}, Path: path, Args: args, Dir: f.dir, Hooked: hooked}
		t.Cleanup(func() { // killed whole: nobody is asked
			if p.Running() {
				_ = p.Resume()
				_ = p.Kill()
			}
			if t.Failed() {
				text := p.Output(p.Run())
				t.Logf("%s, %s:\n%s", f.name, p.RunName(), text[max(0, len(text)-1500):])
			}
		})
		return p
	}
	space := []string{"--space", f.name, "--etcd.endpoints", etcd}
	f.init = process("init", bin.allocator, false, append([]string{"init", "--fresh", "--layout", "twitter"}, space...)...)
	for i := range f.nodes {
		a := addrs[4*i:]
		f.nodes[i] = process(fmt.Sprintf("node%d", i+1), bin.allocator, false, append([]string{"serve", "--node.name", fmt.Sprintf("node%d", i+1),
			"--listen.grpc", a[0], "--listen.http", a[1], "--listen.admin", a[2], "--listen.gossip", a[3], "--layout", "twitter", "--sid-range", fmt.Sprintf("0-%d", firstSID-1),
			"--worker.sid-range", fmt.Sprintf("%d-%d", firstSID, firstSID+numbers-1), "--worker.window", window.String(),
			"--worker.per-client", strconv.Itoa(numbers)}, space...)...)
		f.proxies[i] = []*proxy{newProxy(t, a[0]), newProxy(t, a[0])}
	}
	add := func(name, worker string, runner, asks bool) *program {
		own := 0
		if name == last {
			own = 1
		}
		addr := f.proxies[0][own].addr + "," + f.proxies[1][own].addr
		ids := []string{"--dir", f.dir, "--name", name}
		direct := append(slices.Clone(ids), "--addr", addr)
		var p *rig.Process
		switch {
		case !careful:
			p = process(name, bin.legacy, true, direct...)
		case runner:
			args := append([]string{"worker", "run", "--name", worker, "--addr", addr, "--margin", "500ms", "--grace", "100ms", "--", bin.legacy}, ids...)
			if asks {
				args = append(args, "--permit")
			}
			p = process(name, bin.allocator, false, args...)
		default:
			p = process(name, bin.legacy, true, append(direct, "--permit")...)
		}
		return &program{p, f}
	}
	for _, name := range []string{"asks-1", "asks-2"} {
		f.programs = append(f.programs, add(name, name, false, true))
	}
	// Two runners of one name.
	f.programs = append(f.programs, add("runner-asks", "runner", true, true), add(last, "runner", true, false))
	f.spare = add("spare", "spare", false, true)
	return f
}

// begin initializes the space, and starts nodes and programs.
func (f *fleet) begin() {
	f.t.Helper()
	f.must(f.init.Start())
	f.until("the space is initialized", func() bool { return !f.init.Running() })
	if exit := f.init.Exit(); exit != "exit status 0" {
		f.fatalf("init: %s", exit)
	}
	f.restore()
}

// last is the program that asks nobody, and is stopped by its runner.
const last = "runner-stops"

// node takes a node away from all programs, or has its answers dropped.
func (f *fleet) node(i int, down, silent bool) {
	for _, p := range f.proxies[i] {
		p.set(down, silent)
	}
}

// until waits until done is true.
func (f *fleet) until(what string, done func() bool) {
	f.t.Helper()
	wait.Until(f.t, f.name+": "+what, done)
}

// restore starts the processes that do not run, and waits until each program uses IDs.
func (f *fleet) restore() {
	f.t.Helper()
	for _, p := range f.nodes {
		if !p.Running() {
			fatal.If(f.t, p.Start())
		}
	}
	before := map[*program]int64{}
	for _, p := range f.programs {
		before[p] = p.size()
	}
	for _, p := range f.programs {
		f.until(p.Name+" uses IDs", func() bool {
			f.start(p)
			return p.size() > before[p]
		})
	}
}

// start starts a program unless it runs, as a supervisor does: one without a number ends.
func (f *fleet) start(p *program) {
	f.t.Helper()
	if p.Running() {
		return
	}
	f.must(p.Start())
}

// size returns how much the program has written in all of its runs.
func (p *program) size() (n int64) {
	files, _ := filepath.Glob(filepath.Join(p.fleet.dir, p.Name+"-*.ids"))
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			n += info.Size()
		}
	}
	return n
}

var numberLine = regexp.MustCompile(`(?m)^number (\d+) pid (\d+)$`)

// number returns the worker number and the process of the present run; 0: none yet.
func (p *program) number() (number, pid int) {
	m := numberLine.FindStringSubmatch(p.Output(p.Run()))
	if m == nil {
		return 0, 0
	}
	number, _ = strconv.Atoi(m[1])
	pid, _ = strconv.Atoi(m[2])
	return number, pid
}

// says reports whether the present run has written a text.
func (p *program) says(text string) bool { return strings.Contains(p.Output(p.Run()), text) }

// startSpare starts the spare program, and waits until it has a number and uses it. Only the
// number of p is to be had.
func (f *fleet) startSpare(number int) {
	f.t.Helper()
	was := f.spare.size()
	f.until("the spare program uses IDs", func() bool {
		f.start(f.spare)
		return f.spare.size() > was
	})
	if got, _ := f.spare.number(); got != number && f.careful { // careless programs go on without theirs
		f.fatalf("the spare program has number %d, and only %d was to be had", got, number)
	}
}

func (f *fleet) stopSpare() {
	f.t.Helper()
	fatal.If(f.t, f.spare.Terminate(wait.Most))
}

// account is what a fleet used.
type account struct {
	ids, duplicates int
	numbers         map[int64]int // IDs by worker number
	first           int64         // duplicate
}

// account reads the IDs of all runs.
func (f *fleet) account() (a account) {
	f.t.Helper()
	files, err := filepath.Glob(filepath.Join(f.dir, "*.ids"))
	fatal.If(f.t, err)
	var all []int64
	for _, file := range files {
		raw, err := os.ReadFile(file)
		fatal.If(f.t, err)
		for ; len(raw) >= 8; raw = raw[8:] { // a killed program may leave a part of one
			all = append(all, int64(binary.LittleEndian.Uint64(raw)))
		}
	}
	slices.Sort(all)
	a = account{ids: len(all), numbers: map[int64]int{}}
	for i, id := range all {
		a.numbers[id>>12&1023]++
		if i > 0 && id == all[i-1] {
			a.duplicates++
			a.first = cmp.Or(a.first, id)
		}
	}
	return a
}

// used returns about how many IDs the fleet has used so far.
func (f *fleet) used() (n int64) {
	for _, p := range append(slices.Clone(f.programs), f.spare) {
		n += p.size() / 8
	}
	return n
}

// extended waits for the next extension of any worker, and returns its number.
func (f *fleet) extended(ctx context.Context, c *clientv3.Client, armed func()) (sid int, term int64) {
	f.t.Helper()
	prefix := "/allocator/" + f.name + "/window/"
	watch := c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-watch
	armed()
	for res := range watch {
		for _, e := range res.Events {
			sid, _ := strconv.Atoi(strings.TrimPrefix(string(e.Kv.Key), prefix))
			if sid >= firstSID && strings.Contains(string(e.Kv.Value), `"active"`) {
				return sid, e.Kv.Version
			}
		}
	}
	f.fatalf("etcd's watch ended")
	return 0, 0
}

// proxy is what programs reach a node through.
type proxy struct {
	addr, node string

	mu     sync.Mutex // guards the rest
	down   bool
	silent bool // drops what the node answers
	conns  map[net.Conn]bool
}

func newProxy(t *testing.T, node string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	p := &proxy{addr: l.Addr().String(), node: node, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { _ = l.Close(); p.set(true, false) })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(in)
		}
	}()
	return p
}

// set takes the node away, or has its answers dropped. Taking it away ends connections.
func (p *proxy) set(down, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.silent = down, silent
	for c := range p.conns {
		if down {
			_ = c.Close()
		}
	}
}

func (p *proxy) serve(in net.Conn) {
	defer func() { _ = in.Close() }()
	p.mu.Lock()
	down := p.down
	p.mu.Unlock()
	if down {
		return
	}
	out, err := net.Dial("tcp", p.node)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	p.mu.Lock()
	p.conns[in] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, in)
		p.mu.Unlock()
	}()
	go p.copy(out, in, false)
	p.copy(in, out, true)
}

func (p *proxy) copy(to, from net.Conn, answers bool) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		drop := answers && p.silent
		p.mu.Unlock()
		if n > 0 && !drop {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// gone reports whether a process has ended.
func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }
