package config

import (
	"cmp"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

// Value is a field of a Config as text: pflag.Value, for flags, variables and
// the file alike. Set leaves the field as it was after an error.
type Value struct {
	kind string
	get  func() string
	set  func(string) error
	// compare compares the field with a value of the kind, where the kind has an order.
	compare func(with string) int
	text    string // given to the last Set that succeeded: a layout's may set the epoch too
}

// String returns the field as text.
func (v *Value) String() string {
	if v.get == nil { // pflag asks a zero value
		return ""
	}
	return v.get()
}

// Set parses s into the field.
func (v *Value) Set(s string) error {
	err := v.set(s)
	if err == nil {
		v.text = s
	}
	return err
}

// Type returns what help shows for a value.
func (v *Value) Type() string { return v.kind }

// IsBoolFlag lets a flag stand without a value.
func (v *Value) IsBoolFlag() bool { return v.kind == "bool" }

// textValue is any kind with a parser and a printer.
func textValue[T any](p *T, kind string, parse func(string) (T, error), print func(T) string) *Value {
	return &Value{
		kind: kind,
		get:  func() string { return print(*p) },
		set: func(s string) error {
			v, err := parse(s)
			if err == nil {
				*p = v
			}
			return err
		},
	}
}

func stringValue(p *string) *Value {
	same := func(s string) string { return s }
	return textValue(p, "string", func(s string) (string, error) { return s, nil }, same)
}

func listValue(p *[]string) *Value {
	return textValue(p, "list", func(s string) ([]string, error) {
		var parts []string // nil for an empty list, as in Default
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); part != "" {
				parts = append(parts, part)
			}
		}
		return parts, nil
	}, func(v []string) string { return strings.Join(v, ",") })
}

// numberValue is a kind that has an order.
func numberValue[T cmp.Ordered](p *T, kind string, parse func(string) (T, error), print func(T) string) *Value {
	v := textValue(p, kind, parse, print)
	v.compare = func(with string) int {
		other, err := parse(with)
		if err != nil {
			panic(fmt.Sprintf("config: bound %q of a %s: %v", with, kind, err))
		}
		return cmp.Compare(*p, other)
	}
	return v
}

func boolValue(p *bool) *Value {
	return textValue(p, "bool", func(s string) (bool, error) {
		v, err := strconv.ParseBool(s)
		if err != nil {
			return false, fmt.Errorf("%q is not a boolean: write true or false", s)
		}
		return v, nil
	}, strconv.FormatBool)
}

func intValue(p *int) *Value {
	return numberValue(p, "int", func(s string) (int, error) {
		v, err := strconv.Atoi(s)
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number", s)
		}
		return v, nil
	}, strconv.Itoa)
}

// modeValue reads permissions in octal, as chmod does.
func modeValue(p *fs.FileMode) *Value {
	return textValue(p, "mode", func(s string) (fs.FileMode, error) {
		v, err := strconv.ParseUint(s, 8, 9)
		if err != nil {
			return 0, fmt.Errorf("%q is not a mode: write permissions in octal, such as 0660", s)
		}
		return fs.FileMode(v), nil
	}, func(m fs.FileMode) string { return fmt.Sprintf("%04o", m) })
}

func durationValue(p *time.Duration) *Value {
	return numberValue(p, "duration", func(s string) (time.Duration, error) {
		v, err := time.ParseDuration(s)
		if err != nil {
			return 0, fmt.Errorf("%q is not a duration: write it with a unit, such as 30s or 250ms", s)
		}
		return v, nil
	}, shortDuration)
}

// shortDuration is d without the zero units that Duration.String adds.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// LayoutValue returns a value that reads a layout as flake.ParseFormat does, and sets
// epoch to the one it names, or to the layout's own.
func LayoutValue(p *flake.Layout, epoch *clock.Millis) *Value {
	return textValue(p, "layout", func(s string) (flake.Layout, error) {
		f, err := flake.ParseFormat(s)
		if err == nil {
			*epoch = clock.Millis(f.Epoch)
		} else if meant := text.Nearest(s, flake.Layouts()); meant != "" {
			err = fmt.Errorf("%w; did you mean %s?", err, meant)
		}
		return f.Layout, err
	}, flake.Layout.String)
}

// SIDsValue returns p as a value that reads first-last.
func SIDsValue(p *lease.SIDRange) *Value {
	return textValue(p, "sids", lease.ParseSIDRange, lease.SIDRange.String)
}

// maxEpoch bounds epochs, so that all flakes have times: near the ends of 64 bits their sum with it would wrap.
const maxEpoch = 1<<48 - 1

// EpochValue returns p as a value that reads a date, an RFC 3339 time or Unix
// milliseconds, and prints the second of these.
func EpochValue(p *clock.Millis) *Value {
	return textValue(p, "time", func(s string) (clock.Millis, error) {
		if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
			if ms < -maxEpoch || ms > maxEpoch {
				return 0, fmt.Errorf("%d is out of range: at most 48 bits of milliseconds", ms)
			}
			return clock.Millis(ms), nil
		}
		for _, form := range []string{time.RFC3339Nano, time.DateOnly} {
			if t, err := time.Parse(form, s); err == nil {
				if t.Nanosecond()%int(time.Millisecond) != 0 {
					return 0, fmt.Errorf("%q has fractions of a millisecond: round it", s)
				}
				return clock.Millis(t.UnixMilli()), nil
			}
		}
		return 0, fmt.Errorf("%q is not a time: write 2024-01-01T00:00:00Z or Unix milliseconds", s)
	}, func(ms clock.Millis) string { return ms.Time().Format(time.RFC3339Nano) })
}
