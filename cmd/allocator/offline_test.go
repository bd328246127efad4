package main

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
)

// must runs a command and returns its words.
func must(t *testing.T, args ...string) []string {
	t.Helper()
	code, out, errs := allocator(args...)
	if code != cli.ExitOK || errs != "" {
		t.Fatalf("%q: exit code %d, stderr %q", args, code, errs)
	}
	return strings.Fields(out)
}

// No flake is printed twice by one command, up to the last one there is.
func TestFlakesOfOneCommandDiffer(t *testing.T) {
	for _, c := range []struct {
		args string
		n    int
	}{
		{"from-time 1795192588444 32768 --kind flake --sid 3", 32768},
		{"from-time 1795192588444 1024 --kind flake --layout fleet --sid 1023", 1024},
		{"new 20000 --kind flake", 20000},
		{"new 5000 --kind flake --layout fleet", 5000}, // more than a millisecond has: it waits
		{"new 20000 --kind flake --layout standalone", 20000},
	} {
		ids := must(t, strings.Fields(c.args)...)
		if different := slices.Compact(slices.Sorted(slices.Values(ids))); len(ids) != c.n || len(different) != c.n {
			t.Errorf("%s: %d IDs, %d different", c.args, len(ids), len(different))
		}
	}
	code, out, errs := allocator("from-time", "1795192588444", "32769", "--kind", "flake")
	if code != cli.ExitUsage || out != "" || !strings.Contains(errs, "a sid has 32768 flakes in 1ms of layout scalable") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}

// A flag that would do nothing is refused, and so are two that contradict each
// other.
func TestFlagsThatDoNotGoTogether(t *testing.T) {
	for args, why := range map[string]string{
		"new --sid 3":                                               "--sid applies to flakes only: add --kind flake",
		"new --kind uuid --layout fleet":                            "--layout applies to flakes only",
		"monotonic --entropy 2":                                     "--entropy applies to flakes only",
		"from-time now --epoch 2020-01-01":                          "--epoch applies to flakes only",
		"new --as int":                                              "a ulid can be printed as ulid, uuid, u128, bytes_hex",
		"new --kind flake --as uuid":                                "a flake can be printed as flake, int, hex, bin, bytes_hex",
		"new 3 --count 3":                                           "N is given twice",
		"from-time --min now 3":                                     "omit N",
		"from-time --min --max now":                                 "none of the others can be",
		"from-time --min --kind flake --sid 3 now":                  "omit --sid",
		"from-time yesterday":                                       "TIME: \"yesterday\" is not a time",
		"monotonic --kind uuid":                                     `"uuid" is none of ulid, flake`,
		"monotonic --after 02MVQY54W65P0":                           "--after 02MVQY54W65P0 is no ulid",
		"monotonic --kind flake --after 01ARZ3NDEKTSV4RRFFQ69G5FAV": "is no flake",
		"monotonic --at soon":                                       "--at: \"soon\" is not a time",
		"parse --as ulid --only time x":                             "none of the others can be",
		"parse --as ulid --addr 127.0.0.1:1 x":                      "give one or the other",
		"new --kind flake --sid -1":                                 "invalid argument",

		// An empty value is a variable that was not set: to go on without it
		// would undo the order that was asked for.
		"new --count=":                    "N is \"\"",
		"get --addr 127.0.0.1:1 --after=": "--after \"\": it is empty",
		"monotonic --after=":              "--after \"\": it is empty",
		"monotonic --at=":                 "--at: \"\" is not a time",
		"get --timeout 0s":                "--timeout is 0s",
		"from-time -1":                    "Write -- in front of a number below 0",

		// Near the ends of 64 bits times would wrap.
		"parse --epoch 9223372036854775807 7ZZZZZZZZZZZZ":  "out of range",
		"parse --epoch -9223372036854775808 7ZZZZZZZZZZZZ": "out of range",
		"monotonic --kind flake --epoch 281474976710656":   "out of range",

		// Cobra would print help, and succeed.
		"help bogus":       "unknown command \"bogus\" for \"allocator\"",
		"help admin bogus": "unknown command \"bogus\" for \"allocator admin\"",
		"completion bahs":  "unknown command \"bahs\"",
	} {
		code, out, errs := allocator(strings.Fields(args)...)
		if code != cli.ExitUsage || out != "" || !strings.Contains(errs, why) {
			t.Errorf("%s: exit code %d, %q, %q, want %q", args, code, out, errs, why)
		}
	}
}

// The help of every command that makes IDs here says what they are not; their
// output does not.
func TestOfflineIsSaid(t *testing.T) {
	for _, command := range []string{"new", "monotonic", "from-time"} {
		if help := strings.Join(must(t, command, "--help"), " "); !strings.Contains(help, "NOT COORDINATED") || !strings.Contains(help, "allocator get") {
			t.Errorf("%s --help: %s", command, help)
		}
	}
}

// --only and --as print a line for each ID, and what an ID does not have is an
// error of that ID alone.
func TestOneField(t *testing.T) {
	ids := []string{"02MVQY54W65P0", "01M7WXJ6MTE21AH8MP5FJ0GE7N", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"}
	for _, c := range []struct{ flag, text, json string }{
		{"--only=unix_ms", "1795192588444 1795193117338 1469922850259 281474976710655", `{"unix_ms":1795192588444}`},
		{"--only=time", "2026-11-20T16:36:28.444Z 2026-11-20T16:45:17.338Z 2016-07-30T23:54:10.259Z no_form", `{"time":"2026-11-20T16:36:28.444Z"}`},
		{"--only=sid", "0 2 not_v7 not_v7", `{"sid":0}`},
		{"--only=kind", "flake ulid ulid ulid", `{"kind":"flake"}`},
		{"--only=timestamp_ms", "91125388444 91125917338 not_v7 not_v7", `{"timestamp_ms":91125388444}`},
		{"--only=randomness", "6326 1045 not_v7 not_v7", `{"randomness":6326}`},
		{"--only=randomness_hex", "no_form 7082a8a2962be40838f5 d6764c61efb99302bd5b ffffffffffffffffffff", `{"input":"02MVQY54W65P0","error":{"class":"no_form","message":"describe: the ID has no such form: a flake has no randomness_hex: ask for randomness"}}`},
		{"--as=uuid", "no_form 01a1f9d9-1a9a-7082-a8a2-962be40838f5 01563e3a-b5d3-d676-4c61-efb99302bd5b ffffffff-ffff-ffff-ffff-ffffffffffff", ""},
		{"--as=flake", "02MVQY54W65P0 02MVRE9MT10N2 not_v7 not_v7", `{"id":"02MVQY54W65P0"}`},
		{"--as=bytes_hex", "015377f149c316c0 01a1f9d91a9a7082a8a2962be40838f5 01563e3ab5d3d6764c61efb99302bd5b ffffffffffffffffffffffffffffffff", `{"id":"015377f149c316c0"}`},
	} {
		for i, want := range strings.Fields(c.text) {
			_, out, errs := allocator("parse", c.flag, ids[i])
			if out != want+"\n" && !(out == "" && strings.HasPrefix(errs, "allocator: "+ids[i]+": "+want+": ")) {
				t.Errorf("%s of %s: %q, %q, want %s", c.flag, ids[i], out, errs, want)
			}
		}
		if _, out, _ := allocator("parse", "--format=json", c.flag, ids[0]); c.json != "" && out != c.json+"\n" {
			t.Errorf("%s: %s, want %s", c.flag, out, c.json)
		}
	}
}

// On a terminal the two streams are one: a message takes the place of its ID.
func TestMessagesStandInOrder(t *testing.T) {
	var both strings.Builder
	run(t.Context(), []string{"parse", "--only", "kind", "02MVQY54W65P0", "bad", "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, nil, &both, &both, nil)
	lines := strings.Split(both.String(), "\n")
	if len(lines) != 4 || lines[0] != "flake" || !strings.HasPrefix(lines[1], "allocator: bad: ") || lines[2] != "ulid" {
		t.Errorf("%q", lines)
	}
}

// stream is one ID again and again, as a filter is sent them.
type stream struct {
	line string
	left int // lines
}

func (s *stream) Read(p []byte) (int, error) {
	n := min(len(p)/len(s.line), s.left)
	if n == 0 {
		return 0, io.EOF
	}
	for i := range n {
		copy(p[i*len(s.line):], s.line)
	}
	s.left -= n
	return n * len(s.line), nil
}

// TestStreamsHardlyAllocate holds the filters to what makes them quick: a text
// for the input is all that they allocate for an ID.
func TestStreamsHardlyAllocate(t *testing.T) {
	for _, args := range []string{"parse", "parse --format json", "parse --only time", "parse --as uuid", "validate", "validate --format json"} {
		const n = 10_000
		of := func(ids int) float64 {
			return testing.AllocsPerRun(3, func() {
				if code := run(t.Context(), strings.Fields(args), &stream{"01M7WXJ6MTE21AH8MP5FJ0GE7N\n", ids}, io.Discard, os.Stderr, nil); code != cli.ExitOK {
					t.Fatal(code)
				}
			})
		}
		if allocs := of(2*n) - of(n); allocs > 1.1*n { // without those of a command's start
			t.Errorf("%s: %.0f allocations for %d IDs", args, allocs, n)
		}
	}
	var b []byte
	id, err := describe.Parse("01M7WXJ6MTE21AH8MP5FJ0GE7N", describe.Auto, flake.Default)
	fatal.If(t, err)
	if allocs := testing.AllocsPerRun(100, func() { b = describe.AppendJSON(b[:0], id, flake.Default) }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}
