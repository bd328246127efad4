package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// clocks are a node's: the machine's own, set wrong and stopped by hand. A node takes its
// clocks and connections from its host, so that nothing in what runs in production is
// there for faults. A skew moves the wall clock and the boot clock: of a step of the wall
// clock alone the others confirm the node's old time, and it serves on.
type clocks struct {
	machine    *clock.System
	wall, boot atomic.Int64                  // ahead of the machine's, ns
	paused     atomic.Pointer[chan struct{}] // It is closed when they run again; nil: they run.
}

func newClocks() *clocks { return &clocks{machine: clock.NewSystem(nil)} }

// Read returns the clocks. While the node is paused it waits: nothing that a node does
// gets past a clock read, so to the others it looks like a process under SIGSTOP.
func (c *clocks) Read() clock.Readings {
	c.wait()
	r := c.machine.Read()
	r.Wall += c.wall.Load()
	r.Boot += c.boot.Load()
	return r
}

// Elapsed returns the monotonic time, which nobody sets; it waits as Read does.
func (c *clocks) Elapsed() clock.Mono {
	c.wait()
	return c.machine.Elapsed()
}

func (c *clocks) wait() {
	if run := c.paused.Load(); run != nil {
		<-*run
	}
}

// Kernel returns what the machine's kernel says.
func (c *clocks) Kernel() clock.Kernel { return c.machine.Kernel() }

func (c *clocks) pause() {
	run := make(chan struct{})
	c.paused.CompareAndSwap(nil, &run)
}

func (c *clocks) resume() {
	if run := c.paused.Swap(nil); run != nil {
		close(*run)
	}
}

// wake sets the clocks ahead as a hypervisor does that wakes a machine with a wrong
// time: nothing on the machine can tell that from time that has passed.
func (c *clocks) wake(ahead time.Duration) {
	c.boot.Add(int64(ahead))
	c.wall.Add(int64(ahead))
}

// link carries a node's connections to etcd.
type link struct {
	mu    sync.Mutex // guards the rest
	cut   bool
	conns map[net.Conn]struct{}
}

var errCut = errors.New("cut off from etcd")

// dial connects, unless the link is cut.
func (l *link) dial(ctx context.Context, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = nc.Close()
		return nil, errCut
	}
	for old := range l.conns {
		if _, err := old.Write(nil); errors.Is(err, net.ErrClosed) {
			delete(l.conns, old)
		}
	}
	l.conns[nc] = struct{}{}
	return nc, nil
}

// set cuts the link, or mends it.
func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut = cut; cut {
		for nc := range l.conns {
			_ = nc.Close()
		}
		clear(l.conns)
	}
}

// Break does what a button of the console says. It waits for etcd, which takes a second
// to stop or to start, and for no node.
func (d *dev) Break(ctx context.Context, action, target string) error {
	if target == "etcd" {
		return d.breakEtcd(ctx, action)
	}
	for _, m := range d.members {
		if m.name == target {
			return m.inject(action)
		}
	}
	return fmt.Errorf("there is no node %.60q", target)
}

func (d *dev) breakEtcd(ctx context.Context, action string) error {
	d.breaking.Lock()
	defer d.breaking.Unlock()
	switch action {
	case "stop":
		d.etcdState.Store("stopped")
		d.etcd.Stop()
		return nil
	case "repair":
		if d.etcdState.Load() == "running" {
			return nil
		}
		d.etcdState.Store("starting")
		within, done := context.WithTimeout(context.WithoutCancel(ctx), etcdStarts)
		defer done()
		if err := d.etcd.Restart(within); err != nil {
			d.etcdState.Store("stopped")
			return err
		}
		d.etcdState.Store("running")
		select {
		case d.restarted <- struct{}{}:
		default:
		}
		return nil
	}
	return fmt.Errorf("etcd has no action %.20q", action)
}

// watchEtcd returns the error of an etcd that ends on its own.
func (d *dev) watchEtcd(ctx context.Context) error {
	for {
		select {
		case err, failed := <-d.etcd.Failed():
			if failed {
				return fmt.Errorf("etcd: %w", err)
			}
			select { // stopped by hand
			case <-d.restarted:
			case <-ctx.Done():
				return nil
			}
		case <-d.restarted:
		case <-ctx.Done():
			return nil
		}
	}
}

// inject does an action to a node.
func (m *member) inject(action string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if action == "repair" {
		m.clocks.wall.Store(0)
		m.clocks.resume()
		m.paused, m.skew, m.cut = false, 0, false
		switch m.state {
		case stopping, stopped: // run mends its link when it has ended: until then it must give nothing back
			select {
			case m.start <- struct{}{}:
			default:
			}
		default:
			m.link.set(false)
		}
		return nil
	}
	if m.state != running || m.paused {
		return fmt.Errorf("%s does not run: repair it first", m.name)
	}
	switch action {
	case "skew":
		m.skew += time.Second
		m.clocks.wake(time.Second)
	case "back":
		m.skew -= time.Hour
		m.clocks.wall.Add(-int64(time.Hour))
	case "pause":
		m.paused = true
		m.clocks.pause()
	case "cut":
		m.cut = true
		m.link.set(true)
	case "kill":
		m.state = stopping
		select {
		case <-m.start: // it was repaired twice
		default:
		}
		m.link.set(true)                            // A process that is killed gives nothing back,
		if err := m.gossip.Shutdown(); err != nil { // and tells nobody that it ends.
			return err
		}
		m.kill()
	default:
		return fmt.Errorf("there is no action %.20q", action)
	}
	return nil
}
