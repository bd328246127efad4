package spool

import (
	"errors"
	"os"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/audit"
)

// What is sorted on disk comes back, its room is given back, and nothing is left.
func TestDir(t *testing.T) {
	parent := t.TempDir()
	d, err := NewDir(parent, nil)
	fatal.If(t, err)
	files := func() int {
		list, err := os.ReadDir(d.path)
		fatal.If(t, err)
		return len(list)
	}
	f := audit.NewSorter(0, d)
	for i := range 200_000 { // 5 MB in memory
		fatal.If(t, f.Add(audit.Item{Key: audit.Key{Lo: uint64(i) * 7919 % 200_003}, Pos: uint64(i)}))
	}
	fatal.If(t, f.Add(audit.Item{Key: audit.Key{Lo: 7919}, Pos: 7}))
	if files() == 0 {
		t.Error("nothing was spooled")
	}
	n, err := f.Duplicates(func(v audit.Duplicate) {
		if v.Key.Lo != 7919 || v.A != 1 || v.B != 7 {
			t.Errorf("%+v", v)
		}
	})
	if n != 1 || err != nil || files() != 0 {
		t.Errorf("%d duplicates, %v; %d files are left", n, err, files())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestWatch: who watches ends the writing, and the reading of what was written.
func TestWatch(t *testing.T) {
	enough := errors.New("enough")
	var wrote, read int
	d, err := NewDir(t.TempDir(), func(w, r int) error {
		wrote, read = wrote+w, read+r
		if read > 0 || wrote > 5 {
			return enough
		}
		return nil
	})
	fatal.If(t, err)
	f, err := d.Create()
	fatal.If(t, err)
	if _, err := f.Write([]byte("first")); err != nil {
		t.Error(err)
	}
	in, err := f.Open()
	fatal.If(t, err)
	defer in.Close()
	if n, err := in.Read(make([]byte, 9)); err != enough || wrote != 5 || read != 5 {
		t.Errorf("read %d, %v; told of %d and %d", n, err, wrote, read)
	}
	if _, err := f.Write([]byte("x")); err != enough {
		t.Errorf("written in spite of that: %v", err)
	}
}

func TestMissingParent(t *testing.T) {
	if _, err := NewDir(t.TempDir()+"/missing", nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
