package workers

import (
	"context"
	"flag"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/clockhook"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

var ids = flag.Int64("ids", 0, "all faults again and again until the careful fleet has used so many IDs; 0: a few faults, once")

// binaries are the programs under test.
type binaries struct{ allocator, legacy, etcd string }

// run is a run of both fleets.
type run struct {
	t      *testing.T
	etcd   *rig.Process
	client *clientv3.Client
	fleets []*fleet
}

// TestWorkers: see package workers.
func TestWorkers(t *testing.T) {
	if err := clockhook.Supported(); err != nil {
		t.Skipf("not run: %v", err)
	}
	r := start(t)
	began, rounds := time.Now(), 0
	faults := []struct {
		name string
		do   func(f *fleet)
	}{
		{"a program is stopped beyond its interval", func(f *fleet) { f.stopBeyond(f.programs[1]) }},
		{"a node is killed between extending and answering", func(f *fleet) { f.killBeforeAnswer(r.client) }},
		{"a program's clock leaps beyond its interval", func(f *fleet) { f.leap(f.programs[0]) }},
		{"a runner is stopped beyond its interval", func(f *fleet) { f.stopBeyond(f.programs[2]) }},
		{"a runner is cut off from the nodes beyond its interval", func(f *fleet) { f.cutOff(f.programs[3]) }},
		{"a runner is killed", func(f *fleet) { f.killRunner(f.programs[3]) }},
		{"the program of a runner is killed", func(f *fleet) { f.killChild(f.programs[2]) }},
	}
	if *ids == 0 {
		faults = faults[:2]
	}
	for ; rounds == 0 || r.fleets[0].used() < *ids; rounds++ {
		for _, x := range faults {
			r.both(x.do)
			r.both((*fleet).restore)
		}
		if *ids != 0 {
			r.outage()
		}
	}
	t.Logf("%d rounds in %v; in each:", rounds, time.Since(began).Round(time.Second))
	for _, x := range faults {
		t.Logf("  %s", x.name)
	}
	if *ids != 0 {
		t.Log("  etcd is away beyond every interval")
	}
	for _, f := range r.fleets {
		r.stop(f)
		a := f.account()
		t.Logf("%s: %d IDs, %d duplicates, IDs by number %v", f.name, a.ids, a.duplicates, a.numbers)
		switch {
		case a.ids < int(*ids) && f.careful:
			t.Errorf("%s: only %d IDs", f.name, a.ids)
		case f.careful && a.duplicates > 0:
			history.Violated(t, "I1", "%d IDs were used twice, the first %d", a.duplicates, a.first)
		case !f.careful && a.duplicates == 0:
			t.Errorf("the programs that ask nobody have no duplicates: the faults show nothing")
		}
	}
}

func start(t *testing.T) *run {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	addrs := loopback.Addresses(2 + 2*addresses)
	var bin binaries
	for _, b := range []struct {
		path *string
		make func(context.Context, string) (string, error)
	}{{&bin.allocator, build.Allocator}, {&bin.legacy, build.Legacy}, {&bin.etcd, build.Etcd}} {
		var err error
		if *b.path, err = b.make(ctx, dir); err != nil {
			t.Fatal(err)
		}
	}
	client, peer := "http://"+addrs[0], "http://"+addrs[1]
	r := &run{t: t, etcd: &rig.Process{Name: "etcd", Place: rig.Loopback{}, Path: bin.etcd, Dir: dir, Args: []string{"--data-dir", dir + "/data",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default=" + peer, "--unsafe-no-fsync", "--log-level", "error"}}}
	fatal.If(t, r.etcd.Start())
	t.Cleanup(func() { _, _ = r.etcd.Resume(), r.etcd.Kill() })
	wait.NoError(t, "etcd listens", func() error {
		c, err := net.Dial("tcp", addrs[0])
		if err == nil {
			err = c.Close()
		}
		return err
	})
	var err error
	r.client, err = clientv3.New(clientv3.Config{Endpoints: []string{client}})
	fatal.If(t, err)
	t.Cleanup(func() { _ = r.client.Close() })
	r.fleets = []*fleet{newFleet(t, bin, client, addrs[2:], true), newFleet(t, bin, client, addrs[2+addresses:], false)}
	r.both((*fleet).begin)
	return r
}

// both does the same to both fleets at once.
func (r *run) both(do func(f *fleet)) {
	r.t.Helper()
	var all sync.WaitGroup
	for _, f := range r.fleets {
		all.Go(func() { do(f) })
	}
	all.Wait()
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// outage: etcd does not answer until every interval has passed.
func (r *run) outage() {
	r.t.Helper()
	fatal.If(r.t, r.etcd.Pause())
	f := r.fleets[0]
	f.until("the runner has stopped its program", func() bool { return !f.programs[3].Running() })
	f.until("a program that asks is refused", func() bool { return f.programs[0].says("refused") })
	time.Sleep(window)
	fatal.If(r.t, r.etcd.Resume())
	r.both((*fleet).restore)
}

// stop ends the programs of a fleet in order.
func (r *run) stop(f *fleet) {
	r.t.Helper()
	for _, p := range f.programs {
		if err := p.Terminate(wait.Most); err != nil && f.careful {
			r.t.Error(err)
		}
	}
}

// overlap is for how long two programs with one number run at once.
const overlap = 500 * time.Millisecond

// stopBeyond stops a program until another has its number.
func (f *fleet) stopBeyond(p *program) {
	number, _ := p.number()
	f.must(p.Pause())
	f.startSpare(number)
	f.must(p.Resume())
	if f.careful {
		f.until(p.Name+" is refused", func() bool { return p.says("refused") || !p.Running() })
	}
	time.Sleep(overlap)
	f.stopSpare()
}

// leap sets all clocks of a program to beyond its interval, and kills it. Another gets the
// number, and makes IDs of that time.
func (f *fleet) leap(p *program) {
	number, _ := p.number()
	ahead := 2 * window
	f.must(p.Hook().Step(clockhook.All(ahead)))
	if f.careful {
		f.until(p.Name+" is refused", func() bool { return p.says("refused") || !p.Running() })
	}
	time.Sleep(overlap)
	until := time.Now().Add(ahead + overlap)
	if p.Running() {
		f.must(p.Kill())
	}
	f.startSpare(number)
	time.Sleep(time.Until(until))
	f.stopSpare()
}

// killRunner kills a runner: its program must end with it. One without is killed itself.
func (f *fleet) killRunner(p *program) {
	_, pid := p.number()
	f.must(p.Kill())
	f.until("the program of "+p.Name+" has ended", func() bool { return gone(pid) })
}

// killChild kills the program, not its runner.
func (f *fleet) killChild(p *program) {
	_, pid := p.number()
	f.must(syscall.Kill(pid, syscall.SIGKILL))
	f.until(p.Name+" has ended", func() bool { return !p.Running() })
}

// killBeforeAnswer has all workers extended by one node, which is killed when it has written
// an extension and before its answer arrives. The other node must answer for it.
func (f *fleet) killBeforeAnswer(c *clientv3.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Most)
	defer cancel()
	f.node(1, true, false)
	sid, version := f.extended(ctx, c, func() { f.node(0, false, true) })
	f.must(f.nodes[0].Kill())
	f.node(0, true, false) // closes connections
	f.node(1, false, false)
	key := fmt.Sprintf("/allocator/%s/window/%d", f.name, sid)
	f.until(fmt.Sprintf("number %d is extended by the other node", sid), func() bool {
		got, err := c.Get(ctx, key)
		return err == nil && len(got.Kvs) == 1 && got.Kvs[0].Version > version
	})
	f.node(0, false, false)
}

// cutOff cuts a program that asks nobody off from all nodes: its runner must have stopped it
// before another has its number.
func (f *fleet) cutOff(p *program) {
	number, pid := p.number()
	for i := range f.nodes {
		f.proxies[i][1].set(true, false)
	}
	if f.careful {
		f.until("the runner has stopped "+p.Name, func() bool { return gone(pid) })
	}
	f.startSpare(number)
	time.Sleep(overlap)
	f.stopSpare()
	for i := range f.nodes {
		f.proxies[i][1].set(false, false)
	}
}
