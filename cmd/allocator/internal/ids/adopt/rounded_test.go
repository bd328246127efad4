package adopt

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// spreadsheet returns an ID as programs show it that keep 15 digits.
func spreadsheet(id string) string {
	if len(id) <= 15 {
		return id
	}
	return id[:15] + strings.Repeat("0", len(id)-15)
}

// javascript returns an ID as JSON.parse and String give it.
func javascript(id string) string {
	f, _ := strconv.ParseFloat(id, 64)
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// column returns an ID as a database shows it whose column is of floating point.
func column(id string) string {
	f, _ := strconv.ParseFloat(id, 64)
	return strconv.FormatInt(int64(f), 10)
}

// TestRounded: no sid of a sample is believed that a program has rounded.
func TestRounded(t *testing.T) {
	for name, tc := range map[string]struct {
		layout string
		round  func(string) string
		one    int // One in so many IDs was rounded.
		cfg    Config
		want   string // what the reason has; "": believed

		sequence uint32 // the greatest
	}{
		"spreadsheet":                   {"twitter", spreadsheet, 1, Config{}, "spreadsheet", 15},
		"spreadsheet, layout is named":  {"twitter", spreadsheet, 1, Config{Format: format(t, "twitter")}, "spreadsheet", 15},
		"spreadsheet, one in ten":       {"twitter", spreadsheet, 10, Config{}, "spreadsheet", 15},
		"spreadsheet, sonyflake":        {"sonyflake", spreadsheet, 1, Config{}, "spreadsheet", 15},
		"spreadsheet, 15 digits":        {"js53", spreadsheet, 1, Config{}, "", 15},
		"javascript":                    {"twitter", javascript, 1, Config{}, "JavaScript", 15},
		"javascript, discord":           {"discord", javascript, 1, Config{}, "JavaScript", 15},
		"javascript, one in ten":        {"twitter", javascript, 10, Config{}, "JavaScript", 15},
		"javascript, 53 bits":           {"js53", javascript, 1, Config{}, "", 15},
		"column, sids low":              {"sonyflake", column, 1, Config{}, "floating-point", 15},
		"column, sids low, said":        {"scalable", column, 1, Config{SIDs: lease.SIDRange{To: 32}}, "", 15},
		"column, sids above":            {"twitter", column, 1, Config{}, "", 15},
		"as they are":                   {"twitter", strings.Clone, 1, Config{}, "", 15},
		"as they are, sids low":         {"sonyflake", strings.Clone, 1, Config{}, "", 15},
		"as they are, of 15 digits":     {"js53", strings.Clone, 1, Config{}, "", 15},
		"as they are, sequence is zero": {"discord", strings.Clone, 1, Config{}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			ids := drawn(t, tc.layout, tc.sequence, 1, 2, 9)
			for i := range ids {
				if i%tc.one == 0 {
					ids[i] = tc.round(ids[i])
				}
			}
			r, err := report(t, tc.cfg, ids...)
			fatal.If(t, err)
			if tc.want == "" && (r.Rounded != "" || r.Plan == nil) {
				t.Errorf("%q, plan %+v", r.Rounded, r.Plan)
			}
			if tc.want != "" && (!strings.Contains(r.Rounded, tc.want) || r.Plan != nil || r.Clean) {
				t.Errorf("%q, plan %+v, clean %v", r.Rounded, r.Plan, r.Clean)
			}
		})
	}
}

// TestRoundedSmall: few IDs are enough, and one that looks so among a thousand is chance.
func TestRoundedSmall(t *testing.T) {
	ids := drawn(t, "twitter", 15, 1, 2, 9)
	round := slices.IndexFunc(ids, func(id string) bool { return !strings.HasSuffix(id, "0") })
	for want, lines := range map[string][]string{
		"1 of 1 IDs have no more than":    {spreadsheet(ids[round])},
		"2 of 2 IDs have no more digits":  {javascript(ids[round]), javascript(ids[round+1])},
		"":                                append(slices.Clone(ids[:1000]), spreadsheet(ids[1001])),
		"12 of 112 IDs have no more than": append(slices.Clone(ids[:100]), each(spreadsheet, ids[100:112])...),
	} {
		r, err := report(t, Config{Format: format(t, "twitter")}, lines...)
		if err != nil || !strings.HasPrefix(r.Rounded, want) || (r.Rounded == "") != (want == "") {
			t.Errorf("%q, want %q, %v", r.Rounded, want, err)
		}
		if b, err := json.Marshal(r); err != nil || !strings.Contains(string(b), `"rounded":"`+want) {
			t.Errorf("%s, %v", b, err)
		}
	}
}

// drawn returns IDs of three sids at times that have nothing regular, as programs draw them.
func drawn(t *testing.T, layout string, sequence uint32, sids ...flake.SID) (out []string) {
	t.Helper()
	f, r := format(t, layout), rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		for _, sid := range sids {
			at := now.Add(-time.Second - time.Duration(r.Int64N(int64(240*time.Hour))))
			id, err := f.Make(at.UnixMilli(), r.Uint32N(sequence+1), sid)
			fatal.If(t, err)
			out = append(out, strconv.FormatInt(int64(id), 10))
		}
	}
	return out
}

func each(f func(string) string, in []string) (out []string) {
	for _, s := range in {
		out = append(out, f(s))
	}
	return out
}
