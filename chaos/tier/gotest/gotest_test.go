package main

import (
	"bytes"
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
