package ulid

import (
	"slices"

	"github.com/flakelease/allocator/internal/crockford"
)

// TimeLen is the number of characters the time has: the first ones of the text
// form.
const TimeLen = 10

// AppendTime appends the 10 characters that the text of every ID of a millisecond
// in Unix time begins with. It returns ErrBeforeEpoch or ErrTimeOverflow, and b
// unchanged.
//
// Source: ULID specification, "Components".
func AppendTime(b []byte, unixMilli int64) ([]byte, error) {
	if err := checkTime(unixMilli); err != nil {
		return b, err
	}
	b = slices.Grow(b, TimeLen)
	for shift := 5 * (TimeLen - 1); shift >= 0; shift -= 5 {
		b = append(b, crockford.Alphabet[unixMilli>>shift&31])
	}
	return b, nil
}

// ParseTime reads the 10 characters of a time and returns it in Unix milliseconds.
// It is as strict as Parse: the errors are ErrLength, ErrAlphabet and
// ErrTimeOverflow, in this order, and come with 0.
//
// It does not check the 16 characters behind them. To take the time from the text
// of an ID, use Parse and UnixMilli.
func ParseTime(s string) (int64, error) {
	if len(s) != TimeLen {
		return 0, wrongLength(len(s), TimeLen)
	}
	var ms uint64
	seen := uint32(0)
	for i := range len(s) {
		v := crockford.Places[crockford.Run-1][s[i]]
		seen |= v
		ms = ms<<5 | uint64(v)
	}
	if seen >= crockford.Bad || ms > MaxUnixMilli {
		return 0, badText(s)
	}
	return int64(ms), nil
}
