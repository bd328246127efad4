package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// known are the known answers, as far as the command line has to give them.
type known struct {
	Standalone []map[string]any `json:"flake_standalone"`
	Scalable   []map[string]any `json:"flake_scalable"`
	Examples   []map[string]any `json:"doc_examples"`
	ULID       []map[string]any `json:"ulid"`
	UUIDv7     []map[string]any `json:"uuid_v7"`
	Seconds    []struct {
		UnixS int64 `json:"unix_s"`
		TsMs  int64 `json:"ts_ms"`
	} `json:"flake_from_unix_seconds"`
	Monotonic []struct{ Prev, Next_same_ms_plus1, Error string } `json:"ulid_monotonic"`
	BadFlake  []badInput                                         `json:"flake_invalid_strings"`
	BadInt    []badInput                                         `json:"flake_invalid_ints"`
	BadULID   []badInput                                         `json:"ulid_invalid_strings"`
	BadFields []badField                                         `json:"flake_invalid_fields"`
	BadWide   []badField                                         `json:"ulid_invalid_fields"`
	LooseLow  []looseInput                                       `json:"flake_lenient"`
	LooseWide []looseInput                                       `json:"ulid_lenient"`
}

type badInput struct {
	Input   string
	Classes []string
}

type badField struct {
	Field, Layout, Value string
	Classes              []string
}

type looseInput struct {
	Input, Canonical string
	Strict           bool `json:"strict_accepts"`
}

func loadKnown(t *testing.T) (k known) {
	t.Helper()
	b, err := os.ReadFile("../../testdata/vectors/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &k); err != nil {
		t.Fatal(err)
	}
	return k
}

// program runs the program itself, as a process, for as many inputs as there are
// at once; single ones go to allocator.
func program(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.Command("allocator", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// objects runs the program with --format json and returns an object for each line.
func objects(t *testing.T, wantCode int, args ...string) (out []map[string]any) {
	t.Helper()
	code, stdout, stderr := program(t, "", args...)
	if code != wantCode {
		t.Fatalf("%q: exit code %d, want %d; stderr %s", args, code, wantCode, stderr)
	}
	for line := range strings.Lines(stdout) {
		var o map[string]any
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&o); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, o)
	}
	return out
}

// column returns a field of all objects.
func column(list []map[string]any, name string) (out []string) {
	for _, o := range list {
		out = append(out, fmt.Sprint(o[name]))
	}
	return out
}

// TestVectorsThroughTheProgram: each known answer from each form of it.
func TestVectorsThroughTheProgram(t *testing.T) {
	k := loadKnown(t)
	layouts := map[string][]map[string]any{"standalone": k.Standalone, "scalable": k.Scalable}
	for _, e := range k.Examples {
		layout := e["layout"].(string)
		layouts[layout] = append(slices.Clone(layouts[layout]), e)
	}
	number := func(v any) string { // as the known answers have it, in whatever type
		if f, ok := v.(float64); ok {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
		return fmt.Sprint(v)
	}
	compare := func(what string, got []map[string]any, want []map[string]any, names map[string]string) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: %d objects of %d", what, len(got), len(want))
		}
		for i := range want {
			for theirs, ours := range names {
				if v, ok := want[i][theirs]; ok && number(v) != fmt.Sprint(got[i][ours]) {
					t.Errorf("%s %v: %s is %v, want %s", what, want[i], ours, got[i][ours], number(v))
				}
			}
		}
	}
	for layout, list := range layouts {
		for kind, form := range map[string]string{"auto": "base32", "int": "int", "hex": "hex"} {
			got := objects(t, cli.ExitOK, slices.Concat([]string{"parse", "--format", "json", "--layout", layout, "--kind", kind, "--"}, column(list, form))...)
			compare(layout+" from "+form, got, list, map[string]string{
				"base32": "base32", "int": "int", "hex": "hex", "bin": "bin", "bytes_hex": "bytes_hex", "ts_ms": "timestamp_ms",
				"unix_ms": "unix_ms", "time": "time", "randomness": "randomness", "sid": "sid",
			})
		}
	}
	wide := slices.Concat(k.ULID, k.UUIDv7)
	for kind, form := range map[string]string{"auto": "ulid", "uuid": "uuid", "u128": "u128"} {
		got := objects(t, cli.ExitOK, slices.Concat([]string{"parse", "--format", "json", "--kind", kind, "--"}, column(wide, form))...)
		compare("wide from "+form, got, wide, map[string]string{
			"ulid": "ulid", "uuid": "uuid", "u128": "u128", "bytes_hex": "bytes_hex", "unix_ms": "unix_ms", "time": "time", "randomness_hex": "randomness_hex",
		})
	}
	// And each form into each other.
	for _, to := range []string{"ulid", "uuid", "u128"} {
		_, out, _ := program(t, strings.Join(column(wide, "uuid"), "\n"), "parse", "--as", to)
		if want := strings.Join(column(wide, to), "\n") + "\n"; out != want {
			t.Errorf("uuid as %s: %s, want %s", to, out, want)
		}
	}
	for _, s := range k.Seconds {
		_, out, _ := allocator("from-time", "@"+strconv.FormatInt(s.UnixS, 10), "--kind", "flake", "--min")
		if got := must(t, "parse", "--only", "timestamp_ms", strings.TrimSpace(out)); got[0] != strconv.FormatInt(s.TsMs, 10) {
			t.Errorf("%d: %v", s.UnixS, got)
		}
	}
	for _, v := range k.ULID[:20] {
		_, out, errs := allocator("from-time", "--min", "--", number(v["unix_ms"]))
		if want := v["time_chars"].(string) + "0000000000000000\n"; out != want {
			t.Errorf("%v: %s, want %s; %s", v["unix_ms"], out, want, errs)
		}
	}
	for _, m := range k.Monotonic {
		_, ms, _ := allocator("parse", "--only", "unix_ms", m.Prev)
		code, out, errs := allocator("monotonic", "--after", m.Prev, "--at", strings.TrimSpace(ms))
		if m.Error != "" {
			if code != cli.ExitInvalid || out != "" || !strings.Contains(errs, m.Error) {
				t.Errorf("%s: exit code %d, %q, %q", m.Prev, code, out, errs)
			}
		} else if out != m.Next_same_ms_plus1+"\n" {
			t.Errorf("%s: %s, want %s", m.Prev, out, m.Next_same_ms_plus1)
		}
	}
	for kind, list := range map[string][]looseInput{"flake": k.LooseLow, "ulid": k.LooseWide} {
		for _, v := range list {
			code, out, errs := allocator("parse", "--lenient", "--as", kind, v.Input)
			if code != cli.ExitOK || out != v.Canonical+"\n" || (errs == "") != v.Strict {
				t.Errorf("%q: exit code %d, %q, %q", v.Input, code, out, errs)
			}
			if code, _, _ := allocator("validate", v.Input); (code == cli.ExitOK) != v.Strict {
				t.Errorf("%q, strict: exit code %d", v.Input, code)
			}
		}
	}
}

// TestInvalidThroughTheProgram: every class of mistake, by its name.
func TestInvalidThroughTheProgram(t *testing.T) {
	k := loadKnown(t)
	for kind, list := range map[string][]badInput{"flake": k.BadFlake, "int": k.BadInt, "ulid": k.BadULID} {
		var in []string
		for _, v := range list {
			in = append(in, v.Input)
		}
		for _, command := range []string{"parse", "validate"} {
			got := objects(t, cli.ExitInvalid, slices.Concat([]string{command, "--format", "json", "--kind", kind, "--"}, in)...)
			if len(got) != len(list) {
				t.Fatalf("%s: %d objects of %d", kind, len(got), len(list))
			}
			for i, v := range list {
				fault, _ := got[i]["error"].(map[string]any)
				if class, _ := fault["class"].(string); got[i]["input"] != v.Input || !slices.Contains(v.Classes, class) {
					t.Errorf("%s %s: %v, want %q with one of %v", command, kind, got[i], v.Input, v.Classes)
				}
			}
		}
		// As text, and of each alone: no result and the class on stderr.
		for _, v := range list {
			code, out, errs := allocator("parse", "--kind", kind, "--", v.Input)
			if code != cli.ExitInvalid || out != "" || !slices.ContainsFunc(v.Classes, func(c string) bool { return strings.Contains(errs, ": "+c+": ") }) {
				t.Errorf("%q: exit code %d, %q, %q, want one of %v", v.Input, code, out, errs, v.Classes)
			}
		}
	}
	for _, f := range slices.Concat(k.BadFields, k.BadWide) {
		layout := f.Layout
		if layout == "" {
			layout = "scalable"
		}
		flakes := []string{"--kind", "flake", "--layout", layout}
		var args []string
		want := cli.ExitInvalid
		switch f.Field {
		case "sid":
			args, want = append([]string{"new", "--sid=" + f.Value}, flakes...), cli.ExitUsage
		case "entropy_size":
			if f.Value == "0" {
				continue // ours, and always +1
			}
			args, want = append([]string{"monotonic", "--entropy", f.Value}, flakes...), cli.ExitUsage
		case "unix_s":
			args = append(flakes, "from-time", "@"+f.Value)
		case "unix_ms":
			args = []string{"from-time", "--", f.Value}
			if slices.ContainsFunc(k.BadFields, func(b badField) bool { return b.Value == f.Value }) {
				args = append(flakes, args...)
			}
		case "u128", "uuid":
			args = []string{"parse", "--kind", f.Field, f.Value}
		case "bytes_hex":
			args = []string{"parse", "--kind", "hex", f.Value}
		}
		if args[0] == "--kind" { // the command goes first
			args = append(slices.Clone(args[len(flakes):len(flakes)+1]), append(slices.Clone(flakes), args[len(flakes)+1:]...)...)
		}
		code, out, errs := allocator(args...)
		named := slices.ContainsFunc(f.Classes, func(c string) bool { return strings.Contains(errs, c) }) ||
			f.Value == "-1" && f.Field == "sid" // not even a number of a sid's type
		if code != want || out != "" || !named {
			t.Errorf("%q: exit code %d, want %d; %q, %q, want one of %v", args, code, want, out, errs, f.Classes)
		}
	}
	// A time out of range is an invalid input in JSON, too.
	got := objects(t, cli.ExitInvalid, "from-time", "281474976710656", "--format", "json")
	if len(got) != 1 || fmt.Sprint(got[0]["input"], got[0]["error"].(map[string]any)["class"]) != "281474976710656time_overflow" {
		t.Errorf("%v", got)
	}
}
