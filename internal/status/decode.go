package status

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

const (
	// holderTimeout bounds the read of the ledger. After it the ID is decoded without
	// its holder.
	holderTimeout = time.Second
	// maxLookups bounds the concurrent reads of the ledger, so that decoding cannot
	// overload etcd.
	maxLookups = 16
)

// Decoded is an ID with its parts and its holder.
type Decoded struct {
	ID       describe.ID
	Flake    flake.ID // if HasFlake
	HasFlake bool
	Holder   *lease.LedgerLine // nil: the ledger has no entry, or could not be read
	Problem  string            // why it could not be read, or why nobody can have issued the ID

	format flake.Format
}

// Describe decodes the text of an ID. kind is auto (or empty), flake, int, hex, ulid
// or uuid.
//
// The error is a *node.Refusal, which is counted: INVALID_ID with the class of the
// mistake, or INVALID_FORMAT for an unknown kind. Or it is ctx's.
func (r *Reader) Describe(ctx context.Context, text, kind string) (Decoded, error) {
	d, bad := Decode(text, kind, r.format)
	if bad != nil {
		return Decoded{}, r.node.Refused(bad)
	}
	if !d.HasFlake || r.format.Layout.SIDBits() == 0 {
		return d, nil // The ID has another origin, or the layout has no sids.
	}
	d.Holder, d.Problem = r.holder(ctx, d.Flake)
	if d.Problem == "" {
		if d.Problem = r.outside(ctx, d.Flake, d.Holder); d.Problem != "" {
			d.Holder = nil
		}
	}
	return d, ctx.Err()
}

// Decode is Reader.Describe without the holder, which the ledger alone knows. The refusal is not
// counted.
func Decode(text, kind string, f flake.Format) (Decoded, *node.Refusal) {
	refused := func(reason node.Reason, err error) *node.Refusal {
		return &node.Refusal{
			Reason:   reason,
			Message:  err.Error(),
			Metadata: map[string]string{"class": describe.Class(err)},
		}
	}
	k, err := describe.ParseKind(kind)
	if err != nil {
		return Decoded{}, refused(node.InvalidFormat, err)
	}
	id, err := describe.Parse(text, k, f)
	if err != nil {
		return Decoded{}, refused(node.InvalidID, err)
	}
	d := Decoded{ID: id, format: f}
	d.Flake, err = id.AsFlake(f)
	d.HasFlake = err == nil
	return d, nil
}

// Describer returns what decodes IDs for a listener: r, or the text alone if r is nil, as at an agent.
func Describer(r *Reader, s *server.Service) func(ctx context.Context, text, kind string) (Decoded, error) {
	if r != nil {
		return r.Describe
	}
	return func(_ context.Context, text, kind string) (Decoded, error) {
		d, bad := Decode(text, kind, s.Limits().Format)
		if bad != nil {
			return Decoded{}, s.Issuer().Refused(bad)
		}
		if d.HasFlake {
			d.Problem = s.Elsewhere("the holder").Error()
		}
		return d, nil
	}
}

// Why no node and no worker of the space can have issued an ID.
const (
	beyondText   = "not issued in this space: its time is beyond every window that its sid ever had"
	reservedText = "not issued by a node or worker of this space: the sid is reserved for a generator outside of it"
	operatorText = "not issued by a node or worker of this space, unless a ceiling was lowered too far: " +
		"an operator had reserved or released the sid"
)

// outside returns why neither a node nor a worker can have issued id, or "". line is the entry
// of the ledger that covers it.
//
// The windows are read after id was given. Whoever issued it had it below a confirmed ceiling
// then, so no clock counts.
func (r *Reader) outside(ctx context.Context, id flake.ID, line *lease.LedgerLine) string {
	asked := r.clock.Now().Mono
	judge := func() string { return foreign(r.latest().view, r.format, id, line) }
	if r.load(ctx, viewFresh) != nil || judge() == "" {
		return ""
	}
	if age := asked.Sub(r.latest().at); age > 0 { // The sid may have been acquired since.
		select {
		case <-time.After(viewFresh - age):
		case <-ctx.Done():
			return ""
		}
		if r.load(ctx, viewFresh) != nil || r.latest().at < asked {
			return ""
		}
	}
	return judge()
}

// foreign is outside by a view that was read after id was issued.
func foreign(v lease.View, f flake.Format, id flake.ID, line *lease.LedgerLine) string {
	w, at := v.SIDs[f.SID(id)].Window, clock.Millis(f.UnixMilli(id))
	switch {
	case !v.Era.Exists() || v.Era.Err != nil || w.Err != nil:
		return ""
	case !w.Exists() && line != nil: // The record was lost.
		return ""
	case w.Value.State == lease.Reserved && at >= w.Value.Ceil:
		return reservedText
	case line != nil && line.Node == lease.Operator && line.Term < w.Value.Term:
		return operatorText
	case at < max(w.Value.Ceil, v.Era.Value.Floor): // Below the floor a lost history may have granted more.
		return ""
	case w.Value.Node == lease.Operator:
		return operatorText
	}
	return beyondText
}

// holder returns the entry of the ledger that covers id; nil if there is none, or
// with the reason if the ledger could not be read.
func (r *Reader) holder(ctx context.Context, id flake.ID) (*lease.LedgerLine, string) {
	select {
	case r.lookups <- struct{}{}:
		defer func() { <-r.lookups }()
	default:
		return nil, "too many reads of the ledger are under way"
	}
	ctx, cancel := context.WithTimeout(ctx, holderTimeout)
	defer cancel()
	t, found, err := r.cfg.Directory.Holder(ctx, r.format.SID(id), clock.Millis(r.format.UnixMilli(id)))
	if !errors.Is(err, context.Canceled) { // the caller's decision
		r.logRead("ledger", err)
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, "the ledger could not be read in time"
	case err != nil:
		return nil, "the ledger could not be read"
	case !found:
		return nil, ""
	}
	return &t, ""
}

// MarshalJSON writes the parts of the ID, and then its holder.
func (d Decoded) MarshalJSON() ([]byte, error) {
	ledger := ledgerJSON{Problem: d.Problem}
	if t := d.Holder; t != nil {
		ledger.Holder = &Holder{t.Node, string(t.Instance), t.Term, describe.Time(int64(t.Since)), t.Worker}
	}
	tail, err := json.Marshal(ledger)
	if err != nil {
		return nil, err
	}
	b := describe.AppendJSON(nil, d.ID, d.format)
	return append(append(b[:len(b)-1], ','), tail[1:]...), nil // one object
}

// ledgerJSON are the members that the ledger adds to the parts of an ID.
type ledgerJSON struct {
	Holder  *Holder `json:"holder"` // null: the ledger has no entry
	Problem string  `json:"holder_problem,omitempty"`
}

// Holder is who held the sid of an ID.
type Holder struct {
	Node     string  `json:"node"`
	Instance string  `json:"instance"`
	Term     int64   `json:"term"`
	Since    *string `json:"since"`            // RFC 3339: the beginning of the tenure's first window
	Worker   bool    `json:"worker,omitempty"` // a generator outside of the nodes
}
