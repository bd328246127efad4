package records

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// Survey reads the whole space and the ledger of one sid, linearizably and at
// one revision. The lines are in the order of terms; the sid's Past is set.
func (s Space) Survey(ctx context.Context, sid flake.SID) (lease.View, []repair.Line, error) {
	ledger := s.Keys.ledgerOf(sid)
	r, err := s.DB.Do(ctx, Txn{Then: append(s.allReads(), under(ledger))})
	if err != nil {
		return lease.View{}, nil, fmt.Errorf("survey sid %d of %s: %w", sid, s.Keys, err)
	}
	v := s.view(r)
	var lines []repair.Line
	for _, kv := range r.Found {
		if name, ok := strings.CutPrefix(kv.Key, ledger); ok {
			term, _ := strconv.ParseInt(name, 10, 64) // A malformed key has term 0; it shows that the sid was used.
			lines = append(lines, repair.Line{Term: term, Entry: entry[lease.LedgerLine](kv)})
		}
	}
	seen := v.SIDs[sid]
	seen.Past = len(lines) > 0
	v.SIDs[sid] = seen
	return v, lines, nil
}

// Dump returns all keys of the space as they are, for people.
func (s Space) Dump(ctx context.Context) ([]KV, error) {
	r, err := s.DB.Do(ctx, Txn{Then: []Op{under(string(s.Keys))}})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.Keys, err)
	}
	return r.Found, nil
}

// BeginEra puts era, if config and era are as in seen, by revision and by value:
// after a restore etcd counts through the same revisions again. An unreadable mark is replaced, since
// nobody issues below the floor of the era. A mark at or above that floor is replaced too: an acquisition begins
// above the mark, so nobody could issue from the floor on. The operator gave that floor, and was told what it
// costs readers. The acts are recorded with it.
//
// It returns repair.ErrChanged with nothing written. After any other error the outcome
// is unknown.
func (s Space) BeginEra(ctx context.Context, seen lease.View, era lease.Era, acts ...lease.Act) error {
	cmps := append(unchanged(s.Keys.Config(), seen.Config), unchanged(s.Keys.Era(), seen.Era)...)
	also, err := s.recorded(ctx, acts...)
	if err != nil {
		return err
	}
	if seen.Mark.Err != nil || seen.Mark.Exists() && era.Floor <= seen.Mark.Value.At {
		cmps = append(cmps, unchanged(s.Keys.Mark(), seen.Mark)...)
		also = append(also, Op{Do: Put, Key: s.Keys.Mark(), Raw: lease.Encode(lease.Mark{})})
	}
	if err := s.write(ctx, cmps, s.Keys.Era(), lease.Encode(era), also...); err != nil {
		return fmt.Errorf("begin era %d of %s: %w", era.Number, s.Keys, err)
	}
	return nil
}

// write puts raw at key and carries out also, if all of cmps hold. No other write puts the
// same raw. It returns repair.ErrChanged with nothing written.
func (s Space) write(ctx context.Context, cmps []Compare, key, raw string, also ...Op) error {
	put := append(also, Op{Do: Put, Key: key, Raw: raw})
	r, err := s.DB.Do(ctx, Txn{If: cmps, Then: put, Else: []Op{{Key: key}}})
	if err != nil || r.Applied {
		return err
	}
	// The client may have sent it twice, after a connection broke.
	if len(r.Found) == 1 && r.Found[0].Raw == raw {
		return nil
	}
	return repair.ErrChanged
}

// AcceptTime puts a, if config, era and the accepted time are as in seen, by revision
// and by value: of two commands that run at once, one writes. The acts are recorded with it.
//
// It returns repair.ErrChanged with nothing written. After any other error the outcome
// is unknown.
func (s Space) AcceptTime(ctx context.Context, seen lease.View, a lease.AcceptedTime, acts ...lease.Act) error {
	key := s.Keys.of(accepted)
	cmps := append(unchanged(s.Keys.Config(), seen.Config), unchanged(s.Keys.Era(), seen.Era)...)
	cmps = append(cmps, unchanged(key, seen.Accepted)...)
	also, err := s.recorded(ctx, acts...)
	if err == nil {
		err = s.write(ctx, cmps, key, lease.Encode(a), also...)
	}
	if err != nil {
		return fmt.Errorf("accept the time of %s: %w", s.Keys, err)
	}
	return nil
}

// Repair carries out w if all that it compares holds.
//
// It returns repair.ErrChanged with nothing written. After any other error the outcome
// is unknown.
func (s Space) Repair(ctx context.Context, w repair.Write) error {
	holder, window := s.Keys.Holder(w.SID), s.Keys.Window(w.SID)
	cmps := append(unchanged(s.Keys.Config(), w.Config), unchanged(s.Keys.Era(), w.Era)...)
	cmps = append(cmps, unchanged(window, w.Seen.Window)...)
	cmps = append(cmps, unchanged(holder, w.Seen.Holder)...)
	if w.Unused {
		cmps = append(cmps, noneUnder(s.Keys.ledgerOf(w.SID)))
	}
	if w.Gone != "" {
		cmps = append(cmps, absent(s.Keys.Node(w.Gone)))
	}
	also, err := s.recorded(ctx, w.Act)
	if err != nil {
		return err
	}
	also = append(also, Op{Do: Delete, Key: holder})
	if w.Window.State == lease.Reserved {
		cmps = append(cmps, s.sameMark(w.Mark))
		also = append(also, s.markAgain(w.Mark)...)
	}
	if w.Ledger {
		line := lease.Txn{Window: w.Window}.LedgerLine()
		also = append(also, Op{Do: Put, Key: s.Keys.Ledger(w.SID, line.Term), Raw: lease.Encode(line)})
	}
	if err := s.write(ctx, cmps, window, lease.Encode(w.Window), also...); err != nil {
		return fmt.Errorf("repair sid %d of %s: %w", w.SID, s.Keys, err)
	}
	return nil
}

// recorded returns what puts acts on a lease of their own, which ends by itself also if nothing is put on it. Zero acts
// are left out.
func (s Space) recorded(ctx context.Context, list ...lease.Act) (ops []Op, err error) {
	for _, a := range list {
		if a == (lease.Act{}) {
			continue
		}
		id, err := s.DB.Grant(ctx, lease.ActKept)
		if err != nil {
			return nil, fmt.Errorf("record an act in %s: %w", s.Keys, err)
		}
		key := s.Keys.of(acts) + fmt.Sprintf("%020d-%s", a.At, a.Nonce)
		ops = append(ops, Op{Do: Put, Key: key, Raw: lease.Encode(a), Lease: id})
	}
	return ops, nil
}

// Record records an act that is no write of ours.
func (s Space) Record(ctx context.Context, a lease.Act) error {
	ops, err := s.recorded(ctx, a)
	if err == nil {
		_, err = s.DB.Do(ctx, Txn{Then: ops})
	}
	return err
}

// Acts returns the latest acts, the oldest first. One that cannot be read says so.
func (s Space) Acts(ctx context.Context) (list []lease.Act, err error) {
	latest := under(s.Keys.of(acts))
	latest.Last = lease.MaxActs
	r, err := s.DB.Do(ctx, Txn{Then: []Op{latest}})
	if err != nil {
		return nil, fmt.Errorf("read the acts in %s: %w", s.Keys, err)
	}
	for _, kv := range slices.Backward(r.Found) {
		a, err := lease.Decode[lease.Act](kv.Raw)
		if err != nil {
			// Nodes keep what they have read, and a key may have a megabyte.
			why := "a record that cannot be read: " + err.Error()
			a = lease.Act{Action: why, By: "unknown", Nonce: lease.Printable(kv.Key)}
		}
		list = append(list, a)
	}
	return list, nil
}
