package lease

import (
	"time"

	"github.com/flakelease/allocator/flake"
)

// Config configures a machine and its parts. All durations are required; package config has
// the defaults and the reasons for them.
type Config struct {
	// Registration has the instance, the node's name and the addresses of this process.
	Registration Registration
	// Format is what the node is configured for. A space of another one is refused.
	Format flake.Format
	// SIDRange limits the sids that the node may take; the zero value is no limit.
	SIDRange SIDRange
	// Workers are the sids that nodes leave to workers; the zero value is none.
	Workers SIDRange

	Bounds
	// ExtendEvery is how often a ceiling is raised.
	ExtendEvery time.Duration
	// TTL is how long the lease lives without being renewed, which it is each KeepAliveEvery.
	TTL            time.Duration
	KeepAliveEvery time.Duration
	// ReloadEvery is how often the whole space is listed again, where no watch reports its changes.
	ReloadEvery time.Duration
	// RetryAfter is the pause after a call of the store failed. Lists and registrations
	// that go on failing wait longer.
	RetryAfter time.Duration

	// Mark says how the watermark is computed, and how often it is raised.
	Mark MarkRules

	// Gated is set if the shell sends Gate events: no ceiling is written before
	// the first one that is open.
	Gated bool

	// Nonce returns a text that is unique at every call, across all processes.
	Nonce func() string
	// Jitter returns a random duration in [0, maximum).
	Jitter func(maximum time.Duration) time.Duration
}

// ProgressEvery is how often a watch in which nothing changes reports its revision.
func (c Config) ProgressEvery() time.Duration { return c.ReloadEvery / 3 }

// MarkRules say how a mark is computed.
type MarkRules struct {
	Every time.Duration // The mark is raised so often; 0: never.
	// Grace is for how long after a ceiling a process whose clock goes on may still issue
	// below it: as long as clocks may differ, and a request may be under way.
	Grace time.Duration
	// Late is from which age on a floor is named as what holds the mark back.
	Late time.Duration
}
