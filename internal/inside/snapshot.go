package inside

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
)

const (
	snapshotTime    = "20060102T150405Z"
	snapshotTimeout = 5 * time.Minute
	// snapshotPause is the pause after a snapshot, or its copy, that failed.
	snapshotPause = time.Minute
	// copyWithin leaves a program the time to send some GB, and is less than the time to the next snapshot.
	copyWithin = 30 * time.Minute
	// tailBytes are enough for the message of a program that fails.
	tailBytes = 512
	hourly    = "hourly"
)

// Snapshots returns the directory of the snapshots.
func (d Dir) Snapshots() meet.Snapshots {
	return meet.Snapshots{Dir: filepath.Join(string(d), "snapshots"), Layout: snapshotTime, Suffix: ".db"}
}

// beforeUpgrade copies the database of a member that does not run, on a disk that has so many bytes free.
func (d Dir) beforeUpgrade(to string, now time.Time, free int64) error {
	from, err := os.Open(d.Database())
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
	return durable.Replace(d.Snapshots().Path("before_"+to, now), 0o600, durable.From(from))
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

// snapshotIfDue writes a snapshot of this member, deletes the oldest beyond those to keep, and has the latest
// copied elsewhere. The snapshots are on the disk that etcd writes to, and a member whose disk is full ends.
func (i *Inside) snapshotIfDue(ctx context.Context, own string, s member.Status) {
	in := i.cfg.Etcd.Inside
	now := time.Now()
	// Before "allocator init" nobody has written anything: a copy would be one of no space.
	if in.SnapshotEvery == 0 || s.Learner || s.Revision == 1 || now.Before(i.snapshotAfter) {
		return
	}
	list, err := i.Dir.Snapshots().List(now)
	if err != nil || meet.Due(list, now, in.SnapshotEvery) {
		err = i.snapshot(ctx, own, s.Size)
	}
	why, printed := "", ""
	if err == nil && in.SnapshotCommand != "" {
		printed, err = i.copyLatest(ctx, strings.Fields(in.SnapshotCommand))
	}
	if ctx.Err() != nil {
		return // The node or its member ends.
	} else if err != nil {
		why = err.Error()
		i.snapshotAfter = time.Now().Add(snapshotPause)
		i.say(slog.LevelError, "snapshot of etcd inside failed", strings.TrimSpace(why+" "+printed))
	} else if !i.snapshotAfter.IsZero() {
		i.snapshotAfter = time.Time{}
		i.cfg.Log.Info("snapshot of etcd inside succeeds again")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.health.SnapshotFails = why
}

// Copied returns the verified copy that was made last: a snapshot that was read and found whole, and for which
// etcd.snapshot-command ended with 0. It is zero before the first.
func (d Dir) Copied() (s meet.Snapshot) {
	if text, err := os.ReadFile(d.copied()); err == nil {
		_ = json.Unmarshal(text, &s) // What cannot be read is copied again.
	}
	return s
}

// copyLatest has a command copy the latest snapshot elsewhere, unless it did. printed is the end of what the program
// printed that failed. It may have a secret, so the log alone gets it, and no event.
func (i *Inside) copyLatest(ctx context.Context, command []string) (printed string, err error) {
	list, err := i.Dir.Snapshots().List(time.Now())
	list = slices.DeleteFunc(list, func(s meet.Snapshot) bool {
		return !strings.HasPrefix(filepath.Base(s.Path), hourly)
	})
	if err != nil || len(list) == 0 || list[0].Path == i.Dir.Copied().Path {
		return "", err
	}
	path := list[0].Path
	// The check is a process of its own: damage could end it.
	if printed, err = execute(ctx, copyWithin, i.cfg.Program, "etcd", "verify", "--restore=false", path); err != nil {
		return printed, fmt.Errorf("verify %s: %w", path, err)
	}
	if printed, err = execute(ctx, copyWithin, command[0], append(command[1:], path)...); err != nil {
		return printed, fmt.Errorf("etcd.snapshot-command: %w", err)
	}
	return "", meet.WriteJSON(i.Dir.copied(), list[0])
}

// execute runs a program, which is killed with what it started when ctx or its time ends, and returns the end of what
// it printed. A process that it leaves with its output open, as ssh does for later connections, is no failure.
func execute(ctx context.Context, within time.Duration, name string, args ...string) (printed string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it took longer than %v", within))
	defer cancel()
	var out tail
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &out, &out, apart()
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = time.Second
	if err = cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return strings.TrimSpace(string(out)), fmt.Errorf("%s: %w", name, cmp.Or(context.Cause(ctx), err))
	}
	return "", nil
}

// tail is the last that was written.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-tailBytes):]
	return len(p), nil
}

// snapshot writes a snapshot of about size bytes of this member.
func (i *Inside) snapshot(ctx context.Context, own string, size int64) error {
	snapshots := i.Dir.Snapshots()
	snapshots.Keep = i.cfg.Etcd.Inside.SnapshotKeep
	// Of a disk without room, more than the setting allows must not stay until there is some.
	if _, _, err := snapshots.Prune(time.Now(), snapshots.Keep); err != nil {
		return err
	}
	free, err := freeBytes(string(i.Dir))
	if err != nil {
		return fmt.Errorf("free space of %s: %w", string(i.Dir), err)
	}
	if err := room(free, size); err != nil {
		return err
	}
	g, err := i.Dial([]string{own})
	if err != nil {
		return err
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	_, _, err = snapshots.Take(ctx, g, hourly, time.Now())
	return err
}
