package offline

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 123_999_999, time.UTC)

func TestParseTime(t *testing.T) {
	for s, want := range map[string]int64{
		"now": 1795176000123, "0": 0, "-1": -1, "1795192588444": 1795192588444, "@0": 0, "@1795192588": 1795192588000, "@-2": -2000,
		"2026-11-20T16:36:28.444Z": 1795192588444, "2026-11-20T18:36:28.444+02:00": 1795192588444, "2026-11-20": 1795132800000,
		"2026-11-20T16:36:28.444999999Z": 1795192588444, "2026-11-20 16:36:28.444Z": 1795192588444, "2026-11-20 18:06:28.444 +0130": 1795192588444,
		"1969-12-31T23:59:59.9999Z": -1, "9223372036854775807": math.MaxInt64, "@9223372036854775": 9223372036854775000, "000": 0,
	} {
		if got, err := parseTime(s, noon); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", s, got, err, want)
		}
	}
	for s, why := range map[string]string{
		"": "is not a time", "yesterday": "is not a time", "2026-11-20T16:36:28": "is not a time", "2026-13-01": "is not a time", "1.5": "is not a time", "+1": "is not a time",
		"1_000": "is not a time", "٣": "is not a time", "@": "digits only", "@1.5": "digits only", "@x": "digits only", "@@1": "digits only", "--1": "is not a time",
		"9223372036854775808": "out of range", "@9223372036854775808": "out of range", "@9223372036854776": "too large", "@18446745777776752": "too large", "now ": "is not a time",
	} {
		if got, err := parseTime(s, noon); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %d, %v, want %q", s, got, err, why)
		}
	}
}

func TestParseCount(t *testing.T) {
	for _, s := range []string{"", "0", "-1", "+1", "1e3", " 1", "1_000", "1.0", "٣", "9223372036854775808", "0x10"} {
		if n, err := cli.ParseCount(s); err == nil {
			t.Errorf("%q: %d", s, n)
		}
	}
	for s, want := range map[string]int64{"1": 1, "007": 7, "9223372036854775807": math.MaxInt64} {
		if n, err := cli.ParseCount(s); err != nil || n != want {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
}

// FuzzParseTime: what is read is the time that other parsers read there, and
// what parse prints of it is read as the same.
func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"now", "@1795192588", "1795192588444", "2026-11-20", "2026-11-20T16:36:28.444Z", "2026-11-20 16:36:28.444 +0000", "-", "@-", "@18446745777776752"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ms, err := parseTime(s, noon)
		if err != nil {
			return
		}
		if seconds, ok := strings.CutPrefix(s, "@"); ok {
			v, err := strconv.ParseInt(seconds, 10, 64)
			if err != nil || ms/1000 != v || ms%1000 != 0 {
				t.Fatalf("%q: %d, %v", s, ms, err)
			}
		}
		if again, err := parseTime(strconv.FormatInt(ms, 10), noon); err != nil || again != ms {
			t.Fatalf("%q: %d, as digits %d, %v", s, ms, again, err)
		}
		if y := time.UnixMilli(ms).UTC().Year(); y < 0 || y > 9999 {
			return
		}
		utc := strings.Fields(string(cli.AppendTimes(nil, ms, noon)))[0]
		local := string(cli.AppendLocal(nil, time.UnixMilli(ms)))
		for _, printed := range []string{utc, local} {
			if again, err := parseTime(printed, noon); err != nil || again != ms {
				t.Fatalf("%q: %d, printed as %q, read as %d, %v", s, ms, printed, again, err)
			}
		}
	})
}

// FuzzParseCount: digits, and nothing else, of a number from 1 on.
func FuzzParseCount(f *testing.F) {
	for _, s := range []string{"1", "0", "-1", "1_0", "99999999999999999999", "٣"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := cli.ParseCount(s)
		want, wantErr := strconv.ParseUint(s, 10, 63) // no sign, no underscore
		if ok := wantErr == nil && want > 0; ok != (err == nil) || ok && uint64(n) != want {
			t.Fatalf("%q: %d, %v", s, n, err)
		}
	})
}
