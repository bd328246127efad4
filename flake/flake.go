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
	TextLen   = 13 // characters of the text form
	BinaryLen = 8  // bytes of the binary form
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
	ErrLayout            = errors.New("flake: invalid layout")
	ErrType              = errors.New("flake: unsupported type")
	ErrEntropySize       = errors.New("flake: invalid entropy size")
	ErrEntropySource     = errors.New("flake: no entropy")
	ErrMonotonicOverflow = errors.New("flake: no entropy left in this millisecond")
	ErrRegression        = errors.New("flake: the clock went back")
)

// An ID has 63 bits: a timestamp, then what its layout says. In the layout
// Scalable it is a Ulid-Flake.
//
// No function of this package makes a negative one. The zero ID is valid (the
// epoch's first instant with nothing drawn) and a cluster issues it never, so
// it can mean "no ID". IDs compare with <, as their text and binary forms
// do (I8).
type ID int64

// A SID is a scalability ID: which holder of a space issued an ID. Its range
// is the layout's, 0 to Holders−1.
type SID uint32

// A Format is the meaning of the bits of a space's IDs. It never changes while
// the space lives.
type Format struct {
	Layout Layout // Layout says which bits are the time, the sid and the sequence.
	Epoch  int64  // timestamp 0, in Unix milliseconds
}

// Default is the format of the Ulid-Flake specification for several holders.
var Default = Format{Layout: Scalable, Epoch: DefaultEpoch}

// String returns the format as ParseFormat reads it.
func (f Format) String() string {
	if f.Epoch == f.Layout.Epoch() {
		return f.Layout.String()
	}
	return f.Layout.String() + ",epoch=" + time.UnixMilli(f.Epoch).UTC().Format(time.RFC3339Nano)
}

// Make returns the ID of a time, an entropy (or sequence) and a sid, each of which
// must fit.
//
// unixMilli is in Unix milliseconds; the ID has the unit of time that it falls in.
// Make returns ErrLayout, ErrBeforeEpoch, ErrTimeOverflow, ErrEntropy or ErrSID; the
// ID is then zero. It coordinates nothing: the caller must ensure that the ID is new.
func (f Format) Make(unixMilli int64, entropy uint32, sid SID) (ID, error) {
	ts, err := f.timestamp(unixMilli)
	if err != nil {
		return 0, err
	}
	l := f.Layout
	if entropy>>l.SequenceBits() != 0 {
		return 0, fmt.Errorf("%w: %d needs more than %d bits", ErrEntropy, entropy, l.SequenceBits())
	}
	if sid>>l.SIDBits() != 0 {
		return 0, fmt.Errorf("%w: %d, the last of layout %v is %d", ErrSID, sid, l, l.Holders()-1)
	}
	return ID(ts<<l.LowBits() | int64(entropy)<<l.entropyShift() | int64(sid)<<l.sidShift()), nil
}

// entropyShift and sidShift return how far the fields are from the lowest bit.
func (l Layout) entropyShift() uint8 {
	if l.SIDFirst() {
		return 0
	}
	return uint8(l.SIDBits())
}

func (l Layout) sidShift() uint8 {
	if l.SIDFirst() {
		return uint8(l.SequenceBits())
	}
	return 0
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

// timestamp returns unixMilli as whole units since the epoch.
func (f Format) timestamp(unixMilli int64) (int64, error) {
	if !f.Layout.known() {
		return 0, f.Layout.Validate()
	}
	if unixMilli < f.Epoch {
		return 0, fmt.Errorf("%w: %d is before %d", ErrBeforeEpoch, unixMilli, f.Epoch)
	}
	// Unsigned, since the difference of two int64 can need 64 bits.
	ts := uint64(unixMilli) - uint64(f.Epoch)
	if f.Layout.Unit() != 1 {
		ts /= uint64(f.Layout.Unit())
	}
	if ts <= uint64(f.Layout.MaxTimestamp()) {
		return int64(ts), nil
	}
	return 0, fmt.Errorf("%w: %d is not within %d ms from %d", ErrTimeOverflow, unixMilli, f.Layout.End(), f.Epoch)
}

// Min returns the smallest ID that an instant in Unix milliseconds can have: that of
// its unit of time with all low bits 0. It returns ErrLayout, ErrBeforeEpoch or
// ErrTimeOverflow.
func (f Format) Min(unixMilli int64) (ID, error) {
	ts, err := f.timestamp(unixMilli)
	if err != nil {
		return 0, err
	}
	return ID(ts << f.Layout.LowBits()), nil
}

// Max returns the greatest ID that an instant in Unix milliseconds can have: that of
// its unit of time with all low bits 1. It returns ErrLayout, ErrBeforeEpoch or
// ErrTimeOverflow.
func (f Format) Max(unixMilli int64) (ID, error) {
	id, err := f.Min(unixMilli)
	if err != nil {
		return 0, err
	}
	return id | (1<<f.Layout.LowBits() - 1), nil
}

// Holds returns nil if id can be of this format: it has no bit above the layout's
// time. Else it returns ErrRange. In a layout of 63 bits every ID can be.
func (f Format) Holds(id ID) error {
	if f.Layout.Timestamp(id) > f.Layout.MaxTimestamp() || id < 0 {
		return fmt.Errorf("%w: %d has more than the %d bits of layout %v", ErrRange, int64(id),
			int(f.Layout.TimeBits())+f.Layout.LowBits(), f.Layout)
	}
	return nil
}

// UnixMilli returns the time of id in Unix milliseconds, at the start of its unit.
func (f Format) UnixMilli(id ID) int64 {
	return f.Epoch + f.Layout.Timestamp(id)*int64(f.Layout.Unit())
}

// Time returns the time of id, in UTC.
func (f Format) Time(id ID) time.Time { return time.UnixMilli(f.UnixMilli(id)).UTC() }

// Entropy returns the entropy of id, or in a layout that counts its sequence.
func (f Format) Entropy(id ID) uint32 {
	return uint32(id>>f.Layout.entropyShift()) & (1<<f.Layout.SequenceBits() - 1)
}

// SID returns the sid of id. It is 0 where the layout has no sid.
func (f Format) SID(id ID) SID {
	return SID(id>>f.Layout.sidShift()) & (1<<f.Layout.SIDBits() - 1)
}

// Time returns the time of an ID of the format Default, in UTC. For another format
// use Format.Time.
func (id ID) Time() time.Time { return Default.Time(id) }

// Int64 returns id as an integer.
func (id ID) Int64() int64 { return int64(id) }

// IsZero reports whether id is the zero ID, which no cluster issues.
func (id ID) IsZero() bool { return id == 0 }

// Compare returns −1, 0 or +1 as id is less than, equal to or greater than o.
func (id ID) Compare(o ID) int { return cmp.Compare(id, o) }
