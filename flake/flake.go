package flake

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// Sizes of an ID, common to all layouts.
//
// Source: Ulid-Flake specification, "Components".
const (
	LowBits      = 20        // bits below the timestamp: entropy, then sid
	MaxTimestamp = 1<<43 - 1 // largest timestamp, in milliseconds since the epoch
	TextLen      = 13        // characters of the text form
	BinaryLen    = 8         // bytes of the binary form
)

// DefaultEpoch is 2024-01-01T00:00:00Z in Unix milliseconds, the epoch of the
// Ulid-Flake specification. With it, IDs last until 2302-09-27.
const DefaultEpoch int64 = 1_704_067_200_000

// Errors of this package. Each may come wrapped with a position or a value;
// test with errors.Is.
var (
	ErrLength            = errors.New("flake: wrong length")
	ErrAlphabet          = errors.New("flake: invalid character")
	ErrOverflow          = errors.New("flake: more than 63 bits")
	ErrRange             = errors.New("flake: integer out of range")
	ErrBeforeEpoch       = errors.New("flake: time before the epoch")
	ErrTimeOverflow      = errors.New("flake: time past the last millisecond")
	ErrSID               = errors.New("flake: sid out of range")
	ErrEntropy           = errors.New("flake: entropy out of range")
	ErrLayout            = errors.New("flake: unknown layout")
	ErrType              = errors.New("flake: unsupported type")
	ErrEntropySize       = errors.New("flake: invalid entropy size")
	ErrEntropySource     = errors.New("flake: no entropy")
	ErrMonotonicOverflow = errors.New("flake: no entropy left in this millisecond")
	ErrRegression        = errors.New("flake: the clock went back")
)

// An ID is a 64-bit Ulid-Flake: 0 | 43-bit timestamp | 20 low bits.
//
// No function of this package makes a negative one. The zero ID is valid (the
// epoch's first instant with nothing drawn) and a cluster issues it never, so
// it can mean "no ID". IDs compare with <, as their text and binary forms
// do (I8).
type ID int64

// A SID is a scalability ID: which holder of a space issued an ID. Its range
// is the layout's, 0 to Holders−1.
type SID uint16

// A Format is the meaning of the bits of a space's IDs. It never changes while
// the space lives.
type Format struct {
	Layout Layout
	Epoch  int64 // timestamp 0, in Unix milliseconds
}

// Default is the format of the Ulid-Flake specification for several holders.
var Default = Format{Layout: Scalable, Epoch: DefaultEpoch}

// Make returns the ID of a time, an entropy and a sid, each of which must fit.
//
// unixMilli is in Unix milliseconds. Make returns ErrLayout, ErrBeforeEpoch,
// ErrTimeOverflow, ErrEntropy or ErrSID; the ID is then zero. It coordinates
// nothing: the caller must ensure that the ID is new.
func (f Format) Make(unixMilli int64, entropy uint32, sid SID) (ID, error) {
	if !f.Layout.known() {
		return 0, fmt.Errorf("%w %d", ErrLayout, uint8(f.Layout))
	}
	ts, err := f.timestamp(unixMilli)
	if err != nil {
		return 0, err
	}
	eb, sb := f.Layout.EntropyBits(), f.Layout.SIDBits()
	if entropy>>eb != 0 {
		return 0, fmt.Errorf("%w: %d needs more than %d bits", ErrEntropy, entropy, eb)
	}
	if sid>>sb != 0 {
		return 0, fmt.Errorf("%w: %d, the last of layout %v is %d", ErrSID, sid, f.Layout, f.Layout.Holders()-1)
	}
	return ID(ts<<LowBits | int64(entropy)<<sb | int64(sid)), nil
}

// FromUnixSeconds is Make for a time in whole Unix seconds, as the reference
// implementations take it. The errors are Make's, for any sec.
func (f Format) FromUnixSeconds(sec int64, entropy uint32, sid SID) (ID, error) {
	// Checked before the product, which wraps for large seconds and could land
	// on a legal time.
	const limit = math.MaxInt64 / 1000
	switch {
	case sec < -limit:
		return 0, fmt.Errorf("%w: %d s", ErrBeforeEpoch, sec)
	case sec > limit:
		return 0, fmt.Errorf("%w: %d s", ErrTimeOverflow, sec)
	}
	return f.Make(sec*1000, entropy, sid)
}

// timestamp returns unixMilli as milliseconds since the epoch.
func (f Format) timestamp(unixMilli int64) (int64, error) {
	if unixMilli < f.Epoch {
		return 0, fmt.Errorf("%w: %d is before %d", ErrBeforeEpoch, unixMilli, f.Epoch)
	}
	// Unsigned, since the difference of two int64 can need 64 bits.
	if ts := uint64(unixMilli) - uint64(f.Epoch); ts <= MaxTimestamp {
		return int64(ts), nil
	}
	return 0, fmt.Errorf("%w: %d is more than %d ms after %d", ErrTimeOverflow, unixMilli, int64(MaxTimestamp), f.Epoch)
}

// Min returns the smallest ID of a millisecond in Unix time, whatever the layout:
// all 20 low bits are 0. It returns ErrBeforeEpoch or ErrTimeOverflow.
func (f Format) Min(unixMilli int64) (ID, error) {
	ts, err := f.timestamp(unixMilli)
	if err != nil {
		return 0, err
	}
	return ID(ts << LowBits), nil
}

// Max returns the greatest ID of a millisecond in Unix time, whatever the
// layout: all 20 low bits are 1. It returns ErrBeforeEpoch or ErrTimeOverflow.
func (f Format) Max(unixMilli int64) (ID, error) {
	ts, err := f.timestamp(unixMilli)
	if err != nil {
		return 0, err
	}
	return ID(ts<<LowBits | (1<<LowBits - 1)), nil
}

// UnixMilli returns the time of id in Unix milliseconds.
func (f Format) UnixMilli(id ID) int64 { return f.Epoch + id.Timestamp() }

// Time returns the time of id, in UTC.
func (f Format) Time(id ID) time.Time { return time.UnixMilli(f.UnixMilli(id)).UTC() }

// Entropy returns the entropy field of id.
func (f Format) Entropy(id ID) uint32 {
	return uint32(id) >> f.Layout.SIDBits() & (1<<f.Layout.EntropyBits() - 1)
}

// SID returns the sid of id. It is 0 where the layout has no sid.
func (f Format) SID(id ID) SID { return SID(id) & (1<<f.Layout.SIDBits() - 1) }

// Timestamp returns the time of id in milliseconds since its space's epoch.
func (id ID) Timestamp() int64 { return int64(id) >> LowBits }

// Time returns the time of an ID of the default epoch, in UTC. For another
// epoch use Format.Time.
func (id ID) Time() time.Time { return Default.Time(id) }

// Int64 returns id as an integer.
func (id ID) Int64() int64 { return int64(id) }

// IsZero reports whether id is the zero ID, which no cluster issues.
func (id ID) IsZero() bool { return id == 0 }

// Compare returns −1, 0 or +1 as id is less than, equal to or greater than o.
func (id ID) Compare(o ID) int { return cmp.Compare(id, o) }
