package records

import (
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// viewOf returns the view of one sid that the reads in r give.
func (s Space) viewOf(sid flake.SID, r Answer) lease.View {
	v := s.view(r)
	seen := v.SIDs[sid]
	seen.Past = r.Counted > 0
	v.SIDs = map[flake.SID]lease.SIDRecords{sid: seen}
	return v
}

// view returns what the Gets in r found. A record that cannot be read is added with its error;
// unknown keys are ignored.
func (s Space) view(r Answer) lease.View {
	v := lease.View{Cluster: r.Cluster, Revision: r.Revision, SIDs: make(map[flake.SID]lease.SIDRecords)}
	for _, kv := range r.Found {
		name, _ := strings.CutPrefix(kv.Key, string(s.Keys))
		switch name {
		case config:
			v.Config = entry[lease.Space](kv)
			continue
		case era:
			v.Era = entry[lease.Era](kv)
			continue
		case accepted:
			v.Accepted = entry[lease.AcceptedTime](kv)
			continue
		case mark:
			v.Mark = entry[lease.Mark](kv)
			continue
		}
		if sid, ok := sidUnder(name, holders); ok {
			seen := v.SIDs[sid]
			seen.Holder = entry[lease.Holder](kv)
			v.SIDs[sid] = seen
		} else if sid, ok := sidUnder(name, windows); ok {
			seen := v.SIDs[sid]
			seen.Window = entry[lease.Window](kv)
			v.SIDs[sid] = seen
		} else if i, ok := cutNonEmpty(name, nodes); ok {
			v.Nodes = append(v.Nodes, registration(lease.Instance(i), kv))
		}
	}
	return v
}

func entry[T any](kv KV) lease.Entry[T] {
	return decoded(kv, func() lease.Entry[T] { return lease.NewEntry[T](kv.Rev, kv.Lease, kv.Raw) })
}

func registration(i lease.Instance, kv KV) lease.Registration {
	return decoded(kv, func() lease.Registration { return lease.NewRegistration(i, kv.Rev, kv.Raw) })
}

// decoded returns what decode makes of kv, or what it made before.
func decoded[R any](kv KV, decode func() R) R {
	if kv.Kept == nil {
		return decode()
	}
	r, ok := kv.Kept.Load().(R)
	if !ok {
		r = decode()
		kv.Kept.Store(r)
	}
	return r
}

// Change returns what a put of kv, or the deletion of its key at that revision, is about, and
// whether that is for those who watch. A ledger line is not: it comes with a holder.
func (k Keys) Change(kv KV, put bool) (c lease.Change, ok bool) {
	name, _ := strings.CutPrefix(kv.Key, string(k))
	c.Revision = kv.Rev
	if sid, ok := sidUnder(name, holders); ok {
		if c.Key, c.SID = lease.ChangedHolder, sid; put {
			c.Holder = entry[lease.Holder](kv)
		}
		return c, true
	}
	if name == mark {
		if c.Key = lease.ChangedMark; put {
			c.Mark = entry[lease.Mark](kv)
		}
		return c, true
	}
	if i, ok := cutNonEmpty(name, nodes); ok {
		if c.Key, c.Instance = lease.ChangedNode, lease.Instance(i); put {
			c.Node = registration(c.Instance, kv)
		}
		return c, true
	}
	return c, name == config || name == era || name == accepted || name == expired
}
