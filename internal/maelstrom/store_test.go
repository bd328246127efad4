package maelstrom

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/leasetest"
)

// memoryKV is lin-kv without a network. script, if any, says how the CAS with
// that number fails, counted from 1.
type memoryKV struct {
	mu     sync.Mutex // guards the fields below
	values map[string]string
	seen   map[string]bool // every value there ever was
	cas    int
	script func(n int) casFault
}

type casFault struct {
	err     error
	applied bool
}

func newMemoryKV() *memoryKV {
	return &memoryKV{values: map[string]string{}, seen: map[string]bool{}}
}

func (kv *memoryKV) Read(ctx context.Context, key string) (string, error) {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	v, ok := kv.values[key]
	if !ok {
		return "", &Error{Code: KeyDoesNotExist}
	}
	return v, nil
}

func (kv *memoryKV) CAS(ctx context.Context, key, from, to string) error {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	kv.cas++
	var fault casFault
	if kv.script != nil {
		fault = kv.script(kv.cas)
	}
	if fault.err != nil && !fault.applied {
		return fault.err
	}
	now, ok := kv.values[key]
	switch {
	case ok && now != from:
		return &Error{Code: PreconditionFailed}
	case !ok && from != "":
		return &Error{Code: KeyDoesNotExist}
	case kv.seen[to]:
		return fmt.Errorf("the value %.100q was there before: a late CAS could bring it back", to)
	}
	kv.values[key], kv.seen[to] = to, true
	return fault.err
}

// contractSpace adds what production does not need: who held a sid, from the
// ledger that Commit writes.
type contractSpace struct{ *Store }

func (c contractSpace) Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.Tenure, bool, error) {
	s, _, _, err := c.get(ctx)
	if err != nil {
		return lease.Tenure{}, false, err
	}
	lines := s.under(ledgerOf(sid))
	for i := len(lines) - 1; i >= 0; i-- {
		t, err := lease.Decode[lease.Tenure](string(s.Keys[lines[i]].Raw))
		if err != nil {
			return lease.Tenure{}, false, err
		}
		if t.Since <= at {
			return t, true, nil
		}
	}
	return lease.Tenure{}, false, nil
}

func newStore(kv KV, src clock.Source) *Store {
	return NewStore(kv, "space", src, time.Millisecond)
}

// The store of this package keeps what the one on etcd keeps. There is nothing
// to compact.
func TestContract(t *testing.T) {
	leasetest.Contract(t, func(t *testing.T) leasetest.Harness {
		st := newStore(newMemoryKV(), clock.NewManual(0))
		edit := func(change func(s *space)) {
			t.Helper()
			_, err := st.update(context.Background(), func(s *space, _ []lease.LeaseID) error { change(s); return nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		return leasetest.Harness{
			Space:   contractSpace{st},
			Put:     func(key, raw string) { edit(func(s *space) { s.edit().put(key, raw, 0) }) },
			Delete:  func(key string) { edit(func(s *space) { s.edit().del(key) }) },
			Expire:  func(id lease.LeaseID) { edit(func(s *space) { s.endLease(id) }) },
			Compact: func() {},
		}
	})
}

// pair is two processes on one space, each with a clock of its own.
type pair struct {
	*testing.T
	kv             *memoryKV
	aClock, bClock *clock.Manual
	a, b           *Store
}

func newPair(t *testing.T) *pair {
	p := &pair{T: t, kv: newMemoryKV(), aClock: clock.NewManual(0), bClock: clock.NewManual(1 << 40)}
	p.a, p.b = newStore(p.kv, p.aClock), newStore(p.kv, p.bClock)
	return p
}

func (p *pair) register(st *Store, name string) lease.LeaseID {
	p.Helper()
	id, err := st.Register(p.Context(), 1500*time.Millisecond, lease.Registration{Instance: lease.Instance(name), Node: name})
	if err != nil {
		p.Fatal(err)
	}
	return id
}

func (p *pair) keepAlive(st *Store, id lease.LeaseID) {
	p.Helper()
	if err := st.KeepAlive(p.Context(), id); err != nil {
		p.Fatal(err)
	}
}

func (p *pair) nodes() string {
	p.Helper()
	v, err := p.b.Load(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	var names []string
	for _, n := range v.Nodes {
		names = append(names, n.Node)
	}
	return strings.Join(names, " ")
}

func TestLeaseOfASilentNodeEnds(t *testing.T) {
	p := newPair(t)
	a := p.register(p.a, "a")
	b := p.register(p.b, "b") // b first sees a's beat in this call
	p.bClock.Advance(1999 * time.Millisecond)
	p.keepAlive(p.b, b)
	if got := p.nodes(); got != "a b" {
		t.Fatalf("nodes before 2 s are over: %s, want both: 1.5 s are rounded up", got)
	}
	p.keepAlive(p.a, a) // renewed late, and not yet ended by anybody
	p.bClock.Advance(time.Millisecond)
	p.keepAlive(p.b, b)
	p.bClock.Advance(1999 * time.Millisecond)
	p.keepAlive(p.b, b)
	if got := p.nodes(); got != "a b" {
		t.Fatalf("nodes less than 2 s after a renewal was seen: %s, want both", got)
	}
	p.bClock.Advance(time.Millisecond)
	p.keepAlive(p.b, b)
	if got := p.nodes(); got != "b" {
		t.Fatalf("nodes 2 s after a renewal was seen: %s, want b alone", got)
	}
	if err := p.a.KeepAlive(t.Context(), a); !errors.Is(err, lease.ErrLeaseGone) {
		t.Errorf("keep alive of a lease that others ended: got %v, want ErrLeaseGone", err)
	}
}

// A node's clock must not matter to others: here it runs a thousand times faster.
func TestLeasesCompareNoClocks(t *testing.T) {
	p := newPair(t)
	a, b := p.register(p.a, "a"), p.register(p.b, "b")
	for range 100 {
		p.aClock.Advance(time.Second)
		p.bClock.Advance(time.Millisecond)
		p.keepAlive(p.b, b)
		p.keepAlive(p.a, a)
	}
	if got := p.nodes(); got != "a b" {
		t.Errorf("nodes: %s, want both", got)
	}
	// b, whose clock stands still, never ends a's lease; a's own clock is not asked.
	p.aClock.Advance(time.Hour)
	p.keepAlive(p.a, a)
	if got := p.nodes(); got != "a" {
		t.Errorf("nodes: %s, want a alone: b was silent for an hour of a's", got)
	}
}

// slowKV answers a read only after something happened.
type slowKV struct {
	KV
	meanwhile func()
}

func (kv slowKV) Read(ctx context.Context, key string) (string, error) {
	v, err := kv.KV.Read(ctx, key)
	kv.meanwhile()
	return v, err
}

// An answer that took long says nothing about the time after it was given.
func TestLeaseIsCountedFromTheAnswer(t *testing.T) {
	p := newPair(t)
	a := p.register(p.a, "a")
	b := p.register(p.b, "b")
	p.keepAlive(p.a, a)
	p.b.kv = slowKV{p.kv, func() { p.bClock.Advance(10 * time.Second) }}
	p.keepAlive(p.b, b) // the answer that shows a's new beat arrives after 10 s
	p.b.kv = p.kv
	p.bClock.Advance(1999 * time.Millisecond)
	p.keepAlive(p.b, b)
	if got := p.nodes(); got != "a b" {
		t.Errorf("nodes: %s, want both: a's beat is known since 1.999 s", got)
	}
	p.b.kv = slowKV{p.kv, func() { p.bClock.Advance(10 * time.Second) }}
	p.keepAlive(p.b, b) // and what is asked at 1.999 s is no word about 11.999 s
	if got := p.nodes(); got != "a b" {
		t.Errorf("nodes: %s, want both: the beat was asked for at 1.999 s", got)
	}
}

// What became of a CAS is passed on as the service told it.
func TestOutcomes(t *testing.T) {
	timeout, crash := &Error{Code: Timeout}, &Error{Code: Crash}
	for _, tc := range []struct {
		name    string
		fault   casFault
		applied bool // the write is there afterwards
		fails   bool
	}{
		{"timeout, not applied", casFault{timeout, false}, false, true},
		{"timeout, applied", casFault{timeout, true}, true, true},
		{"crash, applied", casFault{crash, true}, true, true},
		{"a code that nobody knows, applied", casFault{&Error{Code: 1234}, true}, true, true},
		{"no answer, applied", casFault{context.DeadlineExceeded, true}, true, true},
		{"unavailable", casFault{&Error{Code: TemporarilyUnavailable}, false}, false, true},
		{"somebody else was first", casFault{&Error{Code: PreconditionFailed}, false}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kv := newMemoryKV()
			kv.script = func(n int) casFault {
				if n == 1 {
					return tc.fault
				}
				return casFault{}
			}
			st := newStore(kv, clock.NewManual(0))
			_, err := st.Register(t.Context(), time.Second, lease.Registration{Instance: "i"})
			if (err != nil) != tc.fails {
				t.Errorf("register: %v, want an error: %v", err, tc.fails)
			}
			if tc.fails && kv.cas != 1 {
				t.Errorf("%d writes were sent, want 1: the outcome of the first is not known", kv.cas)
			}
			v, err := st.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := len(v.Nodes) == 1; got != tc.applied {
				t.Errorf("registered: %v, want %v", got, tc.applied)
			}
		})
	}
}

// A value that is no space is never taken for an absent one: the space would be
// made anew, and its IDs with it.
func TestUnreadableValue(t *testing.T) {
	for _, value := range []string{"x", "{}", "[]", "null", `{"writes":1}x`, `{"writes":0,"rev":1}`, `{"writes":1,"rev":-1}`, `{"writes":1,"rev":1,"keys":3}`} {
		kv := newMemoryKV()
		kv.values["space"] = value
		st := newStore(kv, clock.NewManual(0))
		if _, err := st.Load(t.Context()); !errors.Is(err, errValue) {
			t.Errorf("load of %s: %v, want errValue", value, err)
		}
		created, _, err := st.Init(t.Context(), lease.Space{Pool: "p"}, 0)
		if created || !errors.Is(err, errValue) || kv.values["space"] != value {
			t.Errorf("init over %s: %v, %v, and then %s", value, created, err, kv.values["space"])
		}
	}
}

// A value that came back could be what a late CAS waits for.
func TestEveryValueIsNew(t *testing.T) {
	value := ""
	seen := map[string]bool{}
	for range 3 {
		s, err := decodeSpace(value)
		if err != nil {
			t.Fatal(err)
		}
		if value = s.encode(); seen[value] {
			t.Errorf("%s was there before", value)
		}
		seen[value] = true
	}
}

// A whole space with full ledgers must fit into a line.
func TestLargestSpaceFitsALine(t *testing.T) {
	s, err := decodeSpace("")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("n", 64)
	for sid := range flake.SID(flake.Scalable.Holders()) {
		id := s.register(time.Second, lease.Registration{Instance: lease.Instance(long), Node: long})
		for term := range int64(lease.LedgerKept + 3) {
			err := s.apply(lease.Txn{Op: lease.Acquire, SID: sid, Lease: id, Window: lease.Window{
				Term: term + 1, Era: 1, Instance: lease.Instance(long), Node: long, Nonce: long,
				Base: 1 << 41, Ceil: 1 << 41, State: lease.Active, Wall: 1 << 41}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := len(s.under(ledgerOf(sid))); n != lease.LedgerKept {
			t.Fatalf("ledger has %d lines, want %d", n, lease.LedgerKept)
		}
	}
	value := s.encode()
	line, err := encode("n1", linKVName, kvRequest{From: &value, To: &value})
	if err != nil {
		t.Fatal(err)
	}
	if len(line) > maxLine {
		t.Errorf("a cas of the largest space has %d bytes, a line at most %d", len(line), maxLine)
	}
	t.Logf("the largest space has %d bytes", len(value))
}
