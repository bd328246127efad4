// Package storetest helps to test users of a keeper.Store: Memory is a Store in
// memory, Faulty makes the calls of any Store fail by script, and Contract is the
// test that every Store must pass. Only tests and chaos packages import it.
//
// In calls that edit records directly, keys are written as package etcdstore has
// them below a space: config, era, node/<instance>, holder/<sid>, window/<sid> and
// ledger/<sid>/<term>, the term in 20 digits.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// ErrRemains is returned by Memory.Init for a space that lost its config.
var ErrRemains = errors.New("storetest: space lost its config but has other records")

// Memory is a Store that keeps a space as etcd does: encoded records by key, one
// revision for all of them, and leases whose keys are deleted with them. Its leases
// expire only in Advance, and it starts no goroutine, so that a test that uses it
// from one goroutine runs the same each time. It is safe for concurrent use.
type Memory struct {
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
	keys    map[string]*record
	sorted  []string // the keys, in order: etcd's ranges are
	leases  map[lease.LeaseID]grant
}

// record is never changed, but for its cache: a change of the key replaces it,
// and backups share it.
type record struct {
	raw   string
	rev   int64
	lease lease.LeaseID
	entry any // the lease.Entry it was last read as; nil: it was not
}

type grant struct {
	ttl      time.Duration
	deadline time.Duration // in Memory.elapsed
}

// NewMemory returns an uninitialized space, in an etcd with that cluster ID.
func NewMemory(cluster uint64) *Memory {
	return &Memory{
		state: state{
			cluster: cluster,
			rev:     1, // as in an empty etcd
			keys:    map[string]*record{},
			leases:  map[lease.LeaseID]grant{},
		},
		watchers: map[chan struct{}]bool{},
	}
}

// Load reads the whole space.
func (m *Memory) Load(ctx context.Context) (lease.View, error) {
	if err := ctx.Err(); err != nil {
		return lease.View{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.viewAll(), nil
}

// Read reads config, era and one sid.
func (m *Memory) Read(ctx context.Context, sid flake.SID) (lease.View, error) {
	if err := ctx.Err(); err != nil {
		return lease.View{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.viewOf(sid), nil
}

// Commit carries out txn if all that it compares holds. It returns lease.ErrTxn
// or lease.ErrLeaseGone, with nothing written.
func (m *Memory) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	if err := ctx.Err(); err != nil {
		return false, lease.View{}, err
	}
	if err := txn.Check(); err != nil {
		return false, lease.View{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.holds(txn) {
		return false, m.viewOf(txn.SID), nil
	}
	putsHolder := txn.Op.TakesHolder()
	if _, ok := m.state.leases[txn.Lease]; putsHolder && !ok {
		return false, lease.View{}, fmt.Errorf("%v sid %d: %w", txn.Op, txn.SID, lease.ErrLeaseGone)
	}
	m.write(func(put func(key, raw string, id lease.LeaseID), del func(key string)) {
		put(windowKey(txn.SID), lease.Encode(txn.Window), 0)
		if putsHolder {
			put(holderKey(txn.SID), lease.Encode(txn.Holder), txn.Lease)
			if txn.Mark.Exists() {
				put("mark", txn.Mark.Raw, 0)
			}
		}
		if txn.Op == lease.Release {
			del(holderKey(txn.SID))
		}
		if txn.Op != lease.Acquire && txn.Op != lease.Reclaim {
			return
		}
		line := txn.LedgerLine()
		oldest := ledgerKey(txn.SID, line.Term-lease.LedgerKept+1)
		for _, key := range m.under(ledgerPrefix(txn.SID)) {
			if line.Term >= lease.LedgerKept && key < oldest {
				del(key)
			}
		}
		put(ledgerKey(txn.SID, line.Term), lease.Encode(line), 0)
	})
	return true, m.viewOf(txn.SID), nil
}

// holds reports whether all that txn's operation compares holds.
func (m *Memory) holds(txn lease.Txn) bool {
	now, holder := m.viewOf(txn.SID), record{}
	if r := m.state.keys[holderKey(txn.SID)]; r != nil {
		holder = *r
	}
	window := now.SIDs[txn.SID].Window
	if !window.Same(txn.Seen.Window) || !window.Exists() && now.SIDs[txn.SID].Past {
		return false
	}
	if txn.Op == lease.Release {
		return true
	}
	if !now.Config.Same(txn.Config) || !now.Era.Same(txn.Era) {
		return false
	}
	if txn.Op.TakesHolder() && now.Mark.Raw != txn.Mark.Raw {
		return false
	}
	switch txn.Op {
	case lease.Extend:
		return holder.lease == txn.Lease
	case lease.Reclaim:
		return holder.rev == txn.Seen.Holder.Rev && holder.raw == txn.Seen.Holder.Raw
	default:
		return holder.rev == 0
	}
}

// PutMark carries out txn if all that it compares holds.
func (m *Memory) PutMark(ctx context.Context, txn lease.MarkTxn) (bool, lease.Entry[lease.Mark], error) {
	if err := ctx.Err(); err != nil {
		return false, lease.Entry[lease.Mark]{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.viewOf(0)
	if !now.Config.Same(txn.Config) || !now.Era.Same(txn.Era) || !now.Mark.Same(txn.Seen) {
		return false, now.Mark, nil
	}
	m.put("mark", lease.Encode(txn.Mark), 0)
	return true, m.viewOf(0).Mark, nil
}

// ErrOvertaken is returned by Memory.Register if the registration was written or
// deleted since the call began.
var ErrOvertaken = errors.New("storetest: another registration of this instance was written first")

// Register puts r on the lease id, or if that is 0 on a new lease of ttl, rounded up
// to whole seconds. It returns lease.ErrLeaseGone.
func (m *Memory) Register(ctx context.Context, id lease.LeaseID, ttl time.Duration,
	r lease.Registration) (lease.LeaseID, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return m.StartRegister(id, ttl, r)()
}

// StartRegister does what Register does before it writes: it takes the lease and
// reads the node's key. finish writes, if the key is still the same and the lease is
// still there. It may be called late, or twice.
func (m *Memory) StartRegister(id lease.LeaseID, ttl time.Duration,
	r lease.Registration) (finish func() (lease.LeaseID, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id == 0 {
		id = m.grant(ttl)
	}
	key := "node/" + string(r.Instance)
	rev := m.revisionOf(key)
	return func() (lease.LeaseID, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.revisionOf(key) != rev { // as in etcd: the compare comes first
			return 0, ErrOvertaken
		}
		if _, ok := m.state.leases[id]; !ok {
			return 0, fmt.Errorf("register %s on lease %x: %w", r.Instance, int64(id), lease.ErrLeaseGone)
		}
		m.put(key, lease.Encode(r), id)
		return id, nil
	}
}

// Grant takes a lease of ttl, rounded up to whole seconds.
func (m *Memory) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.grant(ttl), nil
}

// grant is called with mu held.
func (m *Memory) grant(ttl time.Duration) lease.LeaseID {
	m.lastLease++
	ttl = (ttl + time.Second - 1).Truncate(time.Second)
	m.state.leases[m.lastLease] = grant{ttl: ttl, deadline: m.elapsed + ttl}
	return m.lastLease
}

// revisionOf returns the revision of a key, or 0 without it. m.mu is held.
func (m *Memory) revisionOf(key string) int64 {
	if r := m.state.keys[key]; r != nil {
		return r.rev
	}
	return 0
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

// watched returns the change of a key to r, or its deletion if that is nil, and
// whether a watch reports it.
func watched(key string, rev int64, r *record) (c lease.Change, ok bool) {
	c = lease.Change{Revision: rev}
	if key == "config" || key == "era" || key == "accepted-time" {
		return c, true
	}
	if key == "mark" {
		if c.Key = lease.ChangedMark; r != nil {
			c.Mark = lease.NewEntry[lease.Mark](rev, 0, r.raw)
		}
		return c, true
	}
	if name, ok := strings.CutPrefix(key, "node/"); ok && name != "" {
		c.Key, c.Instance = lease.ChangedNode, lease.Instance(name)
		if r != nil {
			c.Node = lease.NewRegistration(c.Instance, rev, r.raw)
		}
		return c, true
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(key, "holder/"), 10, 22)
	if err != nil || key != holderKey(flake.SID(n)) {
		return c, false
	}
	c.Key, c.SID = lease.ChangedHolder, flake.SID(n)
	if r != nil {
		c.Holder = lease.NewEntry[lease.Holder](rev, r.lease, r.raw)
	}
	return c, true
}

// Init makes the space if it has no config. It returns ErrRemains.
func (m *Memory) Init(
	ctx context.Context, space lease.Space, floor clock.Millis, reserved ...lease.Reservation,
) (bool, lease.View, error) {
	if err := ctx.Err(); err != nil {
		return false, lease.View{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.viewAll(); now.Config.Exists() {
		return false, now, nil
	}
	for _, key := range m.state.sorted {
		if key == "era" || strings.HasPrefix(key, "window/") || strings.HasPrefix(key, "ledger/") {
			return false, m.viewAll(), ErrRemains
		}
	}
	m.write(func(put func(key, raw string, id lease.LeaseID), _ func(string)) {
		put("config", lease.Encode(space), 0)
		put("era", lease.Encode(lease.Era{Number: 1, Floor: floor, Cluster: m.state.cluster}), 0)
		for _, r := range reserved {
			line := lease.Txn{Window: r.Window}.LedgerLine()
			put(fmt.Sprintf("window/%d", r.SID), lease.Encode(r.Window), 0)
			put(fmt.Sprintf("ledger/%d/%020d", r.SID, line.Term), lease.Encode(line), 0)
		}
	})
	return true, m.viewAll(), nil
}

// AcceptTime puts a, if config, era and the accepted time are as in seen. It returns
// repair.ErrChanged.
func (m *Memory) AcceptTime(ctx context.Context, seen lease.View, a lease.AcceptedTime) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.viewAll()
	if !now.Config.Same(seen.Config) || !now.Era.Same(seen.Era) || !now.Accepted.Same(seen.Accepted) {
		return repair.ErrChanged
	}
	m.put("accepted-time", lease.Encode(a), 0)
	return nil
}

// Holder returns the last line of the sid's ledger that began by at.
func (m *Memory) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error) {
	if err := ctx.Err(); err != nil {
		return lease.LedgerLine{}, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	lines := m.under(ledgerPrefix(sid))
	slices.Reverse(lines)
	for _, key := range lines {
		t, err := lease.Decode[lease.LedgerLine](m.state.keys[key].raw)
		if err != nil {
			return lease.LedgerLine{}, false, fmt.Errorf("read %s: %w", key, err)
		}
		if t.Since <= at {
			return t, true, nil
		}
	}
	return lease.LedgerLine{}, false, nil
}

// write makes all that edit does one revision, and wakes watchers if it touched
// what they watch. m.mu is held.
func (m *Memory) write(edit func(put func(key, raw string, id lease.LeaseID), del func(key string))) {
	rev, wrote, before := m.state.rev+1, false, len(m.changes)
	note := func(key string, r *record) {
		wrote = true
		if c, ok := watched(key, rev, r); ok {
			m.changes = append(m.changes, c)
		}
	}
	edit(func(key, raw string, id lease.LeaseID) {
		if i, ok := slices.BinarySearch(m.state.sorted, key); !ok {
			m.state.sorted = slices.Insert(m.state.sorted, i, key)
		}
		r := &record{raw: raw, rev: rev, lease: id}
		m.state.keys[key] = r
		note(key, r)
	}, func(key string) {
		if i, ok := slices.BinarySearch(m.state.sorted, key); ok {
			m.state.sorted = slices.Delete(m.state.sorted, i, i+1)
			delete(m.state.keys, key)
			note(key, nil)
		}
	})
	if wrote {
		m.state.rev = rev
	}
	if len(m.changes) > before {
		m.wake()
	}
}

func (m *Memory) put(key, raw string, id lease.LeaseID) {
	m.write(func(put func(string, string, lease.LeaseID), _ func(string)) { put(key, raw, id) })
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

// viewAll returns a view of the space. m.mu is held.
func (m *Memory) viewAll() lease.View {
	v := m.viewCommon()
	v.Accepted = readEntry[lease.AcceptedTime](m, "accepted-time")
	for _, key := range m.under("node/") {
		if name := strings.TrimPrefix(key, "node/"); name != "" {
			v.Nodes = append(v.Nodes, m.registration(name, m.state.keys[key]))
		}
	}
	for _, kind := range []string{"holder/", "window/"} {
		for _, key := range m.under(kind) {
			n, err := strconv.ParseUint(strings.TrimPrefix(key, kind), 10, 22)
			sid := flake.SID(n)
			if _, seen := v.SIDs[sid]; seen || err != nil || key != holderKey(sid) && key != windowKey(sid) {
				continue
			}
			v.SIDs[sid] = lease.SIDRecords{
				Holder: readEntry[lease.Holder](m, holderKey(sid)),
				Window: readEntry[lease.Window](m, windowKey(sid)),
			}
		}
	}
	return v
}

// viewOf returns a view of one sid. m.mu is held.
func (m *Memory) viewOf(sid flake.SID) lease.View {
	v := m.viewCommon()
	v.SIDs[sid] = lease.SIDRecords{
		Holder: readEntry[lease.Holder](m, holderKey(sid)),
		Window: readEntry[lease.Window](m, windowKey(sid)),
		Past:   m.any(ledgerPrefix(sid)),
	}
	return v
}

func (m *Memory) viewCommon() lease.View {
	return lease.View{
		Cluster:  m.state.cluster,
		Revision: m.state.rev,
		Config:   readEntry[lease.Space](m, "config"),
		Era:      readEntry[lease.Era](m, "era"),
		Mark:     readEntry[lease.Mark](m, "mark"),
		SIDs:     map[flake.SID]lease.SIDRecords{},
	}
}

func readEntry[T any](m *Memory, key string) lease.Entry[T] {
	r, ok := m.state.keys[key]
	if !ok {
		return lease.Entry[T]{}
	}
	e, ok := r.entry.(lease.Entry[T])
	if !ok { // decoding is most of what a simulation would do
		e = lease.NewEntry[T](r.rev, r.lease, r.raw)
		r.entry = e
	}
	return e
}

// registration reads a node's key. m.mu is held.
func (m *Memory) registration(name string, r *record) lease.Registration {
	n, ok := r.entry.(lease.Registration)
	if !ok {
		n = lease.NewRegistration(lease.Instance(name), r.rev, r.raw)
		r.entry = n
	}
	return n
}

// any reports whether there is a key with that prefix. m.mu is held.
func (m *Memory) any(prefix string) bool {
	i, _ := slices.BinarySearch(m.state.sorted, prefix)
	return i < len(m.state.sorted) && strings.HasPrefix(m.state.sorted[i], prefix)
}

// under returns a copy of the keys with that prefix, in order. m.mu is held.
func (m *Memory) under(prefix string) []string {
	i, _ := slices.BinarySearch(m.state.sorted, prefix)
	n := i
	for n < len(m.state.sorted) && strings.HasPrefix(m.state.sorted[n], prefix) {
		n++
	}
	return slices.Clone(m.state.sorted[i:n])
}

func holderKey(sid flake.SID) string    { return "holder/" + strconv.Itoa(int(sid)) }
func windowKey(sid flake.SID) string    { return "window/" + strconv.Itoa(int(sid)) }
func ledgerPrefix(sid flake.SID) string { return "ledger/" + strconv.Itoa(int(sid)) + "/" }
func ledgerKey(sid flake.SID, term int64) string {
	return fmt.Sprintf("%s%020d", ledgerPrefix(sid), term)
}

// clone returns a copy that shares nothing with s.
func (s state) clone() state {
	s.keys, s.sorted, s.leases = maps.Clone(s.keys), slices.Clone(s.sorted), maps.Clone(s.leases)
	return s
}
