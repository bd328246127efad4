package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/flakelease/allocator/internal/describe"
)

// printLine writes v as JSON on a line of its own.
func printLine(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// units are what a span of time is counted in, the largest first.
var units = []struct {
	length time.Duration
	name   string
}{
	{365 * 24 * time.Hour, "year"}, {24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"},
}

// appendAge appends how far t lies from now, in the largest unit that fits, such
// as "3 minutes ago" or "in 1 day".
func appendAge(b []byte, t, now time.Time) []byte {
	d := t.Sub(now) // at most 292 years, which it then says
	ahead := d > 0
	if ahead {
		d = -d // a Duration reaches further down than up
	}
	// Far-off times have no Duration.
	if d <= -250*365*24*time.Hour {
		return strconv.AppendInt(append(b, "year "...), int64(t.UTC().Year()), 10)
	}
	for _, u := range units {
		n := int64(-d / u.length)
		if n == 0 {
			continue
		}
		if ahead {
			b = append(b, "in "...)
		}
		b = append(strconv.AppendInt(b, n, 10), ' ')
		b = append(b, u.name...)
		if n != 1 {
			b = append(b, 's')
		}
		if !ahead {
			b = append(b, " ago"...)
		}
		return b
	}
	return append(b, "just now"...)
}

// appendLocal appends a time of the years 0 to 9999 as the machine's zone has it.
func appendLocal(b []byte, t time.Time) []byte {
	t = t.Local()
	if y := t.Year(); y < 0 || y > 9999 { // over the edge of the calendar by the zone
		return t.AppendFormat(b, "2006-01-02 15:04:05.000 -0700")
	}
	b = append(describe.AppendClock(b, t, ' '), ' ')
	_, offset := t.Zone()
	sign := byte('+')
	if offset < 0 {
		sign, offset = '-', -offset
	}
	hours, minutes := offset/3600, offset/60%60
	return append(b, sign, byte('0'+hours/10), byte('0'+hours%10), byte('0'+minutes/10), byte('0'+minutes%10))
}

// relative returns what appendAge appends.
func relative(t, now time.Time) string { return string(appendAge(nil, t, now)) }

func count(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// appendTimes appends a time as people read it: UTC, local and from now.
func appendTimes(b []byte, unixMs int64, now time.Time) []byte {
	t := time.UnixMilli(unixMs)
	b, ok := describe.AppendTime(b, unixMs)
	if !ok {
		b = strconv.AppendInt(b, unixMs, 10)
		b = append(b, " ms after 1970, year "...)
		return strconv.AppendInt(b, int64(t.UTC().Year()), 10)
	}
	b = append(b, "  (local "...)
	b = append(appendLocal(b, t), ", "...)
	return append(appendAge(b, t, now), ')')
}
