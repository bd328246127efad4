package spool

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/audit"
)

// What is sorted on disk comes back, its room is given back, and nothing is left.
func TestDir(t *testing.T) {
	parent := t.TempDir()
	d, err := NewDir(parent, 0)
	fatal.If(t, err)
	f := audit.NewSorter(0, d)
	for i := range 200_000 { // 5 MB in memory
		fatal.If(t, f.Add(audit.Item{Key: audit.Key{Lo: uint64(i) * 7919 % 200_003}, Pos: uint64(i)}))
	}
	fatal.If(t, f.Add(audit.Item{Key: audit.Key{Lo: 7919}, Pos: 7}))
	if d.Bytes() == 0 {
		t.Error("nothing was spooled")
	}
	n, err := f.Duplicates(func(v audit.Duplicate) {
		if v.Key.Lo != 7919 || v.A != 1 || v.B != 7 {
			t.Errorf("%+v", v)
		}
	})
	if n != 1 || err != nil || d.Bytes() != 0 {
		t.Errorf("%d duplicates, %v; %d bytes are left", n, err, d.Bytes())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestLimit(t *testing.T) {
	d, err := NewDir(t.TempDir(), 10)
	fatal.If(t, err)
	defer d.Close()
	f, err := d.Create()
	fatal.If(t, err)
	if _, err := f.Write(make([]byte, 10)); err != nil {
		t.Error(err)
	}
	if _, err := f.Write(make([]byte, 1)); !errors.Is(err, ErrFull) {
		t.Errorf("one byte too many: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	r, err := f.Open()
	fatal.If(t, err)
	if b, err := io.ReadAll(r); len(b) != 10 || err != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if f, err = d.Create(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 10)); err != nil {
		t.Errorf("room that was given back: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestMissingParent(t *testing.T) {
	if _, err := NewDir(t.TempDir()+"/missing", 0); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
