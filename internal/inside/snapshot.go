package inside

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/meet"
	"github.com/flakelease/allocator/internal/member"
)

const (
	snapshotTime    = "20060102T150405Z"
	snapshotTimeout = 5 * time.Minute
)

// Snapshots returns the directory of the snapshots.
func (d Dir) Snapshots() meet.Snapshots {
	return meet.Snapshots{Dir: filepath.Join(string(d), "snapshots"), Layout: snapshotTime, Suffix: ".db"}
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
	if err := os.MkdirAll(d.Snapshots().Dir, 0o700); err != nil {
		return err
	}
	return meet.Replace(d.Snapshots().Path("before_"+to, now), func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
}

// snapshotIfDue writes a snapshot of this member, and deletes the oldest beyond those to keep.
func (i *Inside) snapshotIfDue(ctx context.Context, own string, learner bool) {
	in := i.cfg.Etcd.Inside
	list, err := i.dir.Snapshots().List()
	if in.SnapshotEvery == 0 || learner ||
		err == nil && len(list) > 0 && time.Since(list[0].At) < in.SnapshotEvery {
		return
	}
	dial := i.cfg.Dial
	dial.Endpoints = []string{own}
	g, err := etcdstore.OpenGroup(dial)
	if err == nil {
		defer g.Close()
		ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
		defer cancel()
		_, _, err = i.dir.Snapshots().Take(ctx, g, "hourly", time.Now(), in.SnapshotKeep)
	}
	if err != nil {
		i.say(0, "snapshot of etcd inside failed", err.Error())
	}
}
