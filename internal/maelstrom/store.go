package maelstrom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// KV is what Store asks of lin-kv: values by key, each call linearizable. Both
// return an *Error that the service answered with; after any other error, and
// after one whose code is not definite, a CAS may have been applied or may
// still be.
type KV interface {
	// Read returns the value under key, or an *Error with KeyDoesNotExist.
	Read(ctx context.Context, key string) (string, error)
	// CAS sets key to to if it has the value from, and else returns an *Error
	// with PreconditionFailed. From "" is for a key that does not exist.
	CAS(ctx context.Context, key, from, to string) error
}

// Store is one space under one key of a KV. It implements keeper.Store, and is
// safe for concurrent use.
type Store struct {
	kv    KV
	key   string
	clock clock.Source
	poll  time.Duration

	mu    sync.Mutex // guards the fields below
	beats map[lease.LeaseID]sighting
	value string // last seen in the KV, and what it decodes to: values are long
	space *space // not to be changed; nil: none yet
}

// sighting is when this process first saw a lease with its present beat.
type sighting struct {
	beat  int64
	since clock.Mono // when that answer had arrived
}

// NewStore returns the space under key. Watch asks for changes every poll. src
// is read to tell for how long a lease was not renewed.
func NewStore(kv KV, key string, src clock.Source, poll time.Duration) *Store {
	return &Store{kv: kv, key: key, clock: src, poll: poll, beats: map[lease.LeaseID]sighting{}}
}

// get reads the space and returns the value it was decoded from with it, and
// the leases that were not renewed for their time to live.
func (st *Store) get(ctx context.Context) (s *space, value string, over []lease.LeaseID, err error) {
	if err := ctx.Err(); err != nil {
		return nil, "", nil, err
	}
	asked := st.clock.Now().Mono
	value, err = st.kv.Read(ctx, st.key)
	if code(err) == KeyDoesNotExist {
		value, err = "", nil
	}
	if err != nil {
		return nil, "", nil, err
	}
	if s, err = st.decode(value); err != nil {
		return nil, "", nil, err
	}
	return s, value, st.observe(s, asked, st.clock.Now().Mono), nil
}

// decode returns the space that value is, for the caller to change.
func (st *Store) decode(value string) (*space, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.space == nil || st.value != value {
		s, err := decodeSpace(value)
		if err != nil {
			return nil, err
		}
		st.value, st.space = value, s
	}
	return st.space.clone(), nil
}

// code returns the code of an error that the service answered with; Crash, which
// says nothing definite, for any other.
func code(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Crash
}

// observe notes the beats of an answer asked for and arrived at those times. It
// returns the leases seen with one beat for as long as they live: from before
// the answer that first showed it until after this one was asked for.
func (st *Store) observe(s *space, asked, arrived clock.Mono) (over []lease.LeaseID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for id := range st.beats {
		if _, ok := s.Leases[id]; !ok {
			delete(st.beats, id)
		}
	}
	for id, g := range s.Leases {
		old, ok := st.beats[id]
		switch {
		case !ok || old.beat != g.Beat:
			st.beats[id] = sighting{g.Beat, arrived}
		case asked.Sub(old.since) >= time.Duration(g.TTLSeconds)*time.Second:
			over = append(over, id)
		}
	}
	slices.Sort(over)
	return over
}

// errNoChange ends an update that has nothing to write.
var errNoChange = errors.New("maelstrom: nothing to write")

// update sets what change makes of the space, and tries again for as long as
// others come first. It returns the space as it is then; with errNoChange, or
// any other error of change, it wrote nothing and returns what was found. After
// errors of the KV the outcome is unknown.
func (st *Store) update(ctx context.Context, change func(s *space, over []lease.LeaseID) error) (*space, error) {
	for {
		s, value, over, err := st.get(ctx)
		if err != nil {
			return nil, err
		}
		if err := change(s, over); err != nil {
			return s, err
		}
		next := s.encode()
		err = st.kv.CAS(ctx, st.key, value, next)
		switch code(err) {
		case PreconditionFailed, KeyDoesNotExist:
			continue // definitely not applied: somebody else has written, who got on
		}
		if err != nil {
			return nil, err
		}
		st.mu.Lock()
		st.value, st.space = next, s.clone()
		st.mu.Unlock()
		return s, nil
	}
}

// Load reads the whole space.
func (st *Store) Load(ctx context.Context) (lease.View, error) {
	s, _, _, err := st.get(ctx)
	if err != nil {
		return lease.View{}, fmt.Errorf("load: %w", err)
	}
	return s.view(), nil
}

// Read reads config, era and one sid.
func (st *Store) Read(ctx context.Context, sid flake.SID) (lease.View, error) {
	s, _, _, err := st.get(ctx)
	if err != nil {
		return lease.View{}, fmt.Errorf("read sid %d: %w", sid, err)
	}
	return s.viewOf(sid), nil
}

// Commit carries out txn if all that it compares holds. It returns lease.ErrTxn
// or lease.ErrLeaseGone, with nothing written; after any other error the outcome
// is unknown.
func (st *Store) Commit(ctx context.Context, txn lease.Txn) (bool, lease.View, error) {
	if err := txn.Check(); err != nil {
		return false, lease.View{}, err
	}
	s, err := st.update(ctx, func(s *space, _ []lease.LeaseID) error {
		if !s.holds(txn) {
			return errNoChange
		}
		return s.apply(txn)
	})
	switch {
	case errors.Is(err, errNoChange):
		return false, s.viewOf(txn.SID), nil
	case err != nil:
		return false, lease.View{}, fmt.Errorf("%v sid %d: %w", txn.Op, txn.SID, err)
	}
	return true, s.viewOf(txn.SID), nil
}

// Register takes a lease of ttl, rounded up to whole seconds, and puts r on it.
func (st *Store) Register(ctx context.Context, ttl time.Duration, r lease.Registration) (lease.LeaseID, error) {
	s, err := st.update(ctx, func(s *space, _ []lease.LeaseID) error {
		s.register(ttl, r)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("register %s: %w", r.Instance, err)
	}
	return s.LastLease, nil
}

// KeepAlive renews the lease once, or returns lease.ErrLeaseGone. It ends leases
// of others that were not renewed for their time to live.
func (st *Store) KeepAlive(ctx context.Context, id lease.LeaseID) error {
	_, err := st.update(ctx, func(s *space, over []lease.LeaseID) error {
		if err := s.renew(id); err != nil {
			return err
		}
		for _, other := range over {
			if other != id {
				s.endLease(other)
			}
		}
		return nil
	})
	return err
}

// Revoke ends the lease, if it is still there, and deletes every key on it.
func (st *Store) Revoke(ctx context.Context, id lease.LeaseID) error {
	_, err := st.update(ctx, func(s *space, _ []lease.LeaseID) error {
		if !s.endLease(id) {
			return errNoChange
		}
		return nil
	})
	if err != nil && !errors.Is(err, errNoChange) {
		return fmt.Errorf("revoke lease %x: %w", int64(id), err)
	}
	return nil
}

// Watch asks for the space again and again, and calls changed when it was first
// seen and after every change but those of windows.
func (st *Store) Watch(ctx context.Context, changed func()) error {
	last := int64(-1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		// Unbounded by itself: a lost answer must not end the watch.
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		s, _, _, err := st.get(asking)
		cancel()
		if err == nil && s.Changed != last {
			last = s.Changed
			changed()
		}
		timer.Reset(st.poll)
	}
}

// askTimeout is for how long Watch waits for one answer.
const askTimeout = 2 * time.Second

// errRemains says that a space has lost its config but not its other records.
var errRemains = errors.New("maelstrom: space lost its config but has other records")

// Init makes the space if it has no config: config, and era 1 with that floor,
// in Unix ms. It reports whether it did, with a view of the whole space. After
// an error it may have been made.
func (st *Store) Init(ctx context.Context, as lease.Space, floor clock.Millis) (bool, lease.View, error) {
	s, err := st.update(ctx, func(s *space, _ []lease.LeaseID) error {
		if _, ok := s.Keys["config"]; ok {
			return errNoChange
		}
		for _, key := range s.under("") {
			if key == "era" || strings.HasPrefix(key, "window/") || strings.HasPrefix(key, "ledger/") {
				return errRemains
			}
		}
		e := s.edit()
		e.put("config", lease.Encode(as), 0)
		e.put("era", lease.Encode(lease.Era{Number: 1, Floor: floor, Cluster: cluster}), 0)
		return nil
	})
	switch {
	case errors.Is(err, errNoChange):
		return false, s.view(), nil
	case err != nil:
		return false, lease.View{}, fmt.Errorf("initialise: %w", err)
	}
	return true, s.view(), nil
}
