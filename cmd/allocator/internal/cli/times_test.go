package cli

import (
	"strings"
	"testing"
	"time"
)

func TestRelative(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "just now", -999 * time.Millisecond: "just now", -time.Second: "1 second ago", 59 * time.Second: "in 59 seconds",
		-3 * time.Minute: "3 minutes ago", time.Hour: "in 1 hour", -25 * time.Hour: "1 day ago", -366 * 24 * time.Hour: "1 year ago",
	} {
		if got := Relative(now.Add(d), now); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestTimesFarOff(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for ms, want := range map[int64]string{0: "56 years ago", 1<<48 - 1: "year 10889", 253402300799999: "year 9999"} {
		if got := string(AppendTimes(nil, ms, now)); !strings.Contains(got, want) {
			t.Errorf("%d: got %q, want %q in it", ms, got, want)
		}
	}
}

// The machine's zone, whatever it is, and at the end of the calendar too.
func TestLocal(t *testing.T) {
	defer func(zone *time.Location) { time.Local = zone }(time.Local)
	for _, c := range []struct {
		offset int
		ms     int64
		want   string
	}{
		{9 * 3600, 1469922850259, "2016-07-31 08:54:10.259 +0900"},
		{-(3*3600 + 30*60), 1469922850259, "2016-07-30 20:24:10.259 -0330"},
		{12*3600 + 45*60, 0, "1970-01-01 12:45:00.000 +1245"},
		{3600, 253402300799999, "10000-01-01 00:59:59.999 +0100"},
	} {
		time.Local = time.FixedZone("", c.offset)
		if got := string(AppendLocal(nil, time.UnixMilli(c.ms))); got != c.want {
			t.Errorf("%d: %s, want %s", c.ms, got, c.want)
		}
	}
}

// What a message repeats of an input is short and harmless.
func TestShow(t *testing.T) {
	for in, want := range map[string]string{
		"02MVQDZ9NFSQ0": "02MVQDZ9NFSQ0", "": `""`, "a b": `"a b"`, "\x1b[31mred": `"\x1b[31mred"`, "ß": `"\u00df"`, `"`: `"\""`, "\xff": `"\xff"`,
		strings.Repeat("x", 81): strings.Repeat("x", 80) + "…",
	} {
		if got := Show(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
