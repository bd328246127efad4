package history

import (
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Op is one thing that an observer of a run saw. A run is a sequence of them in
// the order in which they were seen, by one monotonic clock; as text it is one
// JSON object a line, in the shape of Jepsen's histories (process, type, f,
// value, time), so that their tools can read it. Fields they do not know are
// beside those five.
//
//	{"process":3,"type":"invoke","f":"allocate","value":{"count":100},"time":1200}
//	{"process":3,"type":"ok","f":"allocate","value":{"first":"6…","count":100,"stride":32},"time":1900,
//	  "node":"n1","run":"n1#0"}
//
// What F and Process say decides which of the fields below are meant:
//
//	f         process     seen                                     fields
//	setup     harness     once, first: what the run is             Setup
//	allocate  a number    a client asked and was answered          Node Run Session Via Block After Reason Retry
//	sample    sampler     what a node reports of itself            Node Run Sample
//	window    etcd        a version of a sid's window record       Node Run Window
//	holder    etcd        a version of a sid's holder record       Node Run Holder
//	leader    etcd        which member leads                       Node
//	any other nemesis     a fault begins, shows or ends; f is it   Fault
//
// A client process has one call in hand at a time: its invoke is followed by
// one completion, of type ok (IDs), fail (nothing was issued: Reason) or info
// (unknown: Reason).
type Op struct {
	Time    clock.Mono // nanoseconds since the run began
	Process string     // digits for clients, else a name
	Type    Type
	F       string

	Node    string        // the node that is meant, by name
	Run     string        // one process of it from start to end; "" where it is not known
	Session string        // calls of one session name the ID before as After; "" is none
	Via     string        // Via names the API that was called: grpc, stream, http, resp, sdk, prefetch or embedded.
	Reason  string        // Only fail and info have a reason.
	Retry   time.Duration // Only a refusal has it, in whole milliseconds.
	Block   Block         // An ok has all of it, an invoke only Count.
	After   flake.ID      // Only an invoke has it; 0 sets no lower bound.

	Setup  *Setup
	Sample *Sample
	Window *Window
	Holder *Holder
	Fault  *Fault
}

// Names of F, and of the processes that are no clients.
const (
	FSetup    = "setup"
	FAllocate = "allocate"
	FSample   = "sample"
	FWindow   = "window"
	FHolder   = "holder"
	FLeader   = "leader"

	Harness = "harness"
	Sampler = "sampler"
	Etcd    = "etcd"
	Nemesis = "nemesis"
)

// Type is what an Op is to the call it belongs to.
type Type uint8

// Types of ops. Whatever is no call is Info.
const (
	Invoke Type = iota // a call is about to be made
	OK                 // it was answered with what it asked for
	Fail               // it was refused: nothing happened
	Info               // its outcome is unknown; or an observation
)

var typeNames = [...]string{"invoke", "ok", "fail", "info"}

// String returns the name of t in a history.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Block is the IDs First, First+Stride, …, Count of them.
type Block struct {
	First  flake.ID
	Count  int64
	Stride int64
}

// maxStride bounds a block's stride: no layout has more than 2^22 sids.
const maxStride = 1 << 22

// Last returns the greatest ID of b, which has at least one.
func (b Block) Last() flake.ID { return b.First + flake.ID((b.Count-1)*b.Stride) }

// milliseconds returns those of the block's units of time, the first and the last.
func (b Block) milliseconds(f flake.Format) (from, to int64) {
	return f.UnixMilli(b.First), f.UnixMilli(b.Last()) + f.Layout.Unit() - 1
}

// valid reports whether b is a block of IDs: not empty and within 63 bits.
func (b Block) valid() bool {
	return b.First >= 0 && b.Count >= 1 && b.Stride >= 1 && b.Stride <= maxStride &&
		b.Count-1 <= (1<<63-1-int64(b.First))/b.Stride
}

// Setup describes a run, so that its history can be checked without anything else.
type Setup struct {
	Layout    string   `json:"layout"`             // as flake.ParseLayout takes it
	EpochMs   int64    `json:"epoch_ms"`           // The space's epoch is in Unix ms.
	StartMs   int64    `json:"start_ms"`           // the observer's wall clock at time 0, in Unix ms
	MaxSkewMs int64    `json:"max_skew_ms"`        // as the nodes are configured
	MaxLeadMs int64    `json:"max_lead_ms"`        // as the nodes are configured
	WindowMs  int64    `json:"window_ms"`          // W, as the nodes are configured
	Profile   string   `json:"profile,omitempty"`  // smoke, soak, …
	Seed      string   `json:"seed,omitempty"`     // The schedule was drawn from it.
	Nodes     []string `json:"nodes,omitempty"`    // names
	Faults    []string `json:"faults,omitempty"`   // those enabled: each must fire, or the run shows nothing about it
	NotRun    []string `json:"not_run,omitempty"`  // "fault: why this machine cannot do it"
	Versions  []string `json:"versions,omitempty"` // commit, Go, kernel, … as the report shows them
}

// Format returns what the bits of the run's IDs mean. The layout is valid in
// what a Reader returns.
func (s *Setup) Format() flake.Format {
	layout, _ := flake.ParseLayout(s.Layout)
	return flake.Format{Layout: layout, Epoch: s.EpochMs}
}

// Phases of a fault.
const (
	FaultStart = "start" // about to be injected
	FaultFired = "fired" // its effect was read back
	FaultStop  = "stop"  // healed: what was taken away is back
)

// ClassData is the class of faults that write or rewind etcd's data behind the
// nodes' backs: outside the promise, they are to be detected.
const ClassData = "data"

// ClassClock is the class of faults that change what a node's clocks say.
const ClassClock = "clock"

// ClassProcess is the class of faults that kill or pause processes.
const ClassProcess = "process"

// Fault is a moment in the life of one injection. Its start says what
// is expected, so that a history can be checked without anything else.
type Fault struct {
	Phase   string   `json:"phase"`             // FaultStart, FaultFired or FaultStop
	ID      int64    `json:"id"`                // All phases of an injection have the same ID.
	Class   string   `json:"class,omitempty"`   // ClassClock, ClassProcess, ClassData, or another one of the harness
	Targets []string `json:"targets,omitempty"` // nodes or members, by name
	Amount  int64    `json:"amount,omitempty"`  // The amount is in Unit; a clock step is in ns, forward positive.
	Unit    string   `json:"unit,omitempty"`    // ns, ppm, %
	Effect  string   `json:"effect,omitempty"`  // Only FaultFired has it: it says what was read back.

	Must       string   `json:"must,omitempty"`        // the reason that targets must refuse with …
	DeadlineMs int64    `json:"deadline_ms,omitempty"` // … from this long after the start until the stop
	May        []string `json:"may,omitempty"`         // reasons that answers may have meanwhile; "*" is any
	SettleMs   int64    `json:"settle_ms,omitempty"`   // The effects may last this long after the stop.
}

// Sample is what a node reported of itself, or that it did not answer.
type Sample struct {
	Instance string  `json:"instance,omitempty"` // as the node's records in etcd name it
	State    string  `json:"state"`              // as the node names it, or "down"
	Reason   string  `json:"reason,omitempty"`   // why it would refuse now
	SID      *int64  `json:"sid,omitempty"`      // nil: holds none
	Term     int64   `json:"term,omitempty"`     //
	LeadMs   int64   `json:"lead_ms"`            // what is left of the window
	TTLMs    int64   `json:"ttl_ms"`             // what is left of the lease
	OffsetMs float64 `json:"offset_ms"`          // add to the node's clock to get the cluster's
	ErrorMs  float64 `json:"error_ms"`           // half-width of the interval that holds the offset
	SelfMs   float64 `json:"self_ms,omitempty"`  // the node's wall clock minus the observer's
	Verdict  string  `json:"verdict,omitempty"`  // the gate's: open, shut, unverified, …
	Issued   int64   `json:"issued"`             // IDs since the process began
	Refused  int64   `json:"refused"`            // requests since the process began
	Members  int64   `json:"members,omitempty"`  // in gossip
	Tick     float64 `json:"tick_ms,omitempty"`  // delay of its clock's tick
	Heap     int64   `json:"heap_bytes,omitempty"`
	MarkMs   int64   `json:"mark_ms,omitempty"` // the watermark, in Unix ms
}

// Window is a version of a sid's window record, in the order in which the
// store applied them. Deleted and unreadable ones have no other fields.
type Window struct {
	SID        int64  `json:"sid"`
	Rev        int64  `json:"rev"`
	Term       int64  `json:"term"`
	Base       int64  `json:"base"` // Unix ms
	Ceil       int64  `json:"ceil"` // Unix ms, exclusive
	Released   bool   `json:"released,omitempty"`
	Instance   string `json:"instance,omitempty"`
	Deleted    bool   `json:"deleted,omitempty"`
	Unreadable bool   `json:"unreadable,omitempty"`
}

// Holder is a version of a sid's holder record.
type Holder struct {
	SID      int64  `json:"sid"`
	Rev      int64  `json:"rev"`
	Instance string `json:"instance,omitempty"`
	Lease    int64  `json:"lease,omitempty"`
	Deleted  bool   `json:"deleted,omitempty"`
}

// Errors of reading and writing histories. Those of reading come in a
// *LineError; test with errors.Is.
var (
	ErrSyntax    = errors.New("history: no JSON")
	ErrValue     = errors.New("history: missing or impossible value")
	ErrLong      = errors.New("history: line too long")
	ErrOrder     = errors.New("history: earlier than the line before")
	ErrTruncated = errors.New("history: ends in the middle of a line")
	ErrFull      = errors.New("history: byte limit reached")
)

// LineError is a line of a history that cannot be read.
type LineError struct {
	Line int64 // the first is 1
	Err  error
}

// Error returns the line and what is wrong with it.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns what is wrong.
func (e *LineError) Unwrap() error { return e.Err }
