package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// tree is a module with tests of every outcome.
const tree = `
-- go.mod --
module github.com/flakelease/allocator
go 1.26
-- good/good_test.go --
package good

import "testing"

func TestQuick(t *testing.T)   { t.Log("noise") }
func TestNightly(t *testing.T) { t.Skip("tier nightly: a day") }
func TestFew(t *testing.T)     { t.Log("tier test: 1 seeds; in check 20, in nightly 300") }
func TestParts(t *testing.T) {
	t.Run("a", func(t *testing.T) { t.Skip("tier check: an hour") })
	t.Run("b", func(t *testing.T) { t.Skip("tier check: an hour") })
	t.Run("c", func(t *testing.T) { t.Skip("no terminals") })
}
-- bad/bad_test.go --
package bad

import "testing"

func TestGood(t *testing.T) { t.Log("noise") }
func TestBad(t *testing.T)  { t.Error("it is wrong") }
-- broken/broken_test.go --
package broken

func TestX(t *testing.T) {}
-- empty/empty.go --
package empty
`

// enter makes a module the working directory, and returns what runs gotest in it.
func enter(t *testing.T, module string) (gotest func(want int, args ...string) string) {
	dir := t.TempDir()
	for _, f := range txtar.Parse([]byte(module)).Files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "") // -count=1 would keep all out of the cache
	return func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != want {
			t.Errorf("%q: code %d, want %d\n%s%s", args, code, want, &out, &errs)
		}
		return regexp.MustCompile(` +[0-9.]+m?s\b`).ReplaceAllString(out.String()+errs.String(), " TIME")
	}
}

// busy is a module whose tests fail the first time. The directory of a package has a file for
// each that did.
const busy = `
-- go.mod --
module github.com/flakelease/allocator
go 1.26
-- late/late_test.go --
package late

import (
	"flag"
	"os"
	"testing"
)

var seeds = flag.Int("seeds", 1, "")

func once(t *testing.T, says string) {
	if f, err := os.OpenFile(t.Name(), os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		f.Close()
		t.Error(says)
	}
	if *seeds != 2 {
		t.Error("the second run has other flags")
	}
}

func TestGood(t *testing.T) { t.Log("0 duplicates") }
func TestA(t *testing.T)    { once(t, "not within 2 s") }
func TestB(t *testing.T)    { once(t, "not within 3 s") }
-- worse/worse_test.go --
package worse

import (
	"os"
	"testing"
)

func TestNever(t *testing.T) {
	if f, err := os.OpenFile(os.Getenv("SAYS"), os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		f.Close()
		t.Error(os.Getenv("SAYS"))
		if os.Getenv("SAYS") == "ended" {
			os.Exit(1)
		}
	}
}
-- many/many_test.go --
package many

import "testing"

func TestA(t *testing.T) { t.Error("late") }
func TestB(t *testing.T) { t.Error("late") }
func TestC(t *testing.T) { t.Error("late") }
func TestD(t *testing.T) { t.Error("late") }
-- wrong/wrong_test.go --
package wrong

import "testing"

func TestA(t *testing.T) { t.Error("late") }
`

// TestAgain: tests that fail once pass, and are reported; what always fails does not, nor what
// no load excuses, nor many at once.
func TestAgain(t *testing.T) {
	gotest := enter(t, busy)
	if out := gotest(1, "./late", "-seeds", "2"); strings.Contains(out, "again") {
		t.Errorf("without -again, tests are run again:\n%s", out)
	}
	for _, name := range []string{"TestA", "TestB"} {
		if err := os.Remove(filepath.Join("late", name)); err != nil {
			t.Fatal(err)
		}
	}
	out := gotest(0, "-o", "out", "-again", "./late", "-seeds", "2")
	for _, want := range []string{"not within 2 s", "FAIL TIME  late\n", "again, alone: late TestA TestB\n", "ok TIME  late\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if report := gotest(0, "-report", "out"); report != `failed, and passed when run again, alone, 2 tests:
    2  late                         TestA; TestB
` {
		t.Errorf("the report is\n%s", report)
	}
	if report := gotest(1, "-o", "out", "-again", "./wrong"); !strings.Contains(report, "again, alone: wrong TestA\n") {
		t.Errorf("not run again:\n%s", report)
	}
	if report := gotest(0, "-report", "out"); report != "" {
		t.Errorf("a test that failed twice is reported as one that passed:\n%s", report)
	}
	if out := gotest(1, "-again", "./many"); strings.Contains(out, "again, alone") {
		t.Errorf("four tests are run again:\n%s", out)
	}
	for _, says := range []string{"I1: two IDs", "I4 at 1m33s: given back", "3 duplicates", "an ID came twice", "5 rows were lost", "2 out of order", "WARNING: DATA RACE", "panic: late", "ended"} {
		t.Setenv("SAYS", says)
		if out := gotest(1, "-again", "./worse"); strings.Contains(out, "again, alone") {
			t.Errorf("%q is run again:\n%s", says, out)
		}
	}
	t.Setenv("SAYS", "late")
	gotest(0, "-again", "./worse")
}

// TestLate: tests may have failed since the machine was busy unless they, or the package, say what no
// load excuses. Of those that passed nothing counts but a data race, which is printed wherever it is found.
func TestLate(t *testing.T) {
	line := func(test, text string) event { return event{Action: "output", Test: test, Output: text + "\n"} }
	for text, want := range map[string]bool{
		"not within 2 s": true,
		"99 % were late": true,
		"    testing.go:1712: race detected during execution of test": false,
		"testing: race detected outside of test execution":            false,
		"WARNING: DATA RACE":                                  false,
		"fatal error: concurrent map writes":                  false,
		"panic: runtime error: index out of range":            false,
		"2 duplicates":                                        false,
		"10 duplicates":                                       false,
		"checked  5 IDs: 0 duplicates, 0 out of order":        true,
		"checked  5 IDs: 0 duplicates, 1 out of order":        false,
		"an ID came twice":                                    false,
		"2 of 99 orders share an ID":                          false,
		"3 rows were lost":                                    false,
		"IDs out of order":                                    false,
		"unordered: 3 after 5":                                false,
		"sorted, the IDs are not in the order they were made": false,
		"node-a issued 7, not above 9":                        false,
		"0a1b was issued below 0a1c":                          false,
		"I9: an ID below the watermark":                       false,
		"the I10 of a bus":                                    true,
		"nothing was lossy, and all ordered":                  true,
	} {
		whole := strings.Contains(text, "race detected") || strings.Contains(text, "DATA RACE")
		for test, want := range map[string]bool{"TestBad": want, "TestBad/part": want, "": want, "TestGood": want || !whole} {
			p := &pack{said: map[string]string{}, tiered: map[string]string{}, open: map[string]bool{}}
			for _, e := range []event{
				{Action: "run", Test: "TestGood"}, {Action: "run", Test: "TestBad"}, {Action: "run", Test: "TestBad/part"},
				line("TestBad", "it failed"), line(test, text),
				{Action: "fail", Test: "TestBad/part"}, {Action: "fail", Test: "TestBad"}, {Action: "pass", Test: "TestGood"},
			} {
				p.add(e)
			}
			if got := p.late(); got != want {
				t.Errorf("%q, printed by %q: %v", text, test, got)
			}
			p.add(event{Action: "run", Test: "TestEndless"})
			if p.late() {
				t.Errorf("%q: with a test that did not end it may be run again", text)
			}
		}
	}
	// One package that must not be run again keeps all others from it.
	var out bytes.Buffer
	failed := []failure{{"./a", []string{"TestA"}, true}, {"./b", []string{"TestB"}, false}}
	if passed, err := again(failed, nil, &out, &out, json.NewEncoder(io.Discard)); passed || err != nil || out.Len() > 0 {
		t.Errorf("beside a package that must not be run again: %v, %v, %s", passed, err, &out)
	}
}

// TestRun runs the real go command, whose output it reads.
func TestRun(t *testing.T) {
	gotest := enter(t, tree)
	contains := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
	}

	out := gotest(1, "-o", "new/out", "-count", "1", "./...")
	contains(out, "ok TIME  good\n", "FAIL TIME  bad\n", "it is wrong", "undefined: testing", "FAIL TIME  broken\n")
	if strings.Contains(out, "noise") || strings.Contains(out, "empty") {
		t.Errorf("what passes is printed:\n%s", out)
	}

	report := gotest(0, "-report", "new/out")
	if want := `left to make check, 2 tests:
    2  good                         an hour
left to make nightly, 1 test:
    1  good                         a day
did less than it can, 1 test:
    1  good                         1 seeds; in check 20, in nightly 300
not run here, 1 test:
    1  good                         no terminals
`; report != want {
		t.Errorf("the report is\n%s\nwant\n%s", report, want)
	}

	// What Go has in its cache is reported alike.
	contains(gotest(0, "-o", "out", "./good"), "good\n")
	contains(gotest(0, "-o", "out", "./good"), "ok      cached  good\n")
	if again := gotest(0, "-report", "out"); again != report {
		t.Errorf("out of the cache, the report is\n%s", again)
	}

	contains(gotest(0, "-report", "-each", "1h", "-all", "1h", "-took", "59m", "out"), "the slowest tests:\n", "good TestQuick\n")
	contains(gotest(1, "-report", "-all", "1h", "-took", "61m", "out"), "all of it took")
	if err := os.WriteFile("slow", []byte(`{"Package":"good","Result":"pass","Seconds":3.5}`), 0o600); err != nil {
		t.Fatal(err)
	}
	contains(gotest(1, "-report", "-each", "3s", "slow"), "good took TIME; the limit of a package is TIME")

	contains(gotest(2, "-report", "nowhere"), "no such file")
	gotest(2, "-report", "-nothing")
	if code := run([]string{"-no-such-flag"}, &bytes.Buffer{}, &bytes.Buffer{}); code == 0 {
		t.Error("go test refused its arguments, and gotest ended with 0")
	}
}
