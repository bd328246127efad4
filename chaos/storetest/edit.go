package storetest

import (
	"maps"
	"slices"
	"time"

	"github.com/flakelease/allocator/internal/lease"
)

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
	m.write(func(_ func(string, string, lease.LeaseID), del func(string)) {
		for _, key := range m.under("") {
			if m.state.keys[key].lease == id {
				del(key)
			}
		}
	})
}

// Put writes raw under key, on no lease.
func (m *Memory) Put(key, raw string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(key, raw, 0)
}

// Corrupt changes the last byte of each key's record and nothing else, neither
// revision nor lease, as a disk error does. Absent keys stay absent.
func (m *Memory) Corrupt(keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		r, ok := m.state.keys[key]
		if !ok || r.raw == "" {
			continue
		}
		raw := []byte(r.raw)
		raw[len(raw)-1] ^= 1
		m.state.keys[key] = &record{raw: string(raw), rev: r.rev, lease: r.lease}
	}
}

// Delete deletes the keys.
func (m *Memory) Delete(keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write(func(_ func(string, string, lease.LeaseID), del func(string)) {
		for _, key := range keys {
			del(key)
		}
	})
}

// Raw returns the bytes under key, and whether there is such a key.
func (m *Memory) Raw(key string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.state.keys[key]
	if !ok {
		return "", false
	}
	return r.raw, true
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
