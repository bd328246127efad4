// Package storetest helps to test users of a keeper.Store: Memory carries the product's
// transactions out in memory, Faulty makes the calls of any Store fail by script, and Contract is
// the test that every Store must pass. Only tests and chaos packages import it.
//
// In calls that edit records directly, keys are written as package records has them below a
// space: config, era, node/<instance>, holder/<sid>, window/<sid> and ledger/<sid>/<term>, the
// term in 20 digits.
package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/records"
)

// Memory is a space in memory: the transactions are those of package records, and Memory carries
// them out as etcd does, with one revision for all keys, and leases whose keys are deleted with
// them. Its leases expire only in Advance, and it starts no goroutine, so that a test that uses it
// from one goroutine runs the same each time. It is safe for concurrent use. It does not run package
// etcdstore over a fake of etcd: etcd's client does not compile for browsers, which run the simulation.
type Memory struct {
	records.Space

	mu        sync.Mutex // guards the fields below
	state     state
	elapsed   time.Duration // sum of all calls of Advance
	lastLease lease.LeaseID // not part of state: etcd's are random, never used twice
	watchers  map[chan struct{}]bool
	breaks    int            // times that all watches broke
	changes   []lease.Change // It has every change of watched keys since the first revision.
}

// state is what a backup has.
type state struct {
	cluster uint64
	rev     int64
	keys    map[string]records.KV
	sorted  []string // the keys, in order: etcd's ranges are
	leases  map[lease.LeaseID]grant
}

type grant struct {
	ttl      time.Duration
	deadline time.Duration // in Memory.elapsed
}

// NewMemory returns an uninitialized space, in an etcd with that cluster ID.
func NewMemory(cluster uint64) *Memory {
	m := &Memory{
		state: state{
			cluster: cluster,
			rev:     1, // as in an empty etcd
			keys:    map[string]records.KV{},
			leases:  map[lease.LeaseID]grant{},
		},
		watchers: map[chan struct{}]bool{},
	}
	m.Space.DB = m
	return m
}

// Do carries out t; see records.DB.
func (m *Memory) Do(ctx context.Context, t records.Txn) (records.Answer, error) {
	if err := ctx.Err(); err != nil {
		return records.Answer{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := records.Answer{Cluster: m.state.cluster, Applied: true}
	for _, c := range t.If {
		out.Applied = out.Applied && m.holds(c)
	}
	ops := t.Then
	if !out.Applied {
		ops = t.Else
	}
	for _, op := range ops {
		if _, ok := m.state.leases[op.Lease]; op.Lease != 0 && !ok {
			return records.Answer{}, lease.ErrLeaseGone
		}
	}
	m.write(func(w writer) {
		for _, op := range ops {
			switch op.Do {
			case records.Get:
				found := len(out.Found)
				for _, key := range m.named(op.Key, op.End) {
					out.Found = append(out.Found, m.state.keys[key])
				}
				if last := out.Found[found:]; op.Last > 0 {
					slices.Reverse(last)
					out.Found = out.Found[:found+min(op.Last, len(last))]
				}
			case records.Count:
				out.Counted += int64(len(m.named(op.Key, op.End)))
			case records.Put:
				w.put(op.Key, op.Raw, op.Lease)
			case records.Delete:
				for _, key := range slices.Clone(m.named(op.Key, op.End)) {
					w.delete(key)
				}
			}
		}
	})
	out.Revision = m.state.rev
	return out, nil
}

// holds reports whether a compare holds. m.mu is held.
func (m *Memory) holds(c records.Compare) bool {
	keys := m.named(c.Key, c.End)
	for _, key := range keys {
		kv, ok := m.state.keys[key], false
		switch c.Of {
		case records.Revision:
			ok = kv.Rev == c.Number
		case records.Value:
			ok = kv.Raw == c.Raw
		case records.Lease:
			ok = int64(kv.Lease) == c.Number
		}
		if !ok {
			return false
		}
	}
	return len(keys) > 0 || c.Of != records.Value && c.Number == 0
}

// named returns the keys that a compare or an operation names, in order. m.mu is held, and the
// keys are good until the next write.
func (m *Memory) named(key, end string) []string {
	i, found := slices.BinarySearch(m.state.sorted, key)
	n := i
	switch {
	case end != "":
		n, _ = slices.BinarySearch(m.state.sorted, end)
	case found:
		n++
	}
	return m.state.sorted[i:max(i, n)]
}

// Grant takes a lease of ttl, rounded up to whole seconds.
func (m *Memory) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastLease++
	ttl = (ttl + time.Second - 1).Truncate(time.Second)
	m.state.leases[m.lastLease] = grant{ttl: ttl, deadline: m.elapsed + ttl}
	return m.lastLease, nil
}

// KeepAlive renews the lease once, or returns lease.ErrLeaseGone.
func (m *Memory) KeepAlive(ctx context.Context, id lease.LeaseID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	g, ok := m.state.leases[id]
	if !ok {
		return fmt.Errorf("keep alive lease %x: %w", int64(id), lease.ErrLeaseGone)
	}
	g.deadline = m.elapsed + g.ttl
	m.state.leases[id] = g
	return nil
}

// Revoke ends the lease, if it is still there, and deletes every key on it.
func (m *Memory) Revoke(ctx context.Context, id lease.LeaseID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.Expire(id)
	return nil
}

// Watch reports the changes of what a real store watches, and at least each progress
// the revision.
func (m *Memory) Watch(ctx context.Context, progress time.Duration, report func(lease.Watched)) error {
	c := make(chan struct{}, 1)
	m.mu.Lock()
	m.watchers[c] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, c)
	}()
	for open, breaks, reached := false, 0, int64(0); ctx.Err() == nil; {
		m.mu.Lock()
		ev := lease.Watched{Opened: !open || breaks != m.breaks, Revision: m.state.rev}
		breaks = m.breaks
		m.mu.Unlock()
		if !ev.Opened {
			ev.Changes, ev.Revision = m.Changes(reached)
		}
		open, reached = true, ev.Revision
		report(ev)
		select {
		case <-ctx.Done():
		case <-c:
		case <-time.After(progress):
		}
	}
	return ctx.Err()
}

// Changes returns what a watch reports that has reached revision after, and the
// revision that it reaches by that.
func (m *Memory) Changes(after int64) (changes []lease.Change, reached int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := len(m.changes)
	for i > 0 && m.changes[i-1].Revision > after {
		i--
	}
	return slices.Clone(m.changes[i:]), m.state.rev
}

// writer makes the changes of one revision.
type writer struct {
	m     *Memory
	rev   int64
	wrote *bool
}

// write makes all that edit does one revision, and wakes watchers if it touched
// what they watch. m.mu is held.
func (m *Memory) write(edit func(writer)) {
	wrote, before := false, len(m.changes)
	w := writer{m, m.state.rev + 1, &wrote}
	edit(w)
	if wrote {
		m.state.rev = w.rev
	}
	if len(m.changes) > before {
		m.wake()
	}
}

func (w writer) put(key, raw string, id lease.LeaseID) {
	s := &w.m.state
	if i, ok := slices.BinarySearch(s.sorted, key); !ok {
		s.sorted = slices.Insert(s.sorted, i, key)
	}
	s.keys[key] = records.KV{Key: key, Raw: raw, Rev: w.rev, Lease: id, Kept: new(atomic.Value)}
	w.note(s.keys[key], true)
}

func (w writer) delete(key string) {
	s := &w.m.state
	if i, ok := slices.BinarySearch(s.sorted, key); ok {
		s.sorted = slices.Delete(s.sorted, i, i+1)
		delete(s.keys, key)
		w.note(records.KV{Key: key, Rev: w.rev}, false)
	}
}

func (w writer) note(kv records.KV, put bool) {
	*w.wrote = true
	if c, ok := w.m.Keys.Change(kv, put); ok {
		w.m.changes = append(w.m.changes, c)
	}
}

// wake notifies all watchers. m.mu is held.
func (m *Memory) wake() {
	for c := range m.watchers {
		select {
		case c <- struct{}{}:
		default: // it was notified already
		}
	}
}

// Advance lets d pass. Leases that were not renewed within their time to live end,
// in the order in which they were granted, and their keys are deleted.
func (m *Memory) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.elapsed += d
	var over []lease.LeaseID
	for id, g := range m.state.leases {
		if g.deadline <= m.elapsed {
			over = append(over, id)
		}
	}
	slices.Sort(over)
	for _, id := range over {
		m.end(id)
	}
}

// Renew restarts the time to live of every lease, as a new leader of etcd does.
func (m *Memory) Renew() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renew()
}

func (m *Memory) renew() {
	for id, g := range m.state.leases {
		g.deadline = m.elapsed + g.ttl
		m.state.leases[id] = g
	}
}

// Leases returns all leases, in the order in which they were granted.
func (m *Memory) Leases() []lease.LeaseID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.state.leases))
}

// Expire ends a lease now, early or late, and deletes its keys. It does nothing if
// the lease is gone.
func (m *Memory) Expire(id lease.LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end(id)
}

// end deletes a lease and its keys. m.mu is held.
func (m *Memory) end(id lease.LeaseID) {
	if _, ok := m.state.leases[id]; !ok {
		return
	}
	delete(m.state.leases, id)
	m.write(func(w writer) {
		for _, key := range slices.Clone(m.state.sorted) {
			if m.state.keys[key].Lease == id {
				w.delete(key)
			}
		}
	})
}

// Put writes raw under key, on no lease.
func (m *Memory) Put(key, raw string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write(func(w writer) { w.put(key, raw, 0) })
}

// Corrupt changes the last byte of each key's record and nothing else, neither
// revision nor lease, as a disk error does. Absent keys stay absent.
func (m *Memory) Corrupt(keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		kv, ok := m.state.keys[key]
		if !ok || kv.Raw == "" {
			continue
		}
		raw := []byte(kv.Raw)
		raw[len(raw)-1] ^= 1
		kv.Raw, kv.Kept = string(raw), nil
		m.state.keys[key] = kv
	}
}

// Delete deletes the keys.
func (m *Memory) Delete(keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write(func(w writer) {
		for _, key := range keys {
			w.delete(key)
		}
	})
}

// Revision returns that of the last write.
func (m *Memory) Revision() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.rev
}

// Raw returns the bytes under key, and whether there is such a key.
func (m *Memory) Raw(key string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kv, ok := m.state.keys[key]
	return kv.Raw, ok
}

// SetCluster changes etcd's cluster ID, as a restore with another token does.
func (m *Memory) SetCluster(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.cluster = id
	m.breaks++
	m.wake()
}

// A Snapshot is a backup of a Memory.
type Snapshot struct{ state state }

// Snapshot returns a backup: records, revision, cluster ID and leases.
func (m *Memory) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Snapshot{m.state.clone()}
}

// Restore goes back to a backup: later history is lost, and its revisions are used
// again. The time to live of the backup's leases restarts, as under a new leader;
// later leases are gone. Every watch breaks, and is opened again.
func (m *Memory) Restore(s Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s.state.clone()
	m.renew()
	m.changes = slices.DeleteFunc(m.changes, func(c lease.Change) bool { return c.Revision > m.state.rev })
	m.breaks++
	m.wake()
}

// clone returns a copy that shares nothing with s.
func (s state) clone() state {
	s.keys, s.sorted, s.leases = maps.Clone(s.keys), slices.Clone(s.sorted), maps.Clone(s.leases)
	return s
}
