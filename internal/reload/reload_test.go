package reload_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/flakelease/allocator/internal/reload"
)

var errBad = errors.New("bad")

type fixture struct {
	*reload.Value[string]
	dir  string
	log  bytes.Buffer
	told []string
}

func (f *fixture) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{dir: t.TempDir()}
	f.write(t, "a", "one")
	f.write(t, "b", "two")
	var err error
	f.Value, err = reload.New(reload.Config[string]{
		What:  "things",
		Files: []string{filepath.Join(f.dir, "a"), "", filepath.Join(f.dir, "b")},
		Parse: func(c [][]byte) (string, error) {
			if len(c) != 3 || c[1] != nil {
				t.Errorf("contents %q", c)
			}
			if bytes.Contains(c[0], []byte("bad")) {
				return "", errBad
			}
			return string(c[0]) + "," + string(c[2]), nil
		},
		Changed: func(s string) { f.told = append(f.told, s) },
		Logger:  slog.New(slog.NewTextHandler(&f.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCheck(t *testing.T) {
	f := newFixture(t)
	expect := func(what, value string, failing bool, reloads int64, logged int) {
		t.Helper()
		if f.Get() != value || f.Failing() != failing || f.Reloads() != reloads || strings.Count(f.log.String(), "\n") != logged {
			t.Errorf("%s: %q, failing %t, %d reloads, log:\n%s", what, f.Get(), f.Failing(), f.Reloads(), &f.log)
		}
	}
	expect("start", "one,two", false, 0, 0)
	f.Check()
	expect("nothing changed", "one,two", false, 0, 0)
	f.write(t, "b", "three")
	f.Check()
	expect("the last file changed", "one,three", false, 1, 1)
	f.write(t, "a", "bad")
	f.Check()
	f.Check()
	expect("a file that cannot be used, seen twice and told once", "one,three", true, 1, 2)
	if err := os.Remove(filepath.Join(f.dir, "a")); err != nil {
		t.Fatal(err)
	}
	f.Check()
	expect("a file that is gone", "one,three", true, 1, 3)
	f.write(t, "a", strings.Repeat("x", 2<<20))
	f.Check()
	expect("a file that has no end", "one,three", true, 1, 4)
	f.write(t, "a", "one")
	f.Check()
	expect("the old one again", "one,three", false, 1, 4)
	f.write(t, "a", "onethree")
	f.write(t, "b", "")
	f.Check()
	expect("the same characters in other files", "onethree,", false, 2, 5)
	if got := strings.Join(f.told, " "); got != "one,three onethree," {
		t.Errorf("told %q", got)
	}
}

func TestNewNeedsFilesThatCanBeUsed(t *testing.T) {
	_, err := reload.New(reload.Config[int]{Files: []string{filepath.Join(t.TempDir(), "none")}})
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	_, err = reload.New(reload.Config[int]{Parse: func([][]byte) (int, error) { return 0, errBad }})
	if !errors.Is(err, errBad) {
		t.Error(err)
	}
}

func TestRunLooksEveryFewSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithTimeout(t.Context(), reload.Every+1)
		defer cancel()
		f.write(t, "a", "four")
		if err := f.Run(ctx); err != nil || f.Get() != "four,two" {
			t.Errorf("%v, %q", err, f.Get())
		}
	})
}
