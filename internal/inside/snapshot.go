package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

const (
	snapshotTime    = "20060102T150405Z"
	snapshotTimeout = 5 * time.Minute
	// snapshotPause is the pause after a snapshot that failed.
	snapshotPause = time.Minute
)

// Snapshots returns the directory of the snapshots.
func (d Dir) Snapshots() meet.Snapshots {
	return meet.Snapshots{Dir: filepath.Join(string(d), "snapshots"), Layout: snapshotTime, Suffix: ".db"}
}

// beforeUpgrade copies the database of a member that does not run, on a disk that has so many bytes free.
func (d Dir) beforeUpgrade(to string, now time.Time, free int64) error {
	from, err := os.Open(d.database())
	if errors.Is(err, os.ErrNotExist) {
		return nil // It has never run.
	}
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err == nil {
		err = room(free, info.Size())
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.Snapshots().Dir, 0o700); err != nil {
		return err
	}
	return meet.Replace(d.Snapshots().Path("before_"+to, now), func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
}

// room says why the disk has no room for a snapshot of size bytes; nil: it has. What etcd needs to go
// on stays free.
func room(free, size int64) error {
	if free-minFree < size {
		return fmt.Errorf("too little disk free for a snapshot: %d MiB, a snapshot needs %d and etcd %d; make "+
			"room", free>>20, size>>20, int64(minFree)>>20)
	}
	return nil
}

// snapshotIfDue writes a snapshot of this member, and deletes the oldest beyond those to keep. The
// snapshots are on the disk that etcd writes to, and a member whose disk is full ends.
func (i *Inside) snapshotIfDue(ctx context.Context, own string, s member.Status) {
	in := i.cfg.Etcd.Inside
	now := time.Now()
	list, err := i.dir.Snapshots().List(now)
	if in.SnapshotEvery == 0 || s.Learner || now.Before(i.snapshotAfter) ||
		err == nil && !meet.Due(list, now, in.SnapshotEvery) {
		return
	}
	if err := i.snapshot(ctx, own, s.Size); ctx.Err() != nil {
		return // The node or its member ends.
	} else if err != nil {
		i.snapshotAfter = time.Now().Add(snapshotPause)
		i.say(slog.LevelError, "snapshot of etcd inside failed", err.Error())
	} else if !i.snapshotAfter.IsZero() {
		i.snapshotAfter = time.Time{}
		i.cfg.Log.Info("snapshot of etcd inside succeeds again")
	}
}

// snapshot writes a snapshot of about size bytes of this member.
func (i *Inside) snapshot(ctx context.Context, own string, size int64) error {
	keep := i.cfg.Etcd.Inside.SnapshotKeep
	// Of a disk without room, more than the setting allows must not stay until there is some.
	if _, _, err := i.dir.Snapshots().Prune(time.Now(), keep); err != nil {
		return err
	}
	free, err := freeBytes(string(i.dir))
	if err != nil {
		return fmt.Errorf("free space of %s: %w", string(i.dir), err)
	}
	if err := room(free, size); err != nil {
		return err
	}
	dial := i.cfg.Dial
	dial.Endpoints = []string{own}
	g, err := etcdstore.OpenGroup(dial)
	if err != nil {
		return err
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	_, _, err = i.dir.Snapshots().Take(ctx, g, "hourly", time.Now(), keep)
	return err
}
