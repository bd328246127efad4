package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// known are the known answers about what is invalid.
type known struct {
	BadFlake  []badInput `json:"flake_invalid_strings"`
	BadInt    []badInput `json:"flake_invalid_ints"`
	BadULID   []badInput `json:"ulid_invalid_strings"`
	BadFields []badField `json:"flake_invalid_fields"`
	BadWide   []badField `json:"ulid_invalid_fields"`
}

type badInput struct {
	Input   string
	Classes []string
}

type badField struct {
	Field, Layout, Value string
	Classes              []string
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
