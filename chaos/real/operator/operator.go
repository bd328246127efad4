// Package operator does to etcd what no node ever does: what a person does by
// hand, or by accident. It reads the keys of a space and its history as an
// auditor would, deletes and damages records, and revokes leases.
//
// Only the harness imports it.
package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// Operator is a client of etcd with every right. It is safe for concurrent use.
type Operator struct {
	client    *clientv3.Client
	endpoints []string
	prefix    string
}

// ErrAbsent: there is no such key.
var ErrAbsent = errors.New("operator: there is no such key")

// Dialer opens connections; nil: the machine's own way.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// New returns an operator of the space under root. Nobody is contacted yet.
func New(endpoints []string, root, space string, dial Dialer) (*Operator, error) {
	cfg := clientv3.Config{
		Logger:               zap.NewNop(),
		Endpoints:            endpoints,
		DialTimeout:          time.Second,
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 2 * time.Second,
	}
	if dial != nil {
		cfg.DialOptions = append(cfg.DialOptions,
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return dial(ctx, "tcp", addr)
			}))
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Operator{client: client, endpoints: endpoints, prefix: "/" + root + "/" + space + "/"}, nil
}

// Close ends the client.
func (o *Operator) Close() error { return o.client.Close() }

// Keys of the space.
func (o *Operator) Window(sid flake.SID) string { return o.prefix + "window/" + sidText(sid) }

// Holder is the key of who has sid now.
func (o *Operator) Holder(sid flake.SID) string { return o.prefix + "holder/" + sidText(sid) }

func sidText(sid flake.SID) string { return strconv.FormatUint(uint64(sid), 10) }

// Leader returns which of the endpoints leads, or -1 while none of them reports it.
// A member that is cut off may take itself for the leader for a while; the one
// with the highest term counts.
func (o *Operator) Leader(ctx context.Context) int {
	leader, term := -1, uint64(0)
	for i, endpoint := range o.endpoints {
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		s, err := o.client.Status(ctx, endpoint)
		cancel()
		if err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId && s.RaftTerm > term {
			leader, term = i, s.RaftTerm
		}
	}
	return leader
}

// Revision makes one linearizable read, and returns etcd's revision.
func (o *Operator) Revision(ctx context.Context) (int64, error) {
	r, err := o.client.Get(ctx, o.prefix+"config", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// Get returns the value of a key. It returns ErrAbsent.
func (o *Operator) Get(ctx context.Context, key string) (string, error) {
	r, err := o.client.Get(ctx, key)
	switch {
	case err != nil:
		return "", err
	case len(r.Kvs) == 0:
		return "", fmt.Errorf("%w: %s", ErrAbsent, key)
	}
	return string(r.Kvs[0].Value), nil
}

// Delete removes a key. It returns ErrAbsent if there was none.
func (o *Operator) Delete(ctx context.Context, key string) error {
	r, err := o.client.Delete(ctx, key)
	if err == nil && r.Deleted == 0 {
		err = fmt.Errorf("%w: %s", ErrAbsent, key)
	}
	return err
}

// Corrupt overwrites a key with its own value, one character in the middle changed.
func (o *Operator) Corrupt(ctx context.Context, key string) error {
	value, err := o.Get(ctx, key)
	if err != nil {
		return err
	}
	b := []byte(value)
	if len(b) == 0 {
		return fmt.Errorf("operator: %s is empty", key)
	}
	b[len(b)/2] ^= 1
	_, err = o.client.Put(ctx, key, string(b))
	return err
}

// RevokeLeaseOf ends the lease that a key is on. It returns ErrAbsent.
func (o *Operator) RevokeLeaseOf(ctx context.Context, key string) error {
	r, err := o.client.Get(ctx, key)
	switch {
	case err != nil:
		return err
	case len(r.Kvs) == 0 || r.Kvs[0].Lease == 0:
		return fmt.Errorf("%w, or it is on no lease: %s", ErrAbsent, key)
	}
	_, err = o.client.Revoke(ctx, clientv3.LeaseID(r.Kvs[0].Lease))
	return err
}

// Snapshot writes a copy of a member's database to a file.
func (o *Operator) Snapshot(ctx context.Context, path string) error {
	r, err := o.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// Write is one version of a window or a holder record.
type Write struct {
	SID      flake.SID
	Revision int64
	Window   *lease.Window // nil: not a window, or it cannot be read
	Holder   *lease.Holder // nil: not a holder, or it cannot be read
	OnLease  int64         // etcd's lease that a holder is attached to
	IsHolder bool
	Deleted  bool
	Err      error // unreadable
}

// Watch calls written for every version of every window and holder record from a
// revision on, and seen with the revision that it has reached. It blocks until ctx
// ends, and returns its error, or why etcd ended the watch.
func (o *Operator) Watch(ctx context.Context, from int64, written func(Write), seen func(revision int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for r := range o.client.Watch(ctx, o.prefix, clientv3.WithPrefix(), clientv3.WithRev(from),
		clientv3.WithProgressNotify()) {
		if err := r.Err(); err != nil {
			return err
		}
		for _, ev := range r.Events {
			if w, ok := o.write(ev); ok {
				written(w)
			}
		}
		seen(r.Header.Revision)
	}
	return ctx.Err()
}

func (o *Operator) write(ev *clientv3.Event) (Write, bool) {
	kind, sid, _ := strings.Cut(strings.TrimPrefix(string(ev.Kv.Key), o.prefix), "/")
	n, err := strconv.ParseUint(sid, 10, 22)
	if err != nil || kind != "window" && kind != "holder" {
		return Write{}, false
	}
	w := Write{
		SID:      flake.SID(n),
		Revision: ev.Kv.ModRevision,
		IsHolder: kind == "holder",
		Deleted:  ev.Type == clientv3.EventTypeDelete,
	}
	switch {
	case w.Deleted:
	case w.IsHolder:
		h, err := lease.Decode[lease.Holder](string(ev.Kv.Value))
		w.Holder, w.Err, w.OnLease = &h, err, ev.Kv.Lease
	default:
		v, err := lease.Decode[lease.Window](string(ev.Kv.Value))
		w.Window, w.Err = &v, err
	}
	return w, true
}

// Progress asks that Watch calls seen soon.
func (o *Operator) Progress(ctx context.Context) error { return o.client.RequestProgress(ctx) }

// Occupy takes every free sid below size, under a lease of its own,
// and returns which those are and how to give them back, all at once.
func (o *Operator) Occupy(ctx context.Context, size int,
	h lease.Holder) (taken []flake.SID, free func(context.Context) error, err error) {
	grant, err := o.client.Grant(ctx, 120)
	if err != nil {
		return nil, nil, err
	}
	free = func(ctx context.Context) error {
		_, err := o.client.Revoke(ctx, grant.ID)
		return err
	}
	var mu sync.Mutex // guards taken
	var all errgroup.Group
	for sid := range size {
		key := o.Holder(flake.SID(sid))
		all.Go(func() error { // all at once: one by one they take seconds on a slow disk
			r, err := o.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
				Then(clientv3.OpPut(key, lease.Encode(h), clientv3.WithLease(grant.ID))).Commit()
			if err == nil && r.Succeeded {
				mu.Lock()
				defer mu.Unlock()
				taken = append(taken, flake.SID(sid))
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return taken, free, err
	}
	slices.Sort(taken)
	return taken, free, nil
}

// Register puts a process into the registry and keeps it there until end is
// called.
func (o *Operator) Register(ctx context.Context, r lease.Registration) (end func(context.Context) error, err error) {
	grant, err := o.client.Grant(ctx, 10)
	if err != nil {
		return nil, err
	}
	if _, err := o.client.Put(ctx, o.prefix+"node/"+string(r.Instance), lease.Encode(r),
		clientv3.WithLease(grant.ID)); err != nil {
		return nil, err
	}
	alive, stop := context.WithCancel(context.WithoutCancel(ctx))
	replies, err := o.client.KeepAlive(alive, grant.ID)
	if err != nil {
		stop()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range replies { // the channel has to be drained
		}
	}()
	return func(ctx context.Context) error {
		stop()
		<-done
		_, err := o.client.Revoke(ctx, grant.ID)
		return err
	}, nil
}

// Registered returns the processes in the registry.
func (o *Operator) Registered(ctx context.Context) (out []lease.Registration, err error) {
	got, err := o.client.Get(ctx, o.prefix+"node/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range got.Kvs {
		r, err := lease.Decode[lease.Registration](string(kv.Value))
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Space returns the fingerprint of the space.
func (o *Operator) Space(ctx context.Context) (lease.Space, error) {
	raw, err := o.Get(ctx, o.prefix+"config")
	if err != nil {
		return lease.Space{}, err
	}
	return lease.Decode[lease.Space](raw)
}
