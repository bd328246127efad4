package cluster

import (
	"bytes"
	"encoding/base64"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/chaos/fatal"
)

func aKey(i byte) []byte { return bytes.Repeat([]byte{i}, 32) }

func inFile(keys ...[]byte) []byte {
	var b []byte
	for _, k := range keys {
		b = append(append(b, base64.StdEncoding.EncodeToString(k)...), '\n')
	}
	return b
}

func TestParseKeys(t *testing.T) {
	file := "# the present one\n  " + string(inFile(aKey(1))) + "\n\r\n# the next\n" + string(inFile(aKey(2)[:16], aKey(3)[:24]))
	got, err := ParseKeys([]byte(file))
	want := [][]byte{aKey(1), aKey(2)[:16], aKey(3)[:24]}
	if err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("got %x, %v", got, err)
	}
	for name, tc := range map[string]struct{ file, want string }{
		"empty":      {"", "no key"},
		"comment":    {"# soon\n", "no key"},
		"not base64": {string(inFile(aKey(1))) + "secret!\n", "line 2 is not base64"},
		"too short":  {string(inFile(aKey(1)[:15])), "line 1 has a key of 15 bytes"},
		"too long":   {string(inFile(append(aKey(1), 0))), "33 bytes"},
		"twice":      {string(inFile(aKey(1), aKey(2), aKey(1))), "line 3 repeats an earlier key"},
		"too many":   {string(inFile(aKey(1), aKey(2), aKey(3), aKey(4), aKey(5), aKey(6), aKey(7), aKey(8), aKey(9))), "9 keys"},
		"no lines":   {strings.Repeat("A", 100_000), "too long"},
	} {
		keys, err := ParseKeys([]byte(tc.file))
		if err == nil || !strings.Contains(err.Error(), tc.want) || keys != nil {
			t.Errorf("%s: got %v, want an error with %q", name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the line: %v", name, err)
		}
	}
}

// Whatever keys follow whatever keys, the ring then holds them with the first as
// primary, and packets can be opened all the while (the race detector watches).
func TestRotate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	keys := [][]byte{aKey(1)}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	fatal.If(t, err)
	stop := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, k := range ring.GetKeys() {
				if len(k) != 32 || k[0] != k[31] {
					t.Errorf("a torn key: %x", k)
				}
			}
		}
	})
	for range 2000 {
		keys = nil
		for _, i := range r.Perm(6)[:1+r.IntN(5)] {
			keys = append(keys, aKey(byte(i+1)))
		}
		fatal.If(t, rotate(ring, keys))
		got := ring.GetKeys()
		if !bytes.Equal(got[0], keys[0]) || len(got) != len(keys) {
			t.Fatalf("got %x, want %x", got, keys)
		}
		for _, k := range keys {
			if !slices.ContainsFunc(got, func(g []byte) bool { return bytes.Equal(g, k) }) {
				t.Fatalf("%x is not among %x", k, got)
			}
		}
	}
	close(stop)
	reading.Wait()
}

// The file is read at the start and again when it changes. Errors name the setting, and a
// file that cannot be used changes nothing.
func TestNewKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	quiet := slog.New(slog.DiscardHandler)
	write := func(file []byte) {
		t.Helper()
		fatal.If(t, os.WriteFile(path, file, 0o600))
	}
	if _, err := NewKeys(path, quiet); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "gossip.key-file: ") {
		t.Errorf("no file: %v", err)
	}
	write([]byte("secret!\n"))
	if _, err := NewKeys(path, quiet); err == nil || !strings.HasPrefix(err.Error(), "gossip.key-file ("+path+"): line 1 is not base64") {
		t.Errorf("no keys: %v", err)
	}
	write(inFile(aKey(2), aKey(1)))
	k, err := NewKeys(path, quiet)
	fatal.If(t, err)
	for _, tc := range []struct {
		file    []byte
		primary byte
		keys    int
		failing bool
	}{
		{inFile(aKey(2), aKey(1)), 2, 2, false},
		{inFile(aKey(3), aKey(2), aKey(1)), 3, 3, false},
		{[]byte("oops"), 3, 3, true},
		{inFile(aKey(4)), 4, 1, false},
	} {
		write(tc.file)
		k.Check()
		if got := k.ring.GetKeys(); !bytes.Equal(got[0], aKey(tc.primary)) || len(got) != tc.keys || k.Failing() != tc.failing {
			t.Errorf("%s: failing %t, keys %x", tc.file, k.Failing(), got)
		}
	}
}
