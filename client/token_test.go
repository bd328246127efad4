package client

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
)

// TestTokenFileIsReadAgain: the token is that of the file, by its size and time of change; while that
// cannot be read, or is empty, the last one is sent.
func TestTokenFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	f := &tokenFile{path: path}
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	write := func(text string, changed time.Time) {
		t.Helper()
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
		fatal.If(t, os.Chtimes(path, changed, changed))
	}
	want := func(what, token string) {
		t.Helper()
		if got, err := f.get(t.Context()); err != nil || got != token {
			t.Errorf("%s: %q, %v, want %q", what, got, err, token)
		}
	}
	if _, err := f.get(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "token file") {
		t.Errorf("no file: %v", err)
	}
	write(" \n", at)
	if _, err := f.get(t.Context()); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("an empty file: %v", err)
	}
	write(" one\n", at)
	want("the first", "one")
	write(" two\n", at)
	want("neither size nor time has changed", "one")
	write(" two\n", at.Add(time.Second))
	want("the time has changed", "two")
	write("three\n", at.Add(time.Second))
	want("the size has changed", "three")
	write("", at.Add(2*time.Second))
	want("empty for a moment", "three")
	fatal.If(t, os.Remove(path))
	want("gone for a moment", "three")
	write("four", at)
	want("back", "four")
}

// TestBearer: a token is sent in the clear only if that was asked for.
func TestBearer(t *testing.T) {
	if (bearer{plaintext: true}).RequireTransportSecurity() || !(bearer{}).RequireTransportSecurity() {
		t.Error("a token needs TLS unless plaintext was asked for")
	}
}
