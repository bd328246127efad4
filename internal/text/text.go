// Package text writes values as people read them, alike in sentences, tables and pages,
// and makes texts of other machines fit to be shown. It has no dependencies, so that the
// core may use it.
package text

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Printable returns s with U+FFFD for each character that is not printable, such as the
// escapes of a terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Millis returns a time in Unix ms as RFC 3339 has it, in UTC and with 3 decimals.
func Millis(unixMs int64) string {
	return time.UnixMilli(unixMs).UTC().Format("2006-01-02T15:04:05.000Z")
}

// Kind returns the words of s that have no digit. Texts that differ only in numbers, times and ports are of one
// kind, and a log says a kind once.
func Kind(s string) string {
	words := slices.DeleteFunc(strings.Fields(s), func(w string) bool { return strings.ContainsAny(w, "0123456789") })
	return strings.Join(words, " ")
}

// Said has the kinds of problems that a log has said, and when. The zero value has said none.
type Said map[string]time.Time

// New reports whether to log a problem now: its kind was not logged in the last minute. So one that lasts is logged
// once a minute, and several that alternate are too.
func (s *Said) New(problem string, now time.Time) bool {
	maps.DeleteFunc(*s, func(_ string, at time.Time) bool { return now.Sub(at) >= time.Minute })
	kind := Kind(problem)
	if _, said := (*s)[kind]; said {
		return false
	}
	if *s == nil {
		*s = Said{}
	}
	(*s)[kind] = now
	return true
}

// Cut returns the first n bytes of s, without a character that would be cut in two and
// without what is not UTF-8.
func Cut(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// Seconds returns a time in milliseconds as seconds with one decimal, rounded down: what is
// left of something is never shown as more. From two days on it is in days.
func Seconds(ms int64) string {
	if days := ms / (24 * 3600 * 1000); days >= 2 || days <= -2 {
		return Count(int(days), "day")
	}
	tenths := ms / 100
	if ms < 0 && ms%100 != 0 {
		tenths--
	}
	return strconv.FormatFloat(float64(tenths)/10, 'f', 1, 64) + "s"
}

// Span writes how long something takes that may take centuries, as wrong clocks have it:
// "250ms", "36h0m0s", "15 days", "273 years".
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch size := max(d, -d); {
	case size >= 2*365*day:
		return Count(int(d/(365*day)), "year")
	case size >= 2*day:
		return Count(int(d/day), "day")
	case size >= time.Minute:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Millisecond).String()
}

// Name returns the name of a value that counts from 0, by the names in their order; "unknown": it has none.
func Name[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}

// Count returns a number and its unit, such as "1 node" or "3 nodes".
func Count(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// listed is how many names List writes out.
const listed = 3

// List joins names as a sentence does, and counts those after the third.
func List(names []string) string {
	switch n := len(names); {
	case n > listed:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:listed], ", "), n-listed)
	case n > 1:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

// NotHostPort says that an address is not host:port, and how it is written. The port is one that it may mean.
func NotHostPort(addr, port string) string {
	meant := ""
	scheme, rest, url := strings.Cut(addr, "://")
	switch {
	case url:
		meant = fmt.Sprintf(": write %s, without %s://", strings.TrimSuffix(rest, "/"), scheme)
	case strings.HasPrefix(addr, "/"), strings.HasPrefix(addr, "./"):
		meant = ": for a Unix socket write unix:/path"
	case addr != "" && !strings.Contains(addr, ":"):
		meant = ": write " + addr + ":" + port
	}
	return fmt.Sprintf("%q is not host:port%s", addr, meant)
}

// Nearest returns which of some names a mistyped one was meant to be, by Levenshtein's distance;
// "" if none is near.
func Nearest(typed string, names []string) (nearest string) {
	far := max(2, len(typed)/2)
	if len(typed) < 4 {
		far = 1
	}
	for _, name := range names {
		if d := distance(typed, name); d <= far && d < len(typed) {
			nearest, far = name, d-1
		}
	}
	return nearest
}

func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
