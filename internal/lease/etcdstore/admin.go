package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/member"
)

// Survey reads the whole space and the ledger of one sid, linearizably and at
// one revision. The lines are in the order of terms; the sid's Past is set.
func (s *Store) Survey(ctx context.Context, sid flake.SID) (lease.View, []repair.Line, error) {
	ledger := clientv3.OpGet(s.keys.ledgerOf(sid), clientv3.WithPrefix())
	r, err := s.txn(ctx, nil, append(s.allReads(), ledger), nil)
	if err != nil {
		return lease.View{}, nil, fmt.Errorf("survey sid %d of %s: %w", sid, s.keys, err)
	}
	v := s.view(r)
	var lines []repair.Line
	for _, kv := range r.Responses[len(r.Responses)-1].GetResponseRange().Kvs {
		name, _ := strings.CutPrefix(string(kv.Key), s.keys.ledgerOf(sid))
		term, _ := strconv.ParseInt(name, 10, 64) // A malformed key has term 0; it shows that the sid was used.
		lines = append(lines, repair.Line{Term: term, Entry: entry[lease.LedgerLine](kv)})
	}
	seen := v.SIDs[sid]
	seen.Past = len(lines) > 0
	v.SIDs[sid] = seen
	return v, lines, nil
}

// BeginEra puts era, if config and era are as in seen, by revision and by value:
// after a restore etcd counts through the same revisions again. An unreadable mark is replaced:
// nobody issues below the floor of the era.
//
// It returns repair.ErrChanged with nothing written. After any other error the outcome
// is unknown.
func (s *Store) BeginEra(ctx context.Context, seen lease.View, era lease.Era) error {
	cmps := append(unchanged(s.keys.config(), seen.Config), unchanged(s.keys.era(), seen.Era)...)
	var also []clientv3.Op
	if seen.Mark.Err != nil {
		cmps = append(cmps, unchanged(s.keys.mark(), seen.Mark)...)
		also = append(also, clientv3.OpPut(s.keys.mark(), lease.Encode(lease.Mark{})))
	}
	err := s.write(ctx, cmps, s.keys.era(), lease.Encode(era), also...)
	if err != nil {
		return fmt.Errorf("begin era %d of %s: %w", era.Number, s.keys, err)
	}
	return nil
}

// write puts raw at key and carries out also, if all of cmps hold. No other write puts the
// same raw. It returns repair.ErrChanged with nothing written.
func (s *Store) write(ctx context.Context, cmps []clientv3.Cmp, key, raw string, also ...clientv3.Op) error {
	r, err := s.txn(ctx, cmps, append(also, clientv3.OpPut(key, raw)), []clientv3.Op{clientv3.OpGet(key)})
	if err != nil || r.Succeeded {
		return err
	}
	// The client may have sent it twice, after a connection broke.
	if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 && string(kvs[0].Value) == raw {
		return nil
	}
	return repair.ErrChanged
}

// AcceptTime puts a, if config, era and the accepted time are as in seen, by revision
// and by value: of two commands that run at once, one writes.
//
// It returns repair.ErrChanged with nothing written. After any other error the outcome
// is unknown.
func (s *Store) AcceptTime(ctx context.Context, seen lease.View, a lease.AcceptedTime) error {
	cmps := append(unchanged(s.keys.config(), seen.Config), unchanged(s.keys.era(), seen.Era)...)
	cmps = append(cmps, unchanged(s.keys.accepted(), seen.Accepted)...)
	if err := s.write(ctx, cmps, s.keys.accepted(), lease.Encode(a)); err != nil {
		return fmt.Errorf("accept the time of %s: %w", s.keys, err)
	}
	return nil
}

// Repair carries out w if all that it compares holds.
//
// It returns repair.ErrChanged with nothing written. After any other error the outcome
// is unknown.
func (s *Store) Repair(ctx context.Context, w repair.Write) error {
	holder, window := s.keys.holder(w.SID), s.keys.window(w.SID)
	cmps := append(unchanged(s.keys.config(), w.Config), unchanged(s.keys.era(), w.Era)...)
	cmps = append(cmps, unchanged(window, w.Seen.Window)...)
	cmps = append(cmps, unchanged(holder, w.Seen.Holder)...)
	if w.Unused {
		cmps = append(cmps, absent(s.keys.ledgerOf(w.SID)).WithPrefix())
	}
	if w.Gone != "" {
		cmps = append(cmps, absent(s.keys.node(w.Gone)))
	}
	also := []clientv3.Op{clientv3.OpDelete(holder)}
	if w.Window.State == lease.Reserved {
		cmps = append(cmps, s.sameMark(w.Mark))
		also = append(also, s.markAgain(w.Mark)...)
	}
	if w.Ledger {
		line := lease.Txn{Window: w.Window}.LedgerLine()
		also = append(also, clientv3.OpPut(s.keys.ledger(w.SID, line.Term), lease.Encode(line)))
	}
	if err := s.write(ctx, cmps, window, lease.Encode(w.Window), also...); err != nil {
		return fmt.Errorf("repair sid %d of %s: %w", w.SID, s.keys, err)
	}
	return nil
}

// Members asks every endpoint for its status at the same time, and measures
// the time of the answers with src.
func (s *Store) Members(ctx context.Context, src clock.Source) []member.Status {
	client, err := s.client()
	if err != nil {
		return []member.Status{{Err: err}}
	}
	g := &Group{client}
	return statuses(at(client.Endpoints()), func(m member.Member) member.Status {
		began := src.Now().Mono
		out := g.status(ctx, m)
		out.Took = src.Now().Mono.Sub(began)
		return out
	})
}

// NoSpace reports whether a member has raised the alarm that its quota is used
// up. Etcd then refuses every write.
func (s *Store) NoSpace(ctx context.Context) (bool, error) {
	client, err := s.client()
	if err != nil {
		return false, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return (&Group{client}).NoSpace(ctx)
}

// Compacted reports whether etcd has compacted its history beyond a revision.
func (s *Store) Compacted(ctx context.Context, revision int64) (bool, error) {
	_, err := s.get(ctx, s.keys.config(), clientv3.WithRev(revision), clientv3.WithCountOnly())
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read revision %d: %w", revision, err)
	}
	return false, nil
}

// Role is what etcd permits us to do. With Auth it has authentication enabled, and with
// Outside we may write outside the prefix of the space.
type Role struct {
	Auth    bool
	Outside bool
}

// Role finds out whether we may write a key next to the space. Nothing is written:
// etcd checks the permissions of every branch of a transaction, also of one that
// is never taken.
func (s *Store) Role(ctx context.Context) (Role, error) {
	client, err := s.client()
	if err != nil {
		return Role{}, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	auth := true
	if st, err := client.AuthStatus(ctx); err == nil {
		auth = st.Enabled
	} else if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return Role{}, fmt.Errorf("ask for etcd's authentication: %w", because(ctx, err))
	}
	key := strings.TrimSuffix(string(s.keys), "/") + "-outside"
	never := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.keys.config()), "=", -1)}
	_, err = s.txn(ctx, never, []clientv3.Op{clientv3.OpPut(key, "")}, nil)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return Role{Auth: auth}, nil
	case err != nil:
		return Role{}, fmt.Errorf("ask for a write outside the prefix: %w", err)
	}
	return Role{Auth: auth, Outside: true}, nil
}
