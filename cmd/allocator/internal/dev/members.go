package dev

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/load"
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

	// What the client of the console sees.
	answer, message string
	ids, refused    int64
	counted         int64 // ids had this value when rate was last computed.
	rate            int64
}

func newMember(i int, name string, ahead time.Duration) *member {
	return &member{
		name:   name,
		index:  i,
		clocks: newClocks(ahead),
		link:   &link{conns: map[net.Conn]struct{}{}},
		start:  make(chan struct{}, 1),
		state:  starting,
		skew:   ahead,
		answer: "not asked",
	}
}

// host is what its node takes for its machine.
func (m *member) host(d *dev) daemon.Host {
	return daemon.Host{
		Clock: clock.NewSystem(clock.SystemConfig{Clocks: m.clocks}),
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
	out := console.Broken{Etcd: d.etcdState.Load().(string)}
	if r := d.checking.Load(); r != nil {
		result := r.Result()
		out.IDs, out.Duplicates = result.Drawn, result.Check.Duplicates
	}
	for _, m := range d.members {
		m.mu.Lock()
		n := console.BrokenNode{
			Name: m.name, State: string(m.state), Faults: m.faults(), Answer: m.answer, Message: m.message,
			IDs: m.ids, Rate: m.rate, Refused: m.refused,
		}
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

// check asks all nodes for IDs until ctx ends, and compares them. It begins when the
// console is used: until then nobody wants to know.
func (d *dev) check(ctx context.Context) error {
	select {
	case <-d.wanted:
	case <-ctx.Done():
		return nil
	}
	plan := load.Plan{Check: true, Timeout: askTimeout}
	for _, m := range d.members {
		c := &nodeClient{m: m, config: load.Config{Stride: d.space.Layout.Stride()}}
		defer c.Close()
		plan.Workers = append(plan.Workers,
			load.Worker{
				Targets: []load.Target{{Name: m.name, Client: c}},
				Counts:  []int{min(askCount, d.config(0).Gen().MaxBlock())},
				Pause:   askPause,
				Backoff: askPause,
			})
	}
	r := load.New(plan)
	d.checking.Store(r)
	var all sync.WaitGroup
	all.Go(func() { r.Run(ctx) })
	all.Go(func() {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
			for _, m := range d.members {
				m.mu.Lock()
				m.rate, m.counted = m.ids-m.counted, m.ids
				m.mu.Unlock()
			}
		}
	})
	all.Wait()
	return nil
}

// nodeClient asks a node, wherever it listens.
type nodeClient struct {
	m      *member
	config load.Config
	http   load.Client // nil: the node has not listened yet
}

// Allocate asks, and keeps what came of it.
func (c *nodeClient) Allocate(ctx context.Context, r load.Request) (b client.Block, err error) {
	m := c.m
	m.mu.Lock()
	addr := m.addrs.HTTP
	m.mu.Unlock()
	err = errors.New("it has not listened yet")
	if c.http == nil && addr != "" {
		c.http, err = c.config.Open(load.HTTP, addr)
	}
	if c.http != nil {
		b, err = c.http.Allocate(ctx, r)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	outcome, reason := load.OutcomeOf(err)
	switch m.message = ""; outcome {
	case load.OK:
		m.answer = "OK"
		m.ids += int64(b.Count)
	case load.Refused:
		m.answer = reason
		m.refused++
		if refusal, ok := errors.AsType[*client.Refusal](err); ok {
			m.message = refusal.Message
		}
	default:
		m.answer = "no answer"
	}
	return b, err
}

// Close ends its connection.
func (c *nodeClient) Close() {
	if c.http != nil {
		c.http.Close()
	}
}
