package lease

import (
	"errors"
	"fmt"
	"slices"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/text"
)

// Entry is a key of the store as it was read.
type Entry[T any] struct {
	// Rev is the revision of its last write. It is 0 if there is no such key.
	Rev int64
	// Lease is the lease that the key is on, or 0.
	Lease LeaseID
	// Raw is what is stored, which later compares quote.
	Raw string
	// Value is decoded from Raw. It is zero if Err is set: ErrMalformed, ErrVersion or
	// ErrChecksum.
	Value T
	Err   error
}

// Exists reports whether the key was there.
func (e Entry[T]) Exists() bool { return e.Rev != 0 }

// Same reports whether e and o are the same write. A revision alone is not
// enough: a store restored from a backup uses its revisions a second time.
func (e Entry[T]) Same(o Entry[T]) bool { return e.Rev == o.Rev && e.Raw == o.Raw }

// NewEntry decodes a key that exists.
func NewEntry[T any](rev int64, lease LeaseID, raw string) Entry[T] {
	v, err := Decode[T](raw)
	return Entry[T]{Rev: rev, Lease: lease, Raw: raw, Value: v, Err: err}
}

// SIDRecords are the records of one sid.
type SIDRecords struct {
	Holder Entry[Holder]
	Window Entry[Window]
	// Past is set when the ledger has lines of the sid. A sid with ledger lines
	// and no window record has lost its ceiling and must not be used. It is known
	// only in views of a single sid.
	Past bool
}

// View is one linearizable read of the store: everything in it was true at
// Revision. A view of the whole space has all sids that have a key; a view of a
// single sid has just that one (present even where both its keys are absent).
// Cluster is etcd's cluster ID.
type View struct {
	Cluster  uint64
	Revision int64
	Config   Entry[Space]
	Era      Entry[Era]
	Mark     Entry[Mark]
	SIDs     map[flake.SID]SIDRecords

	// Only views of the whole space have these.
	Nodes    []Registration
	Accepted Entry[AcceptedTime]
}

// Reservation is the record of a sid that a new space begins with.
type Reservation struct {
	SID    flake.SID
	Window Window
}

// Op names the transaction that a Txn asks for.
type Op uint8

// The transactions, and what each compares besides the window record. Those that put a holder
// also compare the value of the mark, and put the same one again: a raise of the mark that
// was computed before them then fails.
const (
	// Acquire compares config and era, and that there is no holder. It puts holder, window
	// and a line of the ledger.
	Acquire Op = iota
	// Reclaim is Acquire over a holder, which it compares.
	Reclaim
	// Extend compares config and era, and that the holder is on our lease. It puts the window.
	Extend
	// Rehold compares config and era, and that there is no holder. It puts holder and window.
	Rehold
	// Release compares nothing else. It puts the window and deletes the holder.
	Release
	// Expire compares config, era, and the holder, which is another's. It deletes the holder, as the end of
	// its lease does, and puts which one that was.
	Expire
)

// String returns the operation's name in lower case.
func (o Op) String() string {
	return text.Name(o, "acquire", "reclaim", "extend", "rehold", "release", "expire")
}

// TakesHolder reports whether the operation puts a holder.
func (o Op) TakesHolder() bool { return o == Acquire || o == Reclaim || o == Rehold }

// Txn is a guarded write of one sid's records. It is applied whole or not at
// all, and only if every compare of its Op holds. All compare the window record
// with Seen.Window, by revision and by value; where that is absent, the window
// and every ledger line of the sid must be absent.
type Txn struct {
	Op  Op
	SID flake.SID
	// Seen, Config, Era and Mark are as last read. Of Seen the window is compared, and by Reclaim
	// and Expire the holder too.
	Seen   SIDRecords
	Config Entry[Space]
	Era    Entry[Era]
	Mark   Entry[Mark]
	// Acquire, Reclaim and Rehold put Holder on Lease. Extend compares the holder's lease
	// with it.
	Lease  LeaseID
	Holder Holder
	// Window is put, but by Expire. Acquire and Reclaim derive a line of the ledger from it.
	Window Window
}

// LedgerKept is how many terms of a sid the ledger keeps.
const LedgerKept = 64

// LedgerLine returns the line that an Acquire or Reclaim adds to the ledger.
func (t Txn) LedgerLine() LedgerLine {
	w := t.Window
	return LedgerLine{Term: w.Term, Instance: w.Instance, Node: w.Node, Era: w.Era, Since: w.Base, Worker: w.Worker}
}

// ErrTxn is returned for a Txn that no step of the protocol asks for.
var ErrTxn = errors.New("lease: not a transaction of the protocol")

// Check returns ErrTxn where carrying out t would do harm: for an unknown Op,
// and for one without a lease, since a holder key without a lease never expires.
// Stores call it first, and write nothing if it fails.
func (t Txn) Check() error {
	if t.Op > Expire {
		return fmt.Errorf("%w: operation %d", ErrTxn, t.Op)
	}
	if t.Lease == 0 && t.Op != Release && t.Op != Expire {
		return fmt.Errorf("%w: %v sid %d without a lease", ErrTxn, t.Op, t.SID)
	}
	return nil
}

// maxShown is the length of the longest text of a record that is shown, in bytes: a
// DNS name. Whoever can write to the store can write a longer one.
const maxShown = 253

// Printable returns s as a person may be shown it: cut to 253 bytes, and with
// U+FFFD for what is not printable, such as the escapes of a terminal.
func Printable(s string) string { return text.Printable(text.Cut(s, maxShown)) }

// NewRegistration decodes the registration under an instance's key. One that
// cannot be read still counts as a node: then only its instance is set. Its texts
// are printable.
func NewRegistration(i Instance, rev int64, raw string) Registration {
	r, err := Decode[Registration](raw)
	if err != nil {
		r = Registration{}
	}
	if len(r.Console) > maxShown {
		r.Console = "" // A part of it would be another address.
	}
	for _, s := range []*string{&r.Node, &r.Version, &r.GRPC, &r.HTTP, &r.Gossip, &r.Console, &r.SIDRange} {
		*s = Printable(*s)
	}
	r.Instance, r.Rev = i, rev
	return r
}

// Members returns the nodes that the clock judgement counts: those that are
// registered, and of those that lapsed the ones whose name is not registered again.
//
// A node that registered no gossip address does not compare clocks. One whose
// record cannot be read counts as if it did: a damaged record must not make a
// majority smaller.
func Members(registered []Registration, lapsed []Lapsed) []clock.Member {
	out := make([]clock.Member, 0, len(registered)+len(lapsed))
	for _, l := range lapsed {
		if !slices.ContainsFunc(registered, func(r Registration) bool { return r.Node == l.Node }) {
			out = append(out, clock.Member{Name: l.Node, Instance: string(l.Instance), Since: l.Rev})
		}
	}
	for _, r := range registered {
		out = append(out, clock.Member{
			Name:     r.Node,
			Instance: string(r.Instance),
			Since:    r.Rev,
			NoGossip: r.Node != "" && r.Gossip == "",
		})
	}
	return out
}
