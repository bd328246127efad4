package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Instance identifies one process from its start to its end. It is random: two
// live processes with one instance would each take the other's writes for their
// own and issue duplicates, so it is never derived from a pod or host name.
type Instance string

// LeaseID is etcd's number of a lease; 0 is none.
type LeaseID int64

// Space is the fingerprint of a space, written once by init: what every ID in
// it means. Nodes with another fingerprint are refused.
type Space struct {
	Layout flake.Layout `json:"layout"`
	// Epoch is the Unix time that flakes count from.
	Epoch clock.Millis `json:"epoch"`
	// Pool is the UUID of the space.
	Pool string `json:"pool"`
	// Part is the sids that the space was created for, where others belong to
	// spaces in other places; zero: the first MaxSIDs of the layout.
	Part SIDRange `json:"sids,omitzero"`
	// Named says that clients may tell the space from others by Pool. Init decides it; it is false in the records
	// of earlier versions. It is a constant beside the layout that no step of the protocol reads, so the
	// models do without it.
	Named bool `json:"named,omitempty"`
}

// ID returns what clients tell the space by, the first eight bytes of Pool; 0: it has no such name.
func (s Space) ID() uint64 {
	if !s.Named {
		return 0
	}
	head, _, _ := strings.Cut(strings.Replace(s.Pool, "-", "", 2), "-")
	if id, err := strconv.ParseUint(head, 16, 64); err == nil {
		return id
	}
	return 0
}

// UnitStart returns the start of the unit of time that t lies in, in the layout's units.
func (s Space) UnitStart(t clock.Millis) clock.Millis {
	unit := clock.Millis(s.Layout.Unit())
	return t - ((t-s.Epoch)%unit+unit)%unit
}

// Last returns the last time that an ID of the space can have.
func (s Space) Last() clock.Millis { return s.Epoch + clock.Millis(s.Layout.End()) - 1 }

// Format returns what the bits of the space's IDs mean.
func (s Space) Format() flake.Format {
	return flake.Format{Layout: s.Layout, Epoch: int64(s.Epoch)}
}

// FormatError reports that the node and the space have different ID formats.
type FormatError struct {
	Space, Node flake.Format
}

// Error names both formats.
func (e *FormatError) Error() string {
	at := func(epoch int64) string { return clock.Millis(epoch).Time().Format(time.RFC3339Nano) }
	return fmt.Sprintf("the space has layout %s and epoch %s, but the configuration has layout %s and epoch %s: "+
		"configure those of the space, or another space",
		e.Space.Layout, at(e.Space.Epoch), e.Node.Layout, at(e.Node.Epoch))
}

// ErrOtherPool is returned when the space was created again under a running node.
var ErrOtherPool = errors.New("the space was deleted and created again while this node ran: " +
	"check what happened to etcd's data, then restart this node")

// Era is the generation of the space's history, counted from 1. An operator bumps it
// after etcd was restored from a backup; no window of the new era starts below its floor.
// Cluster is etcd's cluster ID when the era began, and By who began it; "": init, or it is not known.
type Era struct {
	Number  int64        `json:"number"`
	Floor   clock.Millis `json:"floor"`
	Cluster uint64       `json:"cluster,string"`
	By      string       `json:"by,omitempty"`
}

// Begun says that the era began.
func (e Era) Begun() string {
	if e.By == "" {
		return fmt.Sprintf("era %d began", e.Number)
	}
	return fmt.Sprintf("%s began era %d", Printable(e.By), e.Number)
}

// AcceptedTime is an operator's statement that clocks which read up to Until are
// right, though they are further ahead of what nodes know than they follow by
// themselves. It counts in its era alone, and within an era only a later one
// replaces it: so a node that has read it may rely on it.
//
// Nonce is unique to the run of the command, By says who ran it and where, and At is what
// the operator's clock read.
type AcceptedTime struct {
	Era   int64        `json:"era"`
	Until clock.Millis `json:"until"`
	Nonce string       `json:"nonce"`
	By    string       `json:"by"`
	At    clock.Millis `json:"at"`
}

// Holder is the leased record that marks a sid as taken. A worker's is on a lease of
// its own; Node is then the worker's name, and Owner the client that acquired it.
type Holder struct {
	Instance Instance `json:"instance"`
	Node     string   `json:"node"`
	Worker   bool     `json:"worker,omitempty"`
	Owner    string   `json:"owner,omitempty"`
}

// WindowState distinguishes a window in use from one that its owner gave back
// and from one that an operator took out of use.
type WindowState string

// The states of a window.
const (
	Active   WindowState = "active"
	Released WindowState = "released"
	// Quarantined is written by operators only. No node takes the sid until an
	// operator releases it; a binary that does not know the state does not take
	// it either, since it cannot read the record.
	Quarantined WindowState = "quarantined"
	// Reserved is written by operators only: a generator outside of the cluster has the sid,
	// and issues at or above Ceil. No node takes it until an operator gives it back.
	Reserved WindowState = "reserved"
)

// Window is the durable record of one sid: the milliseconds [Base, Ceil) that
// its owner may use. Every millisecond that any process ever used lies below
// Ceil. It is never deleted.
//
// Term grows by one with every acquisition of the sid. Nonce is unique to the attempt that
// wrote the record, and Wall is what the writer's clock read just before it sent the write.
type Window struct {
	Era      int64        `json:"era"`
	Term     int64        `json:"term"`
	Instance Instance     `json:"instance"`
	Node     string       `json:"node"`
	Nonce    string       `json:"nonce"`
	Base     clock.Millis `json:"base"`
	Ceil     clock.Millis `json:"ceil"`
	State    WindowState  `json:"state"`
	Wall     clock.Millis `json:"wall"`
	// Gossip says that peers compare the writer's clock with theirs. Without it, as for a worker, Wall may
	// be minutes wrong, and the poison guard does not trust it.
	Gossip bool `json:"gossip,omitempty"`
	// Started is when the process began that wrote it for itself, by its own clock; 0: it does not say.
	Started clock.Millis `json:"started,omitempty"`
	// Reason is an operator's, for a quarantined or reserved window; at most MaxReason bytes.
	Reason string `json:"reason,omitempty"`
	// By is the operator who wrote the record, as user@host; "" in those of nodes.
	By string `json:"by,omitempty"`

	// Floor and Prior are for the watermark. Whoever has Instance and Term issues nothing below
	// Floor from the write on; 0: it does not say. Prior are owners before it. A worker's is not 0
	// if it said when it acquired the sid that it tells floors.
	Floor clock.Millis `json:"floor,omitempty"`
	Prior Prior        `json:"prior,omitzero"`

	// Worker: the owner is a generator outside of the nodes, see package worker. Owner is
	// the client that acquired it. Since is the first base of the term, so that any node
	// can release it. For nodes these are zero.
	Worker bool         `json:"worker,omitempty"`
	Owner  string       `json:"owner,omitempty"`
	Since  clock.Millis `json:"since,omitempty"`
}

// Prior are earlier owners of a sid that did not give it back: they may issue IDs with times
// in [Floor, Ceil) until their clocks have passed Ceil. Node is the last one's name. Workers
// that tell no floors may do so up to Uncovered, and Worker is the last one's name. The zero
// value is none.
type Prior struct {
	Floor     clock.Millis `json:"floor"`
	Ceil      clock.Millis `json:"ceil"`
	Node      string       `json:"node"`
	Uncovered clock.Millis `json:"uncovered,omitempty"`
	Worker    string       `json:"worker,omitempty"`
}

// MaxWindow is the longest window that package config allows.
const MaxWindow = 24 * time.Hour

// Operator is the node name in records that an operator wrote.
const Operator = "operator"

// MaxReason bounds the reason of a quarantine, in bytes.
const MaxReason = 200

// LedgerLine is a line of the ledger: who took a sid, and from which millisecond.
type LedgerLine struct {
	Term     int64        `json:"term"`
	Instance Instance     `json:"instance"`
	Node     string       `json:"node"`
	Era      int64        `json:"era"`
	Since    clock.Millis `json:"since"`
	Worker   bool         `json:"worker,omitempty"`
}

// Registration is a running process, under its lease: a standby has one too. GRPC, HTTP
// and Gossip are addresses of the form host:port.
type Registration struct {
	Instance Instance `json:"instance"`
	Node     string   `json:"node"`
	Version  string   `json:"version"`
	GRPC     string   `json:"grpc,omitempty"`
	HTTP     string   `json:"http,omitempty"`
	Gossip   string   `json:"gossip,omitempty"`
	// Console is the URL of the node's pages, with scheme, host and port. Nobody has checked it.
	Console string `json:"console,omitempty"`
	// SIDRange is the sids that the node may take, as first-last; empty for all.
	SIDRange string `json:"sids,omitempty"`
	// Started is when the process began, by its own clock.
	Started clock.Millis `json:"started,omitempty"`
	// Rev is the revision at which the store wrote the registration. Of two with one name
	// the higher one is the newer.
	Rev int64 `json:"-"`
}

// Errors of [Decode]. The record must then be left alone and shown to an
// operator: none of them ever means "absent" or zero.
var (
	ErrMalformed = errors.New("lease: record is malformed")
	ErrVersion   = errors.New("lease: record has an unknown version")
	ErrChecksum  = errors.New("lease: record's checksum does not match")
)

// recordVersion is written before every record. A change that an older binary
// could misread raises it.
const recordVersion = "a1"

// maxRecord bounds what is parsed, in bytes. Ours are under 400.
const maxRecord = 4096

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the stored form of a record: version, CRC-32C of the rest in
// hex, and JSON that an operator can read, separated by blanks.
func Encode[T any](record T) string {
	body, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("lease: record %T has no JSON form: %v", record, err))
	}
	return fmt.Sprintf("%s %08x %s", recordVersion, crc32.Checksum(body, castagnoli), body)
}

// Decode reads what Encode wrote.
//
// It returns ErrVersion, ErrChecksum or ErrMalformed; the record is then zero.
func Decode[T any](raw string) (T, error) {
	var zero, record T
	if len(raw) > maxRecord {
		return zero, fmt.Errorf("%w: %d bytes, at most %d", ErrMalformed, len(raw), maxRecord)
	}
	version, rest, _ := strings.Cut(raw, " ")
	if version != recordVersion {
		return zero, fmt.Errorf("%w: %.16q, this binary reads %q", ErrVersion, version, recordVersion)
	}
	sum, body, _ := strings.Cut(rest, " ")
	want, err := strconv.ParseUint(sum, 16, 32)
	if err != nil || len(sum) != 8 {
		return zero, fmt.Errorf("%w: no checksum", ErrMalformed)
	}
	if got := crc32.Checksum([]byte(body), castagnoli); uint64(got) != want {
		return zero, fmt.Errorf("%w: stored %08x, computed %08x", ErrChecksum, want, got)
	}
	if err := json.Unmarshal([]byte(body), &record); err != nil {
		return zero, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if v, ok := any(record).(interface{ check() error }); ok {
		if err := v.check(); err != nil {
			return zero, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	return record, nil
}

// check refuses a window no protocol step writes.
func (w Window) check() error {
	switch {
	case w.Era < 1, w.Term < 1:
		return errors.New("era and term start at 1")
	case w.Instance == "", w.Nonce == "":
		return errors.New("no instance or nonce")
	case w.Base < 0, w.Ceil < w.Base:
		return fmt.Errorf("window [%d,%d)", w.Base, w.Ceil)
	case !slices.Contains([]WindowState{Active, Released, Quarantined, Reserved}, w.State):
		return fmt.Errorf("state %q", w.State)
	case w.Floor < 0, w.Prior.Floor < 0, w.Prior.Ceil < w.Prior.Floor, w.Prior.Uncovered < 0:
		return fmt.Errorf("floor %d after one of [%d,%d)", w.Floor, w.Prior.Floor, w.Prior.Ceil)
	case w.Worker && (w.Since < 0 || w.Since > w.Base):
		return fmt.Errorf("a worker's window [%d,%d) since %d", w.Base, w.Ceil, w.Since)
	}
	return nil
}

func (e Era) check() error {
	if e.Number < 1 || e.Floor < 0 {
		return fmt.Errorf("era %d with floor %d", e.Number, e.Floor)
	}
	return nil
}

func (a AcceptedTime) check() error {
	if a.Era < 1 || a.Until < 1 || a.Nonce == "" {
		return fmt.Errorf("time %d accepted in era %d with nonce %q", a.Until, a.Era, a.Nonce)
	}
	return nil
}

func (m Mark) check() error {
	if m.Era < 0 || m.At < 0 {
		return fmt.Errorf("mark %d of era %d", m.At, m.Era)
	}
	return nil
}

func (h Holder) check() error {
	if h.Instance == "" {
		return errors.New("no instance")
	}
	return nil
}

func (l LedgerLine) check() error {
	if l.Term < 1 || l.Instance == "" {
		return fmt.Errorf("term %d of instance %q", l.Term, l.Instance)
	}
	return nil
}

func (r Registration) check() error {
	if r.Instance == "" {
		return errors.New("no instance")
	}
	return nil
}

func (s Space) check() error {
	if s.Pool == "" {
		return errors.New("no pool")
	}
	if err := s.Layout.Validate(); err != nil {
		return err
	}
	return s.Part.checkPart(s.Layout)
}

// ErrLeaseGone means that the lease has expired or was revoked. It is a reason
// to get another, never a reason to stop issuing: windows do not depend on it.
var ErrLeaseGone = errors.New("lease: lease is gone")

// ErrRefused means that etcd answered that it does not carry a call out, such as with a full quota.
// The outcome of a write counts as unknown all the same.
var ErrRefused = errors.New("lease: refused by etcd")
