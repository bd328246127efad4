package rig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/lease"
)

// ByzantinePeer is a registered member of gossip that has the key and reports
// false clocks and a false history of etcd to the others.
type ByzantinePeer struct {
	offset func(since time.Duration) time.Duration
	began  time.Time
	c      *cluster.Cluster
	stop   context.CancelFunc
	done   chan error
	end    func(context.Context) error
	once   sync.Once
}

// StartByzantinePeer starts one. offset is the error of its clocks.
func (r *Rig) StartByzantinePeer(ctx context.Context,
	offset func(since time.Duration) time.Duration) (*ByzantinePeer, error) {
	space, err := r.Op.Space(ctx)
	if err != nil {
		return nil, err
	}
	l := &ByzantinePeer{offset: offset, began: time.Now(), done: make(chan error, 1)}
	keys, err := cluster.NewKeys(r.keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	cfg := cluster.Config{
		Node:       "byzantine-peer",
		Instance:   uuid.NewString(),
		Label:      Root + "/" + Space,
		Pool:       space.Pool,
		Bind:       r.spare.Gossip,
		Keys:       keys,
		Local:      l,
		OnExchange: func(agreement.Exchange) {},
	}
	var addr string
	if err := r.spare.Place.Do(func() (err error) {
		cfg.Transport, addr, err = cluster.Listen(cfg)
		return err
	}); err != nil {
		return nil, err
	}
	cfg.Advertise = addr
	if l.c, err = cluster.New(cfg); err != nil {
		return nil, errors.Join(err, cfg.Transport.Shutdown())
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go func() { l.done <- l.c.Run(run) }()
	l.end, err = r.Op.Register(ctx,
		lease.Registration{
			Instance: lease.Instance(cfg.Instance),
			Node:     cfg.Node,
			Version:  "byzantine-peer",
			Gossip:   addr,
		})
	if err != nil {
		return nil, errors.Join(err, l.Stop(ctx))
	}
	return l, nil
}

// Replies returns how many false replies it has sent.
func (l *ByzantinePeer) Replies() uint64 { return l.c.Stats().Pongs }

// Stop ends it. It may be called again.
func (l *ByzantinePeer) Stop(ctx context.Context) (err error) {
	l.once.Do(func() {
		l.stop()
		if err = <-l.done; err != nil {
			err = fmt.Errorf("byzantine peer: %w", err)
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

// Status reports healthy clocks, and a revision that etcd never had.
func (l *ByzantinePeer) Status() agreement.Status {
	return agreement.Status{
		Verdict:  clock.Open,
		SID:      -1,
		Era:      1 << 20,
		Cluster:  1,
		Revision: 1 << 40,
		Ceiling:  clock.Millis(1 << 42),
	}
}
