package feed

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Bounds of a feed; Config may set others.
const (
	defaultEntries = 2048
	// MaxBytes is how many bytes of events are kept.
	MaxBytes       = 1 << 20
	defaultStreams = 960
	// perClient bounds the streams of one client, and operators those of the admin port.
	perClient = 64
	operators = 128
	// maxBatch is how many entries a stream gets at a time.
	maxBatch = 64
)

// ErrFull says that there are as many streams as a feed has.
var ErrFull = errors.New("feed: too many streams of events")

// ErrEnded says that the process stops.
var ErrEnded = errors.New("feed: the node is stopping")

// Config is what a Feed needs. Boot is required.
type Config struct {
	Boot    string // No two processes have the same; IDs of events begin with it.
	Entries int    // At most this many are kept; 0: 2,048.
	Bytes   int    // Their JSON has at most this many bytes; 0: 1 MiB.
	Streams int    // at once, besides those of operators; 0: 960
}

// Feed has the latest events of a process. It is safe for concurrent use.
type Feed struct {
	cfg Config

	mu       sync.Mutex            // guards the rest
	entries  []Entry               // the oldest first, numbered without gaps
	bytes    int                   // The JSON of all entries has this many.
	last     uint64                // number of the latest; 0: there was none
	state    *State                // as last observed; nil: none
	streams  access.Places[string] // those of clients; operators have others
	pages    []*Stream             // streams of operators, the oldest first
	watching int                   // streams that take snapshots
	snapshot any                   // the latest
	number   uint64                // The snapshot has this number; 0: there was none.
	changed  chan struct{}         // closed at the next change of anything a stream shows
	wanted   chan struct{}         // has room for one: a stream waits for a snapshot
	ended    bool
}

// Entry is an event with its JSON. Both are shared: do not write to them.
type Entry struct {
	Event Event
	JSON  []byte
}

// New returns an empty feed.
func New(cfg Config) *Feed {
	cfg.Entries, cfg.Bytes = cmp.Or(cfg.Entries, defaultEntries), cmp.Or(cfg.Bytes, MaxBytes)
	cfg.Streams = cmp.Or(cfg.Streams, defaultStreams)
	return &Feed{
		cfg: cfg, streams: access.Places[string]{Each: perClient, All: cfg.Streams},
		changed: make(chan struct{}), wanted: make(chan struct{}, 1),
	}
}

// Observe takes the state of the node, and adds what happened since the one before, which it
// returns.
func (f *Feed) Observe(s State) []Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := Transitions(f.state, s)
	f.state = &s
	for _, e := range events {
		f.add(e)
	}
	if len(events) > 0 {
		f.wake()
	}
	return events
}

// Act adds what an operator did, as a node learned at now, and returns the event.
func (f *Feed) Act(now clock.Millis, node string, a lease.Act) Event {
	message := a.By + ": " + a.Action
	if a.Reason != "" {
		message += ": " + a.Reason
	}
	e := at(now, node, OperatorActed, message, "action", a.Action, "caller", a.By, "by", "os-user", "from", "etcd",
		"why", a.Reason, "at", a.At.Time().UTC().Format(time.RFC3339), "act", a.Nonce)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(e)
	f.wake()
	return e
}

// Restore adds events of earlier processes, the oldest first, before there are others. They keep their IDs.
func (f *Feed) Restore(events []Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		clean := at(clock.Millis(e.At), e.Node, Kind(printable(string(e.Kind))), e.Message)
		clean.ID, clean.SID = printable(e.ID), e.SID
		for key, value := range e.Attributes {
			clean.Attributes[printable(key)] = printable(value)
		}
		f.add(clean)
	}
}

// EtcdFails returns since when calls to etcd fail, in Unix ms; 0: they do not.
func (f *Feed) EtcdFails() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == nil || !f.state.EtcdFails {
		return 0
	}
	return int64(f.state.EtcdSince)
}

// add is called with mu held.
func (f *Feed) add(e Event) {
	f.last++
	if e.ID == "" { // An event of an earlier process has one.
		e.ID = f.id(f.last)
	}
	entry := Entry{e, JSON(e)}
	f.entries = append(f.entries, entry)
	f.bytes += len(entry.JSON)
	drop := 0
	for len(f.entries)-drop > f.cfg.Entries || f.bytes > f.cfg.Bytes {
		f.bytes -= len(f.entries[drop].JSON)
		drop++
	}
	clear(f.entries[:drop]) // the array stays for a while
	f.entries = f.entries[drop:]
}

func (f *Feed) id(n uint64) string { return f.cfg.Boot + "-" + strconv.FormatUint(n, 10) }

// wake is called with mu held.
func (f *Feed) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Latest returns the latest events, at most n, the oldest first, and the ID after which
// a stream goes on from them.
func (f *Feed) Latest(n int) (events []Event, after string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.entries[max(len(f.entries)-n, 0):] {
		events = append(events, e.Event)
	}
	return events, f.id(f.last)
}

// SetSnapshot passes what streams show besides events.
func (f *Feed) SetSnapshot(snapshot any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshot = snapshot
	f.number++
	f.wake()
}

// Watching returns how many streams take snapshots, and a channel that receives when the
// first one waits for one.
func (f *Feed) Watching() (streams int, wanted <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watching, f.wanted
}

// End ends all streams: the process stops.
func (f *Feed) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.wake()
}

// Missed is what a stream says in the place of events that it cannot have.
type Missed struct {
	Count int64  `json:"count"` // -1: not known
	Why   string `json:"why"`
}

// Stream reads a feed from one event on. It has one owner, and must be closed.
type Stream struct {
	feed      *Feed
	next      uint64 // number of the next event
	missed    *Missed
	snapshots bool
	shown     uint64 // number of the latest snapshot it had
	client    string
	operator  bool
	replaced  bool
	stays     bool
}

// From says where a stream begins.
type From struct {
	After     string // ID of the latest event that the caller has; "": none
	New       bool   // without After: only what happens from now on; else what is kept first
	Snapshots bool
	Client    string // Its streams count together.
	// Operator is set for a page of the admin port. It has a stream in any case: above 128
	// the oldest of the client with most ends, which the page then opens again.
	Operator bool
	// Stays is set for the node's own stream, which goes on after End.
	Stays bool
}

// replace ends the oldest page of the client that has most: one with many takes no place from
// the others. f.mu is held.
func (f *Feed) replace() {
	pages, most := map[string]int{}, ""
	for _, s := range f.pages {
		if pages[s.client]++; pages[s.client] > pages[most] {
			most = s.client
		}
	}
	i := slices.IndexFunc(f.pages, func(s *Stream) bool { return s.client == most })
	f.pages[i].replaced = true
	f.pages = slices.Delete(f.pages, i, i+1)
	f.wake()
}

// Open begins a stream. It returns ErrFull or ErrEnded.
func (f *Feed) Open(from From) (*Stream, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return nil, ErrEnded
	case !from.Operator && !from.Stays && !f.streams.Take(from.Client):
		return nil, ErrFull
	}
	s := &Stream{
		feed:      f,
		next:      f.first(),
		snapshots: from.Snapshots,
		client:    from.Client,
		operator:  from.Operator,
		stays:     from.Stays,
	}
	if s.operator {
		f.pages = append(f.pages, s)
		if len(f.pages) > operators {
			f.replace()
		}
	}
	switch {
	case from.After != "":
		s.next, s.missed = f.resume(from.After)
	case from.New:
		s.next = f.last + 1
	}
	if s.snapshots {
		f.watching++
		s.shown = f.number // an older one may be out of date
		if f.watching > 1 && f.number > 0 {
			s.shown-- // others have it made
		}
		select {
		case f.wanted <- struct{}{}:
		default:
		}
	}
	return s, nil
}

// first returns the number of the oldest event that is kept. mu is held.
func (f *Feed) first() uint64 { return f.last - uint64(len(f.entries)) + 1 }

// resume returns where a stream goes on that has the event of an ID. mu is held.
func (f *Feed) resume(id string) (next uint64, missed *Missed) {
	number, ours := strings.CutPrefix(id, f.cfg.Boot+"-")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ours { // The event may be of an earlier process.
		if i := slices.IndexFunc(f.entries, func(e Entry) bool { return e.Event.ID == id }); i >= 0 {
			return f.first() + uint64(i) + 1, nil
		}
	}
	if !ours || err != nil || n > f.last {
		return f.first(), &Missed{-1,
			"the ID is of another process: the node was started again since, or it is another node"}
	}
	return n + 1, nil
}

// Next returns what the caller does not have yet: events and perhaps a snapshot, and
// before them what it missed. If there is nothing, it is to wait for changed. It returns
// ErrEnded when the process stops and all events were returned, and ErrFull when another
// page has its place.
func (s *Stream) Next() (b Batch, changed <-chan struct{}, err error) {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	b.Missed, s.missed = s.missed, nil
	if first := f.first(); s.next < first {
		b.Missed = &Missed{int64(first - s.next),
			"they are not kept any more: the stream was away for too long, or too slow"}
		s.next = first
	}
	from := f.entries[s.next-f.first():]
	b.Entries = append(b.Entries, from[:min(len(from), maxBatch)]...)
	s.next += uint64(len(b.Entries))
	if s.snapshots && s.shown < f.number {
		b.Snapshot, s.shown = f.snapshot, f.number
	}
	switch {
	case s.replaced:
		err = ErrFull
	case f.ended && b.Empty() && !s.stays:
		err = ErrEnded
	}
	return b, f.changed, err
}

// Follow calls send with what Next returns, and with an empty Batch as a sign of life when all that was kept was sent,
// and at each tick. It returns the error of ctx, of Next or of send.
func (s *Stream) Follow(ctx context.Context, tick <-chan time.Time, send func(Batch) error) error {
	for due := true; ; {
		b, changed, err := s.Next()
		if !b.Empty() || due && err == nil {
			if failed := send(b); failed != nil {
				return failed
			}
		}
		due = due && !b.Empty()
		switch {
		case err != nil:
			return err
		case !b.Empty():
			continue
		}
		select {
		case <-changed:
		case <-tick:
			due = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Batch is what a stream sends at a time.
type Batch struct {
	Missed   *Missed // nil: nothing
	Entries  []Entry
	Snapshot any // as SetSnapshot took it; nil: no new one
}

// Empty reports whether there is nothing to send.
func (b Batch) Empty() bool { return b.Missed == nil && len(b.Entries) == 0 && b.Snapshot == nil }

// Close ends the stream.
func (s *Stream) Close() {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.operator {
		f.pages = slices.DeleteFunc(f.pages, func(p *Stream) bool { return p == s })
	} else if !s.stays {
		f.streams.Give(s.client)
	}
	if s.snapshots {
		f.watching--
	}
}
