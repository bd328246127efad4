package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/describe"
)

// PrintLine writes v as JSON on a line of its own.
func PrintLine(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// NoSniff has browsers take what h answers as what its Content-Type says.
func NoSniff(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}

// units are what a span of time is counted in, the largest first.
var units = []struct {
	length time.Duration
	name   string
}{
	{365 * 24 * time.Hour, "year"}, {24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"},
	{time.Second, "second"},
}

// AppendAge appends how far t lies from now, in the largest unit that fits, such
// as "3 minutes ago" or "in 1 day".
func AppendAge(b []byte, t, now time.Time) []byte {
	d := t.Sub(now) // at most 292 years
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

// AppendLocal appends a time of the years 0 to 9999 as the machine's zone has it.
func AppendLocal(b []byte, t time.Time) []byte {
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

// Relative returns what appendAge appends.
func Relative(t, now time.Time) string { return string(AppendAge(nil, t, now)) }

// AppendTimes appends a time as people read it: UTC, local and from now.
func AppendTimes(b []byte, unixMs int64, now time.Time) []byte {
	t := time.UnixMilli(unixMs)
	b, ok := describe.AppendTime(b, unixMs)
	if !ok {
		b = strconv.AppendInt(b, unixMs, 10)
		b = append(b, " ms after 1970, year "...)
		return strconv.AppendInt(b, int64(t.UTC().Year()), 10)
	}
	b = append(b, "  (local "...)
	b = append(AppendLocal(b, t), ", "...)
	return append(AppendAge(b, t, now), ')')
}

// chunk is how much is read and written at a time, in bytes: what a pipe holds.
const BufferSize = 64 << 10

// sink is stdout until ctx ends.
type sink struct {
	ctx context.Context
	out io.Writer
}

func (s sink) Write(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, ErrInterrupted
	}
	return s.out.Write(p)
}

// Output returns stdout for a command that may print many lines. It is to be
// flushed.
func (a *App) Output(ctx context.Context) *bufio.Writer {
	return bufio.NewWriterSize(sink{ctx, a.Out}, BufferSize)
}

// Terminal reports whether r is a terminal, where a person would have to type the
// input. /dev/null counts as one: it has no ID either.
func Terminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// OutTerminal returns stdout if it is a terminal, else nil.
func (a *App) OutTerminal() *os.File {
	if r, ok := a.Out.(*recorder); ok {
		if f, ok := r.out.(*os.File); ok && Terminal(f) && f.Name() != os.DevNull {
			return f
		}
	}
	return nil
}

// shown is how much of an invalid input a message for people repeats, in bytes.
const shown = 80

// Show returns an input as a message may repeat it: short, and with nothing in
// it that a terminal would obey.
func Show(input string) string {
	cut := ""
	if len(input) > shown {
		input, cut = input[:shown], "…"
	}
	if input == "" || strings.ContainsFunc(input, func(c rune) bool {
		return c <= ' ' || c > '~' || c == '"' || c == '\\'
	}) {
		return strconv.QuoteToASCII(input) + cut
	}
	return input + cut
}

// Ended is how a command ends that has printed to out: with err, else with that
// of writing the rest, else with exit code 1 if an input was invalid.
func Ended(out *bufio.Writer, err error, bad bool) error {
	if flushErr := out.Flush(); err == nil {
		err = flushErr
	}
	if err == nil && bad {
		return ErrInvalid
	}
	return err
}

// OrDash returns s, or a dash for an empty cell of a table.
func OrDash(s string) string { return cmp.Or(s, "-") }
