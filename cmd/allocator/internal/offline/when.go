package offline

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// parseTime returns a time as people write it, in Unix ms: "now", RFC 3339
// or a date, in UTC unless it has another zone, the local form that parse prints,
// a whole number of Unix ms, or one of Unix seconds behind "@". What is finer
// than a millisecond is cut off.
//
// A time of day without a zone is refused: it would be another one on another
// machine.
func parseTime(s string, now time.Time) (int64, error) {
	if s == "now" {
		return now.UnixMilli(), nil
	}
	if seconds, ok := strings.CutPrefix(s, "@"); ok {
		v, err := cli.ParseWhole(seconds)
		if err != nil {
			return 0, fmt.Errorf("%q: @ and Unix seconds: %w", s, err)
		}
		if v > math.MaxInt64/1000 || v < math.MinInt64/1000 {
			return 0, fmt.Errorf("%q: too large for milliseconds", s)
		}
		return v * 1000, nil
	}
	if digits := strings.TrimPrefix(s, "-"); digits != "" && strings.Trim(digits, "0123456789") == "" {
		v, err := cli.ParseWhole(s)
		if err != nil {
			return 0, fmt.Errorf("%q: Unix milliseconds: %w", s, err)
		}
		return v, nil
	}
	for _, form := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02 15:04:05Z07:00",
		"2006-01-02 15:04:05 -0700"} {
		if t, err := time.Parse(form, s); err == nil {
			return t.UnixMilli(), nil
		}
	}
	return 0, fmt.Errorf("%q is not a time: write now, 2026-11-20T16:36:28.444Z, 2026-11-20, Unix milliseconds, or "+
		"@ and Unix seconds", s)
}

// looksLikeSeconds reports whether a time in ms was probably meant in seconds:
// as such it is of the years 2001 to 2286, as milliseconds of early 1970.
func looksLikeSeconds(s string, unixMs int64) bool {
	return unixMs >= 1e9 && unixMs < 1e10 && strings.Trim(s, "0123456789") == ""
}
