package reload

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
)

var errBad, errOdd = errors.New("bad"), errors.New("odd")

type fixture struct {
	*Value[string]
	dir  string
	log  bytes.Buffer
	told []string
}

func (f *fixture) write(t *testing.T, name, content string) {
	t.Helper()
	fatal.If(t, os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600))
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{dir: t.TempDir()}
	f.write(t, "a", "one")
	f.write(t, "b", "two")
	var err error
	f.Value, err = New(Config[string]{
		What:  "things",
		Files: []File{{Name: "the.a", Path: filepath.Join(f.dir, "a")}, {}, {Name: "the.b", Path: filepath.Join(f.dir, "b")}},
		Parse: func(c [][]byte) (string, error) {
			if len(c) != 3 || c[1] != nil {
				t.Errorf("contents %q", c)
			}
			if bytes.Contains(c[0], []byte("bad")) {
				return "", errBad
			}
			return string(c[0]) + "," + string(c[2]), nil
		},
		Problem: func(s string) error {
			if strings.Contains(s, "odd") {
				return errOdd
			}
			return nil
		},
		Changed: func(s string) { f.told = append(f.told, s) },
		Stale:   func(error) { f.told = append(f.told, "stale") }, StaleAfter: time.Minute,
		Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
	})
	fatal.If(t, err)
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
	fatal.If(t, os.Remove(filepath.Join(f.dir, "a")))
	f.Check()
	expect("a file that is gone", "one,three", true, 1, 3)
	f.write(t, "a", strings.Repeat("x", 2<<20))
	f.Check()
	expect("a file that has no end", "one,three", true, 1, 4)
	f.write(t, "a", "one")
	f.Check()
	expect("the old one again, which is told", "one,three", false, 1, 5)
	if !strings.Contains(f.log.String(), "files are usable again") {
		t.Errorf("the log does not say that the problem is over:\n%s", &f.log)
	}
	f.write(t, "a", "onethree")
	f.write(t, "b", "")
	f.Check()
	expect("the same characters in other files", "onethree,", false, 2, 6)
	f.write(t, "b", "odd")
	f.Check()
	f.Check()
	expect("a part that is ignored: used, and reported once", "onethree,odd", true, 3, 8)
	f.write(t, "b", "even")
	f.Check()
	expect("and corrected", "onethree,even", false, 4, 9)
	if got := strings.Join(f.told, " "); got != "one,three onethree, onethree,odd onethree,even" {
		t.Errorf("told %q", got)
	}
}

// What is not a regular file is refused at once, even if opening or reading it would block.
func TestOtherThanRegularFiles(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.dir, "a")
	for want, replace := range map[string]func() error{
		"has mode p":  func() error { return syscall.Mkfifo(path, 0o600) },
		"a directory": func() error { return os.Mkdir(path, 0o700) },
		"has mode D":  func() error { return os.Symlink("/dev/zero", path) },
	} {
		fatal.If(t, errors.Join(os.RemoveAll(path), replace()))
		f.log.Reset()
		f.Check()
		if !f.Failing() || f.Get() != "one,two" || !strings.Contains(f.log.String(), want) {
			t.Errorf("%s: failing %t, log:\n%s", want, f.Failing(), &f.log)
		}
	}
}

// A file system that hangs: each check ends in time, a stop ends at once, no second read is
// started, and the result of the old read does not count when it finally comes.
func TestHangingFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		hung := make(chan contents, 1)
		f.files.pending = hung
		f.Check()
		if !f.Failing() || f.Get() != "one,two" || f.files.pending != hung {
			t.Errorf("failing %t, value %q", f.Failing(), f.Get())
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { _ = f.Run(ctx); close(ended) }()
		time.Sleep(Every + time.Second) // Run waits for the file system
		cancel()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("Run did not end with its context")
		}
		f.write(t, "a", "new")
		hung <- contents{files: [][]byte{[]byte("outdated"), nil, []byte("two")}}
		f.Check()
		if f.Failing() || f.Get() != "new,two" {
			t.Errorf("failing %t, value %q", f.Failing(), f.Get())
		}
	})
}

// Files that are not usable for too long are reported once, and what was there before
// counts again when it can be read.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		path := filepath.Join(f.dir, "a")
		check := func(after time.Duration, told ...string) {
			t.Helper()
			time.Sleep(after)
			f.Check()
			if !slices.Equal(f.told, told) {
				t.Errorf("told %q, want %q", f.told, told)
			}
		}
		check(time.Hour) // usable all the time
		fatal.If(t, os.Remove(path))
		check(time.Minute)
		check(time.Second, "stale")
		check(time.Hour, "stale")
		f.write(t, "a", "bad") // readable, and worth nothing
		check(time.Second, "stale")
		f.write(t, "a", "one")
		check(time.Second, "stale", "one,two")
		if f.Failing() {
			t.Error("still failing")
		}
		check(time.Hour, "stale", "one,two")
	})
}

// Half a file does not count: it is read again until nobody writes.
func TestFileBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.write(t, "a", "") // truncated, and written after the first read
		time.AfterFunc(settleTime/2, func() { f.write(t, "a", "whole") })
		f.Check()
		if f.Get() != "one,two" || f.Failing() || f.log.Len() > 0 {
			t.Errorf("value %q, failing %t, log:\n%s", f.Get(), f.Failing(), &f.log)
		}
		f.Check()
		if f.Get() != "whole,two" {
			t.Errorf("value %q", f.Get())
		}
	})
}

// Reload does not wait for the next interval.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // less than Every
		defer cancel()
		f.write(t, "a", "four")
		f.Reload()
		f.Reload()
		if err := f.Run(ctx); err != nil || f.Get() != "four,two" {
			t.Errorf("%v, %q", err, f.Get())
		}
	})
}

func TestNewNeedsFilesThatCanBeUsed(t *testing.T) {
	_, err := New(Config[int]{Files: []File{{Name: "tls.cert", Path: filepath.Join(t.TempDir(), "none")}}})
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "tls.cert: open /") {
		t.Error(err)
	}
	_, err = New(Config[int]{Parse: func([][]byte) (int, error) { return 0, errBad }})
	if !errors.Is(err, errBad) {
		t.Error(err)
	}
}

func TestRunLooksEveryFewSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithTimeout(t.Context(), Every+time.Second)
		defer cancel()
		f.write(t, "a", "four")
		if err := f.Run(ctx); err != nil || f.Get() != "four,two" {
			t.Errorf("%v, %q", err, f.Get())
		}
	})
}

// TestExposedFiles: a file that others may read or write, and should not, is used, and the log says
// so: at the start, and once when it becomes so.
func TestExposedFiles(t *testing.T) {
	for _, tc := range []struct {
		mode            os.FileMode
		secret, trusted string // to whom, as logged
	}{
		{0o600, "", ""}, {0o440, "", ""}, {0o644, "others", ""}, {0o666, "others", "others"}, {0o660, "group", "group"}, {0o604, "others", ""},
	} {
		path := filepath.Join(t.TempDir(), "file")
		for want, file := range map[*string]File{
			&tc.secret: {Secret: true}, &tc.trusted: {Trusted: true}, new(string): {},
		} {
			file.Name, file.Path = "the.file", path
			set := func(mode os.FileMode) {
				t.Helper()
				fatal.If(t, errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chmod(path, mode)))
			}
			var log bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&log, nil))
			logged := func(when string, times int) {
				t.Helper()
				if *want == "" {
					times = 0
				}
				if n := strings.Count(log.String(), "setting=the.file"); n != times || n > 0 && !strings.Contains(log.String(), "to="+*want+"\n") {
					t.Errorf("mode %o, %+v, %s: logged\n%s", tc.mode, file, when, &log)
				}
				log.Reset()
			}
			cfg := Config[string]{
				Files:  []File{{}, file},
				Parse:  func(c [][]byte) (string, error) { return string(c[1]), nil },
				Logger: logger,
			}
			set(tc.mode)
			if _, err := New(cfg); err != nil {
				t.Fatal(err)
			}
			logged("at the start", 1)
			if _, err := ReadFile(file, logger); err != nil {
				t.Fatal(err)
			}
			logged("read once", 1)
			set(0o600)
			v, err := New(cfg)
			fatal.If(t, err)
			set(tc.mode)
			v.Check()
			v.Check()
			logged("changed", 1)
			set(0o600)
			v.Check()
			set(tc.mode)
			v.Check()
			logged("corrected and changed again", 1)
		}
	}
}
