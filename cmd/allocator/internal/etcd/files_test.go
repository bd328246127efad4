package etcd

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Files that are there are kept: certificates while they are valid, and a snapshot in any case.
func TestFilesAreKept(t *testing.T) {
	dir := t.TempDir()
	pki, backup := filepath.Join(dir, "pki"), filepath.Join(dir, "backup.db")
	fatal.If(t, os.WriteFile(backup, []byte("of yesterday"), 0o600))
	certs := []string{"certs", "--hosts", "10.0.0.1,10.0.0.2", "--out", pki}
	for _, tc := range []struct {
		words []string
		code  int
		says  string
	}{
		{certs, 0, "valid for 365 days"},
		{certs, 0, "all 2 hosts already, the first until 20"},
		{[]string{"snapshot", backup, "--etcd.endpoints", "http://127.0.0.1:1"}, cli.ExitUsage, "backup.db exists"},
	} {
		var out bytes.Buffer
		code := cli.Run(t.Context(), tc.words, strings.NewReader(""), &out, &out, nil, "", Command)
		if code != tc.code || !strings.Contains(out.String(), tc.says) {
			t.Errorf("%q: code %d, %s", tc.words, code, out.String())
		}
	}
	if text, err := os.ReadFile(backup); err != nil || string(text) != "of yesterday" {
		t.Errorf("%s, %v", text, err)
	}
}

// database returns the database of an etcd that has the space "ids", and that asks who calls.
func database(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	etcd, err := etcdserver.Start(t.Context(), etcdserver.Alone{Dir: dir, NoSync: true})
	fatal.If(t, err)
	defer etcd.Close()
	dial := etcdstore.Config{Endpoints: []string{etcd.Endpoint()}}
	client, err := etcdstore.Dial(dial)
	fatal.If(t, err)
	defer client.Close()
	store, err := etcdstore.New(client, "allocator", "ids")
	fatal.If(t, err)
	space := lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}
	if _, _, err := store.Init(t.Context(), space, 1); err != nil {
		t.Fatal(err)
	}
	g, err := etcdstore.OpenGroup(dial)
	fatal.If(t, err)
	defer g.Close()
	fatal.If(t, g.Grant(t.Context(), "ids", "/allocator/ids/"))
	etcd.Stop()
	db, err := os.ReadFile(filepath.Join(dir, "member", "snap", "db"))
	fatal.If(t, err)
	return db
}

// A file is a snapshot that can be restored, or the command says what is wrong with it. Nothing stays behind.
func TestVerify(t *testing.T) {
	db := database(t)
	summed := func(data []byte) []byte {
		sum := sha256.Sum256(data)
		return slices.Concat(data, sum[:])
	}
	whole := summed(db)
	changed := bytes.Clone(whole)
	changed[len(db)/2]++
	damaged := bytes.Clone(db)
	for page := 2 * 4096; page < len(db); page += 4096 {
		damaged[page+3]++ // Each page says that it is another one.
	}
	circle := bytes.Clone(db) // Each leaf has a child, which is itself.
	for page := 2 * 4096; page < len(db); page += 4096 {
		if flags := binary.NativeEndian.Uint16(circle[page+8:]); flags == 2 {
			binary.NativeEndian.PutUint16(circle[page+8:], 1)
			for i := range int(binary.NativeEndian.Uint16(circle[page+10:])) {
				binary.NativeEndian.PutUint64(circle[page+16+16*i+8:], uint64(page/4096))
			}
		}
	}
	const fits, restored = "its checksum is right", `a member starts from it, and has space "ids": era 1, records of 0 sids`
	for _, tc := range []struct {
		name string
		file []byte // nil: there is none
		more string // flags
		code int
		says []string
	}{
		{"a snapshot", whole, "--space ids", cli.ExitOK, []string{fits, restored}},
		{"in JSON", whole, "--space ids --format json", cli.ExitOK, []string{`"checked":true`, `"space":"ids"`}},
		{"without a member", whole, "--restore=false", cli.ExitOK, []string{fits}},
		{"a copy of a database", db, "--space ids", cli.ExitOK, []string{"it has no checksum", restored}},
		{"of another space", whole, "", cli.ExitInvalid, []string{`has no space "default" under root "allocator"`}},
		{"of another root", whole, "--space ids --root other", cli.ExitInvalid, []string{`under root "other"`}},
		{"truncated", whole[:len(whole)-100], "", cli.ExitInvalid, []string{"is no snapshot of etcd, or is truncated"}},
		{"truncated before a checksum", whole[:len(db)-4096+32], "", cli.ExitInvalid, []string{"the checksum in"}},
		{"truncated at a page", db[:len(db)-4096], "", cli.ExitInvalid, []string{"or is damaged: it ends after"}},
		{"damaged", damaged, "", cli.ExitInvalid, []string{"or is damaged: page"}},
		{"a page below itself", circle, "", cli.ExitInvalid, []string{"or is damaged: page"}},
		{"changed", changed, "", cli.ExitInvalid, []string{"the checksum in"}},
		{"zeros", summed(make([]byte, 8192)), "", cli.ExitInvalid, []string{"is no database of etcd"}},
		{"a short file", []byte("{}"), "", cli.ExitInvalid, []string{"is no snapshot of etcd"}},
		{"no file", nil, "", cli.ExitUsage, []string{"no such file"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file, temporary := filepath.Join(t.TempDir(), "backup.db"), t.TempDir()
			t.Setenv("TMPDIR", temporary)
			if tc.file != nil {
				fatal.If(t, os.WriteFile(file, tc.file, 0o600))
			}
			if strings.HasPrefix(tc.says[0], "or is damaged") { // A restore of it ends with the same, and not with a panic.
				err := etcdserver.Restore(file, false, member.Data{}, temporary)
				if err == nil || !strings.Contains(err.Error(), tc.says[0]) {
					t.Errorf("it is restored: %v", err)
				}
			}
			var out bytes.Buffer
			words := append([]string{"verify", file}, strings.Fields(tc.more)...)
			code := cli.Run(t.Context(), words, strings.NewReader(""), &out, &out, nil, "", Command)
			if code != tc.code {
				t.Errorf("code %d, want %d: %s", code, tc.code, out.String())
			}
			for _, part := range tc.says {
				if !strings.Contains(out.String(), part) {
					t.Errorf("it says %q, without %q", out.String(), part)
				}
			}
			if left, err := os.ReadDir(temporary); len(left) > 0 || err != nil {
				t.Errorf("it leaves %v behind, %v", left, err)
			}
		})
	}
}

// TestVerifyNowhere: without a directory to write to, as in a container whose root is read-only, it says which to set.
func TestVerifyNowhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup.db")
	fatal.If(t, os.WriteFile(file, database(t), 0o600))
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	var out bytes.Buffer
	if code := cli.Run(t.Context(), []string{"verify", file}, strings.NewReader(""), &out, &out, nil, "", Command); code == cli.ExitOK ||
		!strings.Contains(out.String(), "set TMPDIR to one that can be written") {
		t.Errorf("code %d: %s", code, out.String())
	}
}

// Whatever the heads of pages say, a snapshot is read or refused. It is refused, too, if keys are not in order, for
// bbolt reads it in goroutines whose panic would end the process.
func TestVerifyDamage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup.db")
	opens := func(db []byte) error {
		fatal.If(t, os.WriteFile(file, db, 0o600))
		_, _, _, err := etcdserver.Open(file)
		return err
	}
	etcds := database(t)
	fatal.If(t, opens(etcds))
	// Opened by others, it gets a list of its free pages, and more pages.
	db, err := bbolt.Open(file, 0o600, nil)
	fatal.If(t, err)
	for keep := range 2 {
		fatal.If(t, db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("more"))
			for i := range 80 {
				key := fmt.Appendf(nil, "key %d", i)
				if err == nil && (keep == 0 || i%3 == 0) {
					err = b.Put(key, make([]byte, 300))
				} else if err == nil {
					err = b.Delete(key)
				}
			}
			return errors.Join(err, b.Put([]byte("long"), make([]byte, 9000)))
		}))
	}
	fatal.If(t, db.Close())
	others, err := os.ReadFile(file)
	fatal.If(t, err)
	refused := 0
	for _, db := range [][]byte{etcds, others} {
		fatal.If(t, opens(db))
		for page := 0; page < len(db); page += 4096 {
			for at := page; at < page+16 && slices.Max(db[page:page+16]) > 0; at++ {
				for _, flip := range []byte{1, 0xff} {
					db[at] ^= flip
					if opens(db) != nil {
						refused++
					}
					db[at] ^= flip
				}
			}
		}
	}
	if refused < 100 {
		t.Errorf("%d heads are refused", refused)
	}
	if err := opens(bytes.ReplaceAll(others, []byte("key 36"), []byte("key 99"))); err == nil || !strings.Contains(err.Error(), "is not in order") {
		t.Errorf("keys in disorder: %v", err)
	}
}
