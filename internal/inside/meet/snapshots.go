package meet

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Snapshots is a directory of snapshots. Their names are an optional kind with a dash, the time in
// UTC as Layout has it, and Suffix.
type Snapshots struct {
	Dir, Layout, Suffix string
	Keep                int // Take leaves at most this many.
}

// Snapshot is a snapshot in a directory.
type Snapshot struct {
	Path string    `json:"path"`
	At   time.Time `json:"at"`
	Size int64     `json:"size"`
}

// Path returns where a snapshot of a kind and a time is. The kind has no dash; "": none.
func (s Snapshots) Path(kind string, at time.Time) string {
	if kind != "" {
		kind += "-"
	}
	return filepath.Join(s.Dir, kind+at.UTC().Format(s.Layout)+s.Suffix)
}

// List returns the snapshots at a time, the latest first. Those of later times come last: a clock that
// was ahead named them, and they are older than any that is written now. Other files are left out.
// Without a directory there are none.
func (s Snapshots) List(now time.Time) (out []Snapshot, err error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), s.Suffix)
		at, err := time.Parse(s.Layout, name)
		if err != nil {
			_, name, _ = strings.Cut(name, "-")
			at, err = time.Parse(s.Layout, name)
		}
		info, stat := e.Info()
		if ok && err == nil && stat == nil && info.Mode().IsRegular() {
			out = append(out, Snapshot{Path: filepath.Join(s.Dir, e.Name()), At: at, Size: info.Size()})
		}
	}
	later := func(one Snapshot) int {
		if one.At.After(now) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(out, func(a, b Snapshot) int {
		return cmp.Or(cmp.Compare(later(a), later(b)), b.At.Compare(a.At))
	})
	return out, err
}

// Due reports whether the latest of a List is as old as every.
func Due(list []Snapshot, now time.Time, every time.Duration) bool {
	return len(list) == 0 || list[0].At.After(now) || now.Sub(list[0].At) >= every
}

// Take writes a snapshot of a member of g, and then removes the oldest until Keep are left. A full
// disk costs the oldest before, but never the last one. It returns those that are left, the latest
// first, and how many it removed.
func (s Snapshots) Take(ctx context.Context, g *etcdstore.Group, kind string, now time.Time) (left []Snapshot,
	removed int, err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, 0, err
	}
	// What a crash left is as large as a snapshot. Another process may be writing a later one.
	parts, _ := filepath.Glob(filepath.Join(s.Dir, ".*"+s.Suffix+"-*"))
	for _, path := range parts {
		if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()) > time.Hour {
			_ = os.Remove(path)
		}
	}
	removed, err = s.makeRoom(now, func() error { return Save(ctx, g, s.Path(kind, now)) })
	if err != nil {
		return nil, removed, err
	}
	left, more, err := s.Prune(now, s.Keep)
	return left, removed + more, err
}

// Prune removes the oldest snapshots until keep are left. It returns those, the latest first, and how
// many it removed.
func (s Snapshots) Prune(now time.Time, keep int) (left []Snapshot, removed int, err error) {
	list, err := s.List(now)
	keep = min(keep, len(list))
	for _, old := range list[keep:] {
		err = cmp.Or(err, os.Remove(old.Path))
	}
	return list[:keep], len(list) - keep, err
}

// makeRoom calls save until the disk has room for what it writes. Before each further call it removes
// the oldest snapshot, while there is a later one.
func (s Snapshots) makeRoom(now time.Time, save func() error) (removed int, err error) {
	for err = save(); errors.Is(err, syscall.ENOSPC); err = save() {
		list, _ := s.List(now)
		if len(list) < 2 {
			return removed, err
		}
		if _, _, failed := s.Prune(now, len(list)-1); failed != nil {
			return removed, errors.Join(err, failed)
		}
		removed++
	}
	return removed, err
}

// Save writes a snapshot of a member of g into a file.
func Save(ctx context.Context, g *etcdstore.Group, path string) error {
	return durable.Replace(path, 0o600, func(f *os.File) error { return g.Snapshot(ctx, f) })
}
