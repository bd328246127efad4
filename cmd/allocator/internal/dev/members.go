package dev

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/dev/duplicates"
	"github.com/flakelease/allocator/internal/server/console"
)

// process is the state of a node's part of this process.
type process string

const (
	starting process = "starting"
	running  process = "running"
	stopping process = "stopping"
	stopped  process = "stopped"
)

// member is a node that can be broken.
type member struct {
	name   string
	index  int
	clocks *clocks
	link   *link
	start  chan struct{} // to start it again

	mu     sync.Mutex // guards the rest
	state  process
	paused bool
	cut    bool
	skew   time.Duration // Its clocks are ahead by this; negative: its wall clock is behind.
	kill   func()
	gossip cluster.Transport // It carries the packets of the node; nil: there is none yet.
	daemon *daemon.Daemon
	addrs  daemon.Addresses // The first start chose them; later ones take the same.

	seen    console.BrokenNode // what the client of the console sees; Broken adds the rest
	counted int64              // seen.IDs had this value when seen.Rate was last computed.
}

func newMember(i int, name string) *member {
	return &member{
		name:   name,
		index:  i,
		clocks: newClocks(),
		link:   &link{conns: map[net.Conn]struct{}{}},
		start:  make(chan struct{}, 1),
		state:  starting,
		seen:   console.BrokenNode{Name: name, Answer: "not asked"},
	}
}

// host is what its node takes for its machine.
func (m *member) host(d *dev) daemon.Host {
	return daemon.Host{
		Clock: clock.NewSystem(m.clocks),
		Etcd:  []grpc.DialOption{grpc.WithContextDialer(m.link.dial)},
		Break: d,
		Gossip: func(cfg cluster.Config) (cluster.Transport, string, error) {
			t, address, err := cluster.Listen(cfg)
			m.mu.Lock()
			m.gossip = t
			m.mu.Unlock()
			return t, address, err
		},
	}
}

// run runs the node until ctx ends: again and again, if it is killed and started.
func (m *member) run(ctx context.Context, again func() (*daemon.Daemon, error)) error {
	for {
		life, kill := context.WithCancel(ctx)
		m.mu.Lock()
		m.kill = kill
		one := m.daemon
		m.mu.Unlock()
		go func() {
			select {
			case <-one.Listening():
				m.mu.Lock()
				if m.state == starting {
					m.state, m.addrs = running, one.Addresses()
				}
				m.mu.Unlock()
			case <-life.Done():
			}
		}()
		err := one.Run(life)
		kill()
		m.mu.Lock()
		killed := m.state == stopping
		if killed {
			m.state = stopped
		}
		m.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return err
		case !killed && err == nil:
			return errors.New("it stopped without being asked to")
		case !killed:
			return err
		}
		select {
		case <-m.start:
		case <-ctx.Done():
			return nil
		}
		if one, err = again(); err != nil {
			return err
		}
		m.link.set(false)
		m.mu.Lock()
		m.daemon, m.state = one, starting
		m.mu.Unlock()
	}
}

// healthy returns the node if it runs, else nil.
func (m *member) healthy() *daemon.Daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != running || m.paused {
		return nil
	}
	return m.daemon
}

// faults says in words what is wrong with the node; m.mu is held.
func (m *member) faults() string {
	var list []string
	if m.skew > 0 {
		list = append(list, "clocks "+m.skew.String()+" ahead")
	} else if m.skew < 0 {
		list = append(list, "wall clock set back "+(-m.skew).String())
	}
	if m.paused {
		list = append(list, "paused")
	}
	if m.cut {
		list = append(list, "cut off from etcd")
	}
	if m.state == stopping || m.state == stopped {
		list = append(list, "killed")
	}
	return strings.Join(list, ", ")
}

// Broken returns the state of the cluster for the console.
func (d *dev) Broken() console.Broken {
	given := d.given.Checks()
	out := console.Broken{Etcd: d.etcdState.Load().(string), IDs: given.Checked, Duplicates: given.Duplicates}
	for _, m := range d.members {
		m.mu.Lock()
		n := m.seen
		n.State, n.Faults = string(m.state), m.faults()
		if m.paused {
			n.State = "paused"
		}
		m.mu.Unlock()
		out.Rate += n.Rate
		out.Nodes = append(out.Nodes, n)
	}
	return out
}

// The client of the console: it asks each node for a hundred IDs some times a second.
const (
	askCount   = 100
	askPause   = 50 * time.Millisecond
	askTimeout = time.Second
)

// askConnect has the client notice soon that a node was started again.
var askConnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: askPause, MaxDelay: askPause},
	MinConnectTimeout: askTimeout,
}

// check asks all nodes for IDs until ctx ends, and compares them. It begins when the
// console is used: until then nobody wants to know.
func (d *dev) check(ctx context.Context) error {
	select {
	case <-d.wanted:
	case <-ctx.Done():
		return nil
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { d.given.Run(ctx) })
	count := min(askCount, d.config(0).Gen().MaxBlock())
	for _, m := range d.members {
		all.Go(func() { m.ask(ctx, count, d.given) })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		for _, m := range d.members {
			m.mu.Lock()
			m.seen.Rate, m.counted = m.seen.IDs-m.counted, m.seen.IDs
			m.mu.Unlock()
		}
	}
}

// ask asks the node for count IDs again and again until ctx ends.
func (m *member) ask(ctx context.Context, count int, given *duplicates.Checker) {
	m.mu.Lock()
	listening := m.daemon.Listening()
	m.mu.Unlock()
	select {
	case <-listening:
	case <-ctx.Done():
		return
	}
	m.mu.Lock()
	addr := m.daemon.Addresses().GRPC // A node that is started again has the same.
	m.mu.Unlock()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(askConnect))
	if err != nil {
		panic(err) // nothing connects yet, and the options are right
	}
	defer func() { _ = conn.Close() }()
	for {
		within, cancel := context.WithTimeout(ctx, askTimeout)
		r, err := pb.NewAllocatorServiceClient(conn).Allocate(within, &pb.AllocateRequest{Count: int32(count)})
		cancel()
		if err == nil {
			given.Add(client.Block{First: flake.ID(r.GetFirst()), Count: int(r.GetCount()), Stride: r.GetStride()}, 0)
		}
		m.answered(r, err)
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return
		}
	}
}

// answered keeps what came of a request.
func (m *member) answered(r *pb.AllocateResponse, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen.Message = ""
	if err == nil {
		m.seen.Answer = "OK"
		m.seen.IDs += int64(r.GetCount())
	} else if refusal := client.RefusalOf(err, m.name); refusal != nil {
		m.seen.Answer, m.seen.Message = string(refusal.Reason), refusal.Message
		m.seen.Refused++
	} else {
		m.seen.Answer = "no answer"
	}
}
