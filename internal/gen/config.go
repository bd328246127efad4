package gen

import (
	"errors"
	"fmt"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

const (
	// blockLimit is the maximum of IDs in one block, whatever the lead allows. A
	// million IDs take 31 ms of the scalable layout.
	blockLimit = 1_000_000

	// stepLimit is the largest MaxStep: two random bytes, the maximum that the
	// specification's implementations add in a layout with a sid.
	stepLimit = 1<<16 - 1

	// leadLimit bounds the lead to 278 years, so that no shift overflows.
	leadLimit = 1<<43 - 1

	// epochLimit bounds the epoch to about 140,000 years on either side of 1970, so
	// that no sum of times in this package overflows.
	epochLimit = 1 << 52
)

// Config is how the IDs of a space are made. All tenures of a process share one.
type Config struct {
	Layout flake.Layout
	Epoch  clock.Millis // Unix ms that IDs count from

	// MaxLead is how many ms an ID may be ahead of the clock. 0 is the rule of the
	// Ulid-Flake specification: never.
	MaxLead clock.Millis

	// MaxStep makes the step between requests in one millisecond random, uniform in
	// 1..MaxStep, so that the next ID cannot be predicted from the last. It applies
	// while the word is not ahead of the clock. Ahead of it the step is 1, to save
	// entropy. 0 means always 1.
	MaxStep uint32
}

// Lead returns MaxLead in whole units of time, in ms: what an ID may really be ahead.
func (c Config) Lead() clock.Millis {
	return c.MaxLead - c.MaxLead%clock.Millis(c.Layout.Unit())
}

// MaxBlock returns the maximum of IDs that one call may ask for: what fits in
// MaxLead, or in one unit of time if MaxLead is less, and at most 1,000,000. In a
// layout with the sid above the sequence a block lies within one unit.
//
// A block of this size fits into every new unit of time, whatever is drawn.
func (c Config) MaxBlock() int {
	// The limit keeps the shift below from overflowing.
	units := min(uint64(max(c.MaxLead/clock.Millis(c.Layout.Unit()), 1)), blockLimit)
	if c.Layout.SIDFirst() {
		units = 1
	}
	return int(min(units<<c.Layout.SequenceBits(), blockLimit))
}

// Validate returns an error that names the first field out of range.
func (c Config) Validate() error {
	if err := c.Layout.Validate(); err != nil {
		return fmt.Errorf("gen: config layout: %w", err)
	}
	switch {
	case c.Epoch < -epochLimit || c.Epoch > epochLimit:
		return fmt.Errorf("gen: config epoch: %d is not within %d ms of 1970", c.Epoch, int64(epochLimit))
	case c.MaxLead < 0 || c.MaxLead > leadLimit:
		return fmt.Errorf("gen: config max lead: %d is not within 0 and %d ms", c.MaxLead, int64(leadLimit))
	case c.MaxStep > stepLimit:
		return fmt.Errorf("gen: config max step: %d is above %d", c.MaxStep, stepLimit)
	case c.MaxStep > 0 && !c.Layout.Random():
		return fmt.Errorf("gen: config max step: %d, but layout %v counts by 1", c.MaxStep, c.Layout)
	}
	return nil
}

// validTenure reports what is wrong with the sid and window of a new tenure, by
// the rules NewTenure lists. c must be valid.
func (c Config) validTenure(sid flake.SID, base, ceil clock.Millis) error {
	switch {
	case int(sid) >= c.Layout.Holders():
		return fmt.Errorf("gen: %w: %d, the last of layout %v is %d", flake.ErrSID, sid, c.Layout, c.Layout.Holders()-1)
	case base <= c.Epoch:
		return fmt.Errorf("gen: base %d is not after the epoch %d", base, c.Epoch)
	case ceil < base:
		return fmt.Errorf("gen: ceiling %d is below the base %d", ceil, base)
	}
	return nil
}

var errNoSource = errors.New("gen: no random source")
