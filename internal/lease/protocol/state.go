package protocol

import (
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/guard"
	"github.com/flakelease/allocator/internal/lease/history"
)

// state is what a machine has of a sid: it is one of seeking, *hold and rewound.
type state interface{ state() }

func (seeking) state() {}
func (*hold) state()   {}
func (rewound) state() {}

// seeking has no sid.
type seeking struct{}

// hold is a sid that this process acquired and has not given back.
type hold struct {
	sid  flake.SID
	term int64
	base clock.Millis
	// ceil is confirmed, and seen are our records as last confirmed.
	ceil     clock.Millis
	seen     lease.SIDRecords
	extendAt clock.Mono
	record   ownership
	service  service
	// issued lies above everything that was issued. It is set once service is sealed.
	issued clock.Millis
}

// ownership is whose the records of a held sid are.
type ownership uint8

const (
	ours      ownership = iota // The window is extended.
	oursNoKey                  // The window is ours and the holder key is gone: it is put again.
	lost                       // They are another process's, and what was confirmed to us can still be used.
)

// service is how far a held sid is from being given back. It only grows.
type service uint8

const (
	serving service = iota // The generator issues, and the window is extended.
	leaving                // The generator issues, and is sealed next.
	sealing                // Seal was asked for and not answered.
	sealed                 // Nothing is issued any more.
)

// rewound issues nothing: the store lost something that it had confirmed, and a
// node that reads the older history may be granted what we hold.
type rewound struct{ loss history.Loss }

// life is how far the machine is from its end. It only grows.
type life uint8

const (
	running life = iota
	stopping
	stopped // No event has an effect any more.
)

// hold returns the hold, or nil without one.
func (m *Machine) hold() *hold {
	h, _ := m.state.(*hold)
	return h
}

// own returns the hold if its record is ours, or nil.
func (m *Machine) own() *hold {
	if h := m.hold(); h != nil && h.record != lost {
		return h
	}
	return nil
}

// isRewound reports whether the store lost something that it had confirmed.
func (m *Machine) isRewound() bool {
	_, ok := m.state.(rewound)
	return ok
}

func (m *Machine) space() lease.Space { return m.history.Config().Value }
func (m *Machine) era() lease.Era     { return m.history.Era().Value }

// evidence returns what shows the time now.
func (m *Machine) evidence() guard.Evidence {
	return guard.Evidence{Evidence: m.catalog.Evidence(), Era: m.era(), Confirmed: m.gate.Confirmed}
}

// leave has the sid given back.
func (h *hold) leave() { h.service = max(h.service, leaving) }

// grant returns the hold as the generator knows it.
func (h *hold) grant() lease.Grant {
	return lease.Grant{SID: h.sid, Term: h.term, Base: h.base, Ceil: h.ceil}
}

// attempt is a write against one version of a sid's records. Several writes of
// it may be on their way at once, since one whose reply was lost can still be
// applied: whichever is first changes the record, and no other can follow.
//
// op and lease are of the latest write. While unknown is set, the sid is read back before
// anything else is done.
type attempt struct {
	sid     flake.SID
	seen    lease.SIDRecords
	nonces  map[string]write
	op      lease.Op
	lease   lease.LeaseID
	unknown bool
}

// write is one write of an attempt. It was sent at an elapsed time, when the clock read the
// wall time that its record has.
type write struct {
	op   lease.Op
	sent time.Duration
}
