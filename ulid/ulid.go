package ulid

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
)

// Sizes of an ID.
const (
	MaxUnixMilli = 1<<48 - 1 // largest time, in Unix milliseconds: in the year 10889
	RandomLen    = 10        // random bytes behind the time
	BinaryLen    = 16        // bytes of the binary form
	TextLen      = 26        // characters of the text form
	UUIDLen      = 36        // characters of the UUID form
)

// Errors of this package. Each may come wrapped with a position or a value;
// test with errors.Is.
var (
	ErrLength            = errors.New("ulid: wrong length")
	ErrAlphabet          = errors.New("ulid: invalid character")
	ErrOverflow          = errors.New("ulid: more than 128 bits")
	ErrRange             = errors.New("ulid: integer out of range")
	ErrBeforeEpoch       = errors.New("ulid: time before 1970")
	ErrTimeOverflow      = errors.New("ulid: time past the last millisecond")
	ErrUUID              = errors.New("ulid: not a UUID")
	ErrNotV7             = errors.New("ulid: not a version 7 UUID")
	ErrType              = errors.New("ulid: unsupported type")
	ErrEntropySource     = errors.New("ulid: no entropy")
	ErrMonotonicOverflow = errors.New("ulid: no random bits left in this millisecond")
)

// An ID is a 128-bit ULID, or a UUID seen as one. Every value is a ULID, the zero
// ID is the nil UUID, and IDs can be compared with == and be keys of maps.
//
// It is two words and not 16 bytes because words travel in registers: an array
// goes through memory, there and back, each time it is passed or returned, and
// that takes longer than reading or writing the text.
type ID struct{ hi, lo uint64 }

// Make returns the ID of a time in Unix milliseconds and 80 bits, which the
// caller draws from a cryptographic source. It returns ErrBeforeEpoch or
// ErrTimeOverflow; the ID is then zero.
func Make(unixMilli int64, random [RandomLen]byte) (ID, error) {
	if err := checkTime(unixMilli); err != nil {
		return ID{}, err
	}
	return ID{
		uint64(unixMilli)<<16 | uint64(binary.BigEndian.Uint16(random[:2])),
		binary.BigEndian.Uint64(random[2:]),
	}, nil
}

// FromUnixSeconds is Make for a time in whole Unix seconds. The errors are
// Make's, for any sec.
func FromUnixSeconds(sec int64, random [RandomLen]byte) (ID, error) {
	// Checked before the product, which wraps for large seconds and could land
	// on a legal time.
	switch {
	case sec < 0:
		return ID{}, fmt.Errorf("%w: %d s", ErrBeforeEpoch, sec)
	case sec > MaxUnixMilli/1000:
		return ID{}, fmt.Errorf("%w: %d s needs more than 48 bits of milliseconds", ErrTimeOverflow, sec)
	}
	return Make(sec*1000, random)
}

// Min returns the smallest ID of a millisecond in Unix time. Errors are Make's.
func Min(unixMilli int64) (ID, error) { return Make(unixMilli, [RandomLen]byte{}) }

// Max returns the greatest ID of a millisecond in Unix time. Errors are Make's.
func Max(unixMilli int64) (ID, error) {
	var ones [RandomLen]byte
	for i := range ones {
		ones[i] = 0xFF
	}
	return Make(unixMilli, ones)
}

func checkTime(unixMilli int64) error {
	switch {
	case unixMilli < 0:
		return fmt.Errorf("%w: %d ms", ErrBeforeEpoch, unixMilli)
	case unixMilli > MaxUnixMilli:
		return fmt.Errorf("%w: %d ms needs more than 48 bits", ErrTimeOverflow, unixMilli)
	}
	return nil
}

// Bytes returns the 16 bytes of id, big endian: they compare as IDs do. Convert
// them to the array type of another library, such as uuid.UUID(id.Bytes()).
func (id ID) Bytes() (b [BinaryLen]byte) {
	binary.BigEndian.PutUint64(b[:8], id.hi)
	binary.BigEndian.PutUint64(b[8:], id.lo)
	return b
}

// FromArray returns the ID with the bytes of b. An array of another library,
// such as a uuid.UUID, can be given as it is.
func FromArray(b [BinaryLen]byte) ID {
	return ID{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// UnixMilli returns the time of id in Unix milliseconds.
func (id ID) UnixMilli() int64 { return int64(id.hi >> 16) }

// Time returns the time of id, in UTC. It can lie in years of five digits,
// which RFC 3339 has no form for.
func (id ID) Time() time.Time { return time.UnixMilli(id.UnixMilli()).UTC() }

// Randomness returns the 80 bits behind the time. In a wide ID they are not all
// random: see FromFlake.
func (id ID) Randomness() (r [RandomLen]byte) {
	binary.BigEndian.PutUint16(r[:2], uint16(id.hi))
	binary.BigEndian.PutUint64(r[2:], id.lo)
	return r
}

// IsZero reports whether id is the zero ID, which is also the nil UUID.
func (id ID) IsZero() bool { return id == ID{} }

// Compare returns −1, 0 or +1 as id is less than, equal to or greater than o.
func (id ID) Compare(o ID) int {
	if id.hi != o.hi {
		return cmp.Compare(id.hi, o.hi)
	}
	return cmp.Compare(id.lo, o.lo)
}

// Increment returns the ID that follows id in the same millisecond: one more in
// the 80 bits behind the time. If these are all ones it returns
// ErrMonotonicOverflow and the zero ID; id is a value and stays as it is.
//
// For offline use; it does not coordinate. It counts through UUIDv7's
// version and variant bits as through any others, so do not apply it to IDs
// that have to stay version 7.
//
// Source: ULID specification, "Monotonicity".
func (id ID) Increment() (ID, error) {
	if id.lo++; id.lo == 0 {
		if id.hi++; id.hi&0xFFFF == 0 {
			return ID{}, ErrMonotonicOverflow
		}
	}
	return id, nil
}

// Where the parts of a wide ID lie in its two words. Behind version and variant are
// 12 + 62 bits: the flake's low bits, then random ones.
const (
	version7 = 0x7000     // bits 79 to 76: the high word's 15 to 12
	variant  = 0b10 << 62 // bits 63 and 62: the top of the low word
	highFree = 12
	lowFree  = 62
	maskHigh = 1<<highFree - 1
	maskLow  = 1<<lowFree - 1
)

// field returns how many bits of a wide ID the flake's low bits have: all of them,
// and zeros above them if there are fewer than the 12 beside the version.
func field(l flake.Layout) int { return max(l.LowBits(), highFree) }

// is20 reports whether l is one of the layouts with 20 low bits of a millisecond: with
// constant shifts a call takes half the time.
func is20(l flake.Layout) bool {
	return l == flake.Scalable || l == flake.Fleet || l == flake.Standalone
}

// RandomBits returns how many bits of the wide IDs of a layout are random: 54 for
// the Ulid-Flake layouts, 52 for Twitter's.
func RandomBits(l flake.Layout) int { return highFree + lowFree - field(l) }

// FromFlake returns the wide ID of a flake of format f: a ULID that is a legal
// UUIDv7, and from which Flake gets id back.
//
// Its time is that of id, at the start of its unit, in Unix milliseconds. Of random
// the low RandomBits bits are used and the others ignored; draw them from a
// cryptographic source. In one format, a greater flake has a greater wide ID whatever
// the random bits are (I8).
//
// It returns ErrRange for a negative id, and ErrBeforeEpoch or ErrTimeOverflow
// if the time of id is not within 48 bits of Unix milliseconds, which needs an
// epoch before 1970 or a time far ahead; the ID is then zero.
//
// Source: RFC 9562, section 5.7.
func FromFlake(f flake.Format, id flake.ID, random uint64) (ID, error) {
	// The bound on the epoch comes first: without it the sum could wrap.
	if ms := f.Epoch + int64(id)>>20; is20(f.Layout) && id >= 0 && f.Epoch <= MaxUnixMilli &&
		uint64(ms) <= MaxUnixMilli {
		return ID{
			uint64(ms)<<16 | version7 | uint64(id)>>8&maskHigh,
			variant | uint64(id)<<54&maskLow | random&(1<<54-1),
		}, nil
	}
	return fromFlake(f, id, random)
}

// fromFlake is FromFlake for any layout, and where there is an error.
func fromFlake(f flake.Format, id flake.ID, random uint64) (ID, error) {
	if id < 0 {
		return ID{}, fmt.Errorf("%w: flake %d is negative", ErrRange, id.Int64())
	}
	if f.Epoch > MaxUnixMilli {
		return ID{}, fmt.Errorf("%w: the epoch is %d ms", ErrTimeOverflow, f.Epoch)
	}
	ms := f.UnixMilli(id)
	if err := checkTime(ms); err != nil {
		return ID{}, err
	}
	n := field(f.Layout)
	low := uint64(id) & (1<<f.Layout.LowBits() - 1)
	return ID{
		uint64(ms)<<16 | version7 | low>>(n-highFree),
		variant | low<<(highFree+lowFree-n)&maskLow | random&(1<<(highFree+lowFree-n)-1),
	}, nil
}

// Flake returns the flake from which FromFlake made id, given its format. The random
// bits do not matter.
//
// It returns ErrNotV7 if id cannot come from FromFlake, flake.ErrBeforeEpoch
// if its time is before the epoch, and flake.ErrTimeOverflow if it is past the
// layout's end; the flake is then zero. It cannot distinguish a wide ID from a UUIDv7 of
// another origin, whose bits it would read as a flake that was never issued.
func (id ID) Flake(f flake.Format) (flake.ID, error) {
	if ts := uint64(id.UnixMilli() - f.Epoch); is20(f.Layout) && id.IsV7() && f.Epoch >= 0 && ts < 1<<43 {
		return flake.ID(ts<<20 | id.hi&maskHigh<<8 | id.lo>>54&0xFF), nil
	}
	return id.flake(f)
}

// flake is Flake for any layout, and where there is an error.
func (id ID) flake(f flake.Format) (flake.ID, error) {
	if !id.IsV7() {
		return 0, ErrNotV7
	}
	// Min and not Make: what the low bits mean is the layout's business.
	first, err := f.Min(id.UnixMilli())
	if err != nil {
		return 0, err
	}
	n := field(f.Layout)
	low := id.hi&maskHigh<<(n-highFree) | id.lo&maskLow>>(highFree+lowFree-n)
	if f.UnixMilli(first) != id.UnixMilli() || low>>f.Layout.LowBits() != 0 {
		return 0, fmt.Errorf("%w that was made from a flake of layout %v", ErrNotV7, f.Layout)
	}
	return first | flake.ID(low), nil
}

// IsV7 reports whether id has the version and variant bits of a UUIDv7.
func (id ID) IsV7() bool { return id.hi&(15<<12) == version7 && id.lo>>62 == variant>>62 }

// ForceV7 returns id with UUIDv7's version and variant bits written over the
// six bits in their places. Those are lost: different IDs can become one, and
// order is kept only as far as the time. Wide IDs have the bits already and
// stay as they are.
func (id ID) ForceV7() ID {
	id.hi = id.hi&^(15<<12) | version7
	id.lo = id.lo&^(3<<62) | variant
	return id
}
