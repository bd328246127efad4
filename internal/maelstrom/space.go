package maelstrom

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// space is a whole space as lin-kv has it under one key. It is a value: methods
// that change it change a copy that the caller decoded, and nothing has happened
// before that copy is set in place of what it was decoded from.
//
// Keys are written as package etcdstore has them below a space: config, era,
// node/<instance>, holder/<sid>, window/<sid> and ledger/<sid>/<term>, the term
// in 20 digits.
type space struct {
	// Writes counts every change of the value, so that no value comes twice.
	Writes int64 `json:"writes"`
	// Rev counts changes of keys, as etcd's revision does: renewals are none.
	Rev int64 `json:"rev"`
	// Changed is the last Rev that a watcher wants to hear of.
	Changed   int64                   `json:"changed"`
	LastLease lease.LeaseID           `json:"last_lease"`
	Keys      map[string]record       `json:"keys"`
	Leases    map[lease.LeaseID]grant `json:"leases"`
}

// record is what is stored under a key. Raw is in base64: an unreadable record
// must come back as it was, and JSON has no place for bytes that are no text.
type record struct {
	Raw   []byte        `json:"raw"`
	Rev   int64         `json:"rev"`
	Lease lease.LeaseID `json:"lease,omitempty"`
}

// grant is a lease. Its holder counts Beat up to renew it.
type grant struct {
	TTLSeconds int64 `json:"ttl"`
	Beat       int64 `json:"beat"`
}

// cluster is what stands for etcd's cluster ID: lin-kv has no identity.
const cluster = 1

// emptyRev is the revision of a store that nobody has written to, as in etcd.
const emptyRev = 1

// errValue says that what is under our key is no space. It is never taken for
// an absent one.
var errValue = errors.New("maelstrom: the value in lin-kv is no space")

// decodeSpace reads a value; "" is a key that does not exist.
func decodeSpace(value string) (*space, error) {
	s := &space{Rev: emptyRev}
	if value != "" {
		if err := json.Unmarshal([]byte(value), s); err != nil {
			return nil, fmt.Errorf("%w: %w", errValue, err)
		}
		if s.Writes < 1 || s.Rev < emptyRev {
			return nil, fmt.Errorf("%w: %d writes, revision %d", errValue, s.Writes, s.Rev)
		}
	}
	if s.Keys == nil {
		s.Keys = map[string]record{}
	}
	if s.Leases == nil {
		s.Leases = map[lease.LeaseID]grant{}
	}
	return s, nil
}

// encode returns the value to be set in place of the one s was decoded from.
func (s *space) encode() string {
	s.Writes++
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("maelstrom: a space has no JSON form: %v", err))
	}
	return string(b)
}

// clone returns a copy that can be changed. Records are replaced, never written
// to, so they are shared.
func (s *space) clone() *space {
	c := *s
	c.Keys, c.Leases = maps.Clone(s.Keys), maps.Clone(s.Leases)
	return &c
}

// View returns what a value of lin-kv says about a whole space. It is for those
// who look at a run from outside.
func View(value string) (lease.View, error) {
	s, err := decodeSpace(value)
	if err != nil {
		return lease.View{}, err
	}
	return s.view(), nil
}

func (s *space) common() lease.View {
	return lease.View{
		Cluster:  cluster,
		Revision: s.Rev,
		Config:   entryOf[lease.Space](s, "config"),
		Era:      entryOf[lease.Era](s, "era"),
		Sids:     map[flake.SID]lease.Sid{},
	}
}

func entryOf[T any](s *space, key string) lease.Entry[T] {
	r, ok := s.Keys[key]
	if !ok {
		return lease.Entry[T]{}
	}
	return lease.NewEntry[T](r.Rev, r.Lease, string(r.Raw))
}

// view returns a view of the whole space.
func (s *space) view() lease.View {
	v := s.common()
	for _, key := range s.under("") {
		kind, name, _ := strings.Cut(key, "/")
		if kind == "node" && name != "" {
			r := s.Keys[key]
			v.Nodes = append(v.Nodes, lease.NewRegistration(lease.Instance(name), r.Rev, string(r.Raw)))
			continue
		}
		n, err := strconv.ParseUint(name, 10, 16)
		if sid := flake.SID(n); err == nil && (key == holderKey(sid) || key == windowKey(sid)) {
			v.Sids[sid] = s.sid(sid)
		}
	}
	return v
}

// viewOf returns a view of one sid.
func (s *space) viewOf(sid flake.SID) lease.View {
	v := s.common()
	seen := s.sid(sid)
	seen.Past = len(s.under(ledgerOf(sid))) > 0
	v.Sids[sid] = seen
	return v
}

func (s *space) sid(sid flake.SID) lease.Sid {
	return lease.Sid{
		Holder: entryOf[lease.Holder](s, holderKey(sid)),
		Window: entryOf[lease.Window](s, windowKey(sid)),
	}
}

// holds reports whether all that txn's operation compares holds; see lease.Op.
func (s *space) holds(txn lease.Txn) bool {
	now, holder := s.viewOf(txn.SID), s.Keys[holderKey(txn.SID)]
	seen := now.Sids[txn.SID]
	if !seen.Window.Same(txn.Seen.Window) {
		return false
	}
	if !seen.Window.Exists() && seen.Past {
		return false // the ceiling was lost, and with it what was issued
	}
	if txn.Op == lease.Release {
		return true
	}
	if !now.Config.Same(txn.Config) || !now.Era.Same(txn.Era) {
		return false
	}
	switch txn.Op {
	case lease.Extend:
		return holder.Lease == txn.Lease
	case lease.Reclaim:
		return seen.Holder.Same(txn.Seen.Holder)
	default:
		return !seen.Holder.Exists()
	}
}

// apply carries out a transaction whose compares hold. It returns
// lease.ErrLeaseGone, with s as it was.
func (s *space) apply(txn lease.Txn) error {
	putsHolder := txn.Op == lease.Acquire || txn.Op == lease.Reclaim || txn.Op == lease.Rehold
	if _, ok := s.Leases[txn.Lease]; putsHolder && !ok {
		return fmt.Errorf("%v sid %d: %w", txn.Op, txn.SID, lease.ErrLeaseGone)
	}
	e := s.edit()
	e.put(windowKey(txn.SID), lease.Encode(txn.Window), 0)
	if putsHolder {
		e.put(holderKey(txn.SID), lease.Encode(txn.Holder), txn.Lease)
	}
	if txn.Op == lease.Release {
		e.del(holderKey(txn.SID))
	}
	if txn.Op == lease.Acquire || txn.Op == lease.Reclaim {
		line := txn.LedgerLine()
		e.put(ledgerKey(txn.SID, line.Term), lease.Encode(line), 0)
		oldest := ledgerKey(txn.SID, max(line.Term-lease.LedgerKept+1, 0))
		for _, key := range s.under(ledgerOf(txn.SID)) {
			if key < oldest {
				e.del(key)
			}
		}
	}
	return nil
}

// register grants a lease, rounded up to whole seconds, with r on it.
func (s *space) register(ttl time.Duration, r lease.Registration) lease.LeaseID {
	s.LastLease++
	s.Leases[s.LastLease] = grant{TTLSeconds: int64((ttl + time.Second - 1) / time.Second)}
	s.edit().put("node/"+string(r.Instance), lease.Encode(r), s.LastLease)
	return s.LastLease
}

// renew counts a lease's beat up, or returns lease.ErrLeaseGone.
func (s *space) renew(id lease.LeaseID) error {
	g, ok := s.Leases[id]
	if !ok {
		return fmt.Errorf("keep alive lease %x: %w", int64(id), lease.ErrLeaseGone)
	}
	g.Beat++
	s.Leases[id] = g
	return nil
}

// endLease deletes a lease and its keys, and reports whether there was one.
func (s *space) endLease(id lease.LeaseID) bool {
	if _, ok := s.Leases[id]; !ok {
		return false
	}
	delete(s.Leases, id)
	e := s.edit()
	for _, key := range s.under("") {
		if s.Keys[key].Lease == id {
			e.del(key)
		}
	}
	return true
}

// edit is a change of keys at one revision, which is counted up by the first.
type edit struct {
	*space
	rev int64
}

func (s *space) edit() *edit { return &edit{space: s, rev: s.Rev + 1} }

func (e *edit) put(key, raw string, id lease.LeaseID) {
	e.note(key)
	e.Keys[key] = record{Raw: []byte(raw), Rev: e.rev, Lease: id}
}

func (e *edit) del(key string) {
	if _, ok := e.Keys[key]; ok {
		e.note(key)
		delete(e.Keys, key)
	}
}

// note counts the change, and tells watchers of what they watch. Windows are
// rewritten every few seconds by each holder, and concern it alone.
func (e *edit) note(key string) {
	e.Rev = e.rev
	if !strings.HasPrefix(key, "window/") {
		e.Changed = e.rev
	}
}

// under returns the keys with that prefix in order.
func (s *space) under(prefix string) []string {
	var keys []string
	for key := range s.Keys {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func holderKey(sid flake.SID) string { return fmt.Sprintf("holder/%d", sid) }
func windowKey(sid flake.SID) string { return fmt.Sprintf("window/%d", sid) }
func ledgerOf(sid flake.SID) string  { return fmt.Sprintf("ledger/%d/", sid) }
func ledgerKey(sid flake.SID, term int64) string {
	return fmt.Sprintf("%s%020d", ledgerOf(sid), term)
}
