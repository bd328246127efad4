package rig

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/chaos/forged"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/lease"
)

// ByzantinePeer has the key of gossip, and reports false clocks and a false history of etcd
// to the nodes: as a registered node of its own, or as each of them without being registered.
type ByzantinePeer struct {
	offset  func(since time.Duration) time.Duration
	began   time.Time
	stop    context.CancelFunc
	running sync.WaitGroup
	end     func(context.Context) error // It ends the registration; nil: there is none.
	once    sync.Once

	mu      sync.Mutex // guards the rest
	members []*cluster.Cluster
	failed  error
}

// Guise is whom a byzantine peer claims to be.
type Guise uint8

const (
	// Itself is registered like a node.
	Itself Guise = iota
	// OthersRenamed announces the instances of all nodes under names of its own.
	OthersRenamed
	// Others says of each node that it has left, and then that it lives here.
	Others
)

// StartByzantinePeer starts one. offset is the error of its clocks.
func (r *Rig) StartByzantinePeer(ctx context.Context, as Guise,
	offset func(since time.Duration) time.Duration) (*ByzantinePeer, error) {
	space, err := r.Op.Space(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := r.Op.Registered(ctx)
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &ByzantinePeer{offset: offset, began: time.Now(), stop: stop}
	if as == Itself {
		own := lease.Registration{
			Instance: lease.Instance(uuid.NewString()),
			Node:     "byzantine-peer",
			Version:  "byzantine-peer",
		}
		own.Gossip, err = r.runFalsely(run, l, space, own, nodes)
		if err == nil {
			l.end, err = r.Op.Register(ctx, own)
		}
	}
	for i, n := range nodes {
		if as == Itself || err != nil {
			break
		}
		claimed := n
		if as == OthersRenamed {
			claimed.Node = fmt.Sprintf("byzantine-peer-%d", i)
		}
		claimed.Gossip, err = r.runFalsely(run, l, space, claimed, nodes)
		if err == nil { // What it dials leaves its namespace, and does not reach the nodes.
			err = r.bury(run, l, space, claimed, nodes)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Stop(ctx))
	}
	return l, nil
}

// runFalsely runs a member of gossip under that registration, and returns its address.
func (r *Rig) runFalsely(ctx context.Context, l *ByzantinePeer, space lease.Space, as lease.Registration,
	nodes []lease.Registration) (string, error) {
	keys, err := cluster.NewKeys(r.keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	bind, err := netip.ParseAddrPort(r.spare.Gossip)
	if err != nil {
		return "", err
	}
	cfg := cluster.Config{
		Node:       as.Node,
		Instance:   string(as.Instance),
		Label:      Root + "/" + Space,
		Pool:       space.Pool,
		Bind:       netip.AddrPortFrom(bind.Addr(), 0).String(),
		Keys:       keys,
		Local:      l,
		OnExchange: func(agreement.Exchange) {},
	}
	var addr string
	if err := r.spare.Place.Do(func() (err error) {
		cfg.Transport, addr, err = cluster.Listen(cfg)
		return err
	}); err != nil {
		return "", err
	}
	cfg.Advertise = addr
	c, err := cluster.New(cfg)
	if err != nil {
		return "", errors.Join(err, cfg.Transport.Shutdown())
	}
	var peers []agreement.Peer
	for _, n := range nodes {
		if n.Instance != as.Instance {
			peers = append(peers, agreement.Peer{Node: n.Node, Instance: string(n.Instance), Gossip: n.Gossip})
		}
	}
	c.SetPeers(peers) // It dials them.
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members = append(l.members, c)
	l.running.Go(func() { l.note(c.Run(ctx)) })
	return addr, nil
}

// buryEvery is how often a node is said to have left.
const buryEvery = 250 * time.Millisecond

// bury says to all nodes but the one that it claims to be that this one left and lives
// elsewhere, until ctx ends.
func (r *Rig) bury(ctx context.Context, l *ByzantinePeer, space lease.Space, as lease.Registration,
	nodes []lease.Registration) error {
	text, err := os.ReadFile(r.keyFile)
	if err != nil {
		return err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	at, err := netip.ParseAddrPort(as.Gossip)
	if err != nil {
		return err
	}
	var conn net.PacketConn
	if err := r.spare.Place.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", netip.AddrPortFrom(at.Addr(), 0).String())
		return err
	}); err != nil {
		return err
	}
	member := forged.MemberName(as.Node, string(as.Instance))
	l.running.Go(func() {
		defer conn.Close()
		tick := time.NewTicker(buryEvery)
		defer tick.Stop()
		for incarnation := uint32(1); ctx.Err() == nil; incarnation += 1000 {
			packet, err := forged.Packet(Root+"/"+Space, key, forged.Left(member, incarnation),
				forged.Alive(member, at, space.Pool, string(as.Instance), incarnation+1))
			if err != nil {
				l.note(err)
				return
			}
			for _, n := range nodes {
				if to, err := net.ResolveUDPAddr("udp", n.Gossip); err == nil && n.Instance != as.Instance {
					_, _ = conn.WriteTo(packet, to) // The node may be down.
				}
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return nil
}

func (l *ByzantinePeer) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = errors.Join(l.failed, err)
}

// Replies returns how many false replies it has sent.
func (l *ByzantinePeer) Replies() (n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.members {
		n += c.Stats().Pongs
	}
	return n
}

// Stop ends it. It may be called again.
func (l *ByzantinePeer) Stop(ctx context.Context) (err error) {
	l.once.Do(func() {
		l.stop()
		l.running.Wait()
		if l.failed != nil {
			err = fmt.Errorf("byzantine peer: %w", l.failed)
		}
		if l.end != nil {
			err = errors.Join(err, l.end(ctx))
		}
	})
	return err
}

// Clocks are false but for the raw one.
func (l *ByzantinePeer) Clocks() clock.Snapshot {
	since := time.Since(l.began)
	wall := l.began.Add(since).Add(l.offset(since)).UnixNano()
	raw := int64(since) + 1
	return clock.Snapshot{Raw: raw, Issuing: wall - raw, Wall: wall - raw, Kernel: clock.Synchronized}
}

// Status reports healthy clocks, and an era and a revision that etcd never had. It names
// no cluster of etcd, so that nobody takes them for another's.
func (l *ByzantinePeer) Status() agreement.Status {
	return agreement.Status{
		Verdict:  clock.Open,
		SID:      -1,
		Era:      1 << 30,
		Revision: 1 << 40,
		Ceiling:  clock.Millis(1 << 42),
	}
}
