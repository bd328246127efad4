package inside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/member"
)

const (
	snapshotSuffix  = ".db"
	snapshotTime    = "20060102T150405Z"
	snapshotTimeout = 5 * time.Minute
)

// Snapshot is a snapshot in a directory.
type Snapshot struct {
	Path string    `json:"path"`
	At   time.Time `json:"at"`
	Size int64     `json:"size"`
}

// List returns the snapshots of d, the latest first.
func (d Dir) List() (out []Snapshot, err error) {
	entries, err := os.ReadDir(d.Snapshots())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), snapshotSuffix)
		if !ok {
			continue
		}
		_, name, _ = strings.Cut(name, "-")
		at, err := time.Parse(snapshotTime, name)
		info, stat := e.Info()
		if err == nil && stat == nil {
			out = append(out, Snapshot{Path: filepath.Join(d.Snapshots(), e.Name()), At: at, Size: info.Size()})
		}
	}
	slices.SortFunc(out, func(a, b Snapshot) int { return b.At.Compare(a.At) })
	return out, err
}

func (d Dir) snapshotPath(kind string, now time.Time) string {
	return filepath.Join(d.Snapshots(), kind+"-"+now.UTC().Format(snapshotTime)+snapshotSuffix)
}

// Save writes a snapshot of the members behind g.
func Save(ctx context.Context, g *etcdstore.Group, path string) error {
	return replace(path, func(w io.Writer) error { return g.Snapshot(ctx, w) })
}

// beforeUpgrade copies the database of a member that does not run.
func (d Dir) beforeUpgrade(data member.Data, to string, now time.Time) error {
	from, err := os.Open(d.database())
	if errors.Is(err, os.ErrNotExist) {
		return nil // It has never run.
	}
	if err != nil {
		return err
	}
	defer from.Close()
	if err := os.MkdirAll(d.Snapshots(), 0o700); err != nil {
		return err
	}
	return replace(d.snapshotPath("before_"+to, now), func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
}

// snapshotIfDue writes a snapshot of this member, and deletes the oldest beyond those to keep.
func (i *Inside) snapshotIfDue(ctx context.Context, own string, learner bool) {
	in := i.cfg.Etcd.Inside
	list, err := i.dir.List()
	if in.SnapshotEvery == 0 || learner ||
		err == nil && len(list) > 0 && time.Since(list[0].At) < in.SnapshotEvery {
		return
	}
	if err == nil {
		err = os.MkdirAll(i.dir.Snapshots(), 0o700)
	}
	if err == nil {
		err = i.save(ctx, own)
	}
	if err != nil {
		i.say(0, "snapshot of etcd inside failed", err.Error())
		return
	}
	list, _ = i.dir.List()
	for _, old := range list[min(in.SnapshotKeep, len(list)):] {
		if err := os.Remove(old.Path); err != nil {
			i.say(0, "old snapshot of etcd inside cannot be deleted", err.Error())
		}
	}
}

func (i *Inside) save(ctx context.Context, own string) error {
	dial := i.cfg.Dial
	dial.Endpoints = []string{own}
	g, err := etcdstore.OpenGroup(dial)
	if err != nil {
		return err
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	return Save(ctx, g, i.dir.snapshotPath("hourly", time.Now()))
}

func readJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
