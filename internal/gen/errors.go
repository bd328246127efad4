package gen

import (
	"errors"
	"fmt"

	"github.com/flakelease/allocator/internal/clock"
)

// Errors of Next. After each of them the tenure is unchanged (I7).
var (
	ErrSealed  = errors.New("gen: tenure is sealed")
	ErrCount   = errors.New("gen: count out of range") // comes as a *CountError
	ErrCeiling = errors.New("gen: window ceiling reached")

	// The block would be further ahead of the clock than allowed. These come as a
	// *LeadError, and name the cause of the lead.
	ErrOverflow    = errors.New("gen: no entropy left within the lead") // demand
	ErrRegression  = errors.New("gen: clock went back")                 // a clock that read more before
	ErrAfterTooFar = errors.New("gen: ID to follow is too far ahead")   // the caller's after
	ErrNotBegun    = errors.New("gen: window is too far in the future") // the tenure's base
)

// A LeadError is returned for a block that would end too far ahead of the clock.
// Err is ErrOverflow, ErrRegression, ErrAfterTooFar or ErrNotBegun.
type LeadError struct {
	Err   error
	Lead  clock.Millis // The block's last unit of time begins this far ahead of now.
	Limit clock.Millis // Config.Lead
}

// Excess returns the lead beyond the limit, in ms and at least 1. Once the clock has
// advanced by it, the same call is within the limit, if no other call was served in
// between and no larger step is drawn.
func (e *LeadError) Excess() clock.Millis { return e.Lead - e.Limit }

func (e *LeadError) Error() string {
	return fmt.Sprintf("%v: %d ms ahead, at most %d allowed", e.Err, e.Lead, e.Limit)
}

// Unwrap returns Err.
func (e *LeadError) Unwrap() error { return e.Err }

// A CountError is returned for a block of no IDs or of too many. It wraps ErrCount.
type CountError struct {
	Count int
	Limit int // Config.MaxBlock
}

func (e *CountError) Error() string {
	return fmt.Sprintf("%v: %d is not within 1 and %d", ErrCount, e.Count, e.Limit)
}

// Unwrap returns ErrCount.
func (e *CountError) Unwrap() error { return ErrCount }
