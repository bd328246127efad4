package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Snapshot is a copy of etcd's database.
type Snapshot struct {
	Path     string
	Revision int64 // revision of the last write in the snapshot
}

// TakeSnapshot copies etcd's database at a moment without writes, so that its
// revision is known exactly. Many nodes leave no such moment: they are paused for it.
func (r *Rig) TakeSnapshot(ctx context.Context, path string) (_ Snapshot, err error) {
	s := Snapshot{Path: path}
	if len(r.Nodes) > 9 {
		for _, n := range r.Nodes {
			defer func() { err = errors.Join(err, n.Resume()) }()
			if err := n.Pause(); err != nil {
				return s, err
			}
		}
	}
	err = until(ctx, most, "a copy of etcd", func(ctx context.Context) error {
		before, err := r.Op.Revision(ctx)
		if err != nil {
			return err
		}
		if err := r.Op.Snapshot(ctx, path); err != nil {
			return err
		}
		after, err := r.Op.Revision(ctx)
		if err == nil && after != before {
			err = errors.New("there was a write meanwhile")
		}
		s.Revision = after
		return err
	})
	return s, err
}

// Restore kills etcd and starts it again from a snapshot: history goes back for
// all nodes at once. With fresh, the cluster gets another token and so another
// ID, as etcd's manual advises; without, only the revisions show it.
//
// Nodes are paused while etcd is killed, so that no grant is missed; they run while
// it is restored.
func (r *Rig) Restore(ctx context.Context, from Snapshot, fresh bool) error {
	for _, n := range r.Nodes {
		if err := n.Pause(); err != nil {
			return err
		}
	}
	err := r.CatchUp(ctx)
	for _, p := range r.Etcds {
		err = errors.Join(err, p.Kill())
	}
	for _, n := range r.Nodes {
		err = errors.Join(err, n.Resume())
	}
	if err != nil {
		return err
	}
	// A long run restores often, and each member keeps 64 MiB at least.
	r.mu.Lock()
	old := filepath.Join(r.Dir, "etcd", strconv.Itoa(r.copies))
	r.mu.Unlock()
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	r.mu.Lock()
	r.copies++
	if fresh {
		r.token = fmt.Sprintf("chaos-%d", r.copies)
	}
	token := r.token
	r.mu.Unlock()
	for i, p := range r.Etcds {
		dir, of := r.dataDir(p.Name), p.Args
		if r.Inside {
			of = r.restores[i]
		}
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return err
		}
		args := append([]string{"snapshot", "restore", from.Path, "--data-dir", dir, "--initial-cluster-token", token},
			flagsOf(of, "--name", "--initial-cluster", "--initial-advertise-peer-urls")...)
		if out, err := exec.CommandContext(ctx, r.Etcd, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("etcd %s: %w\n%s", strings.Join(args, " "), err, tail(string(out)))
		}
	}
	r.rewatch(from.Revision)
	for i := range r.Etcds {
		err = errors.Join(err, r.StartMember(i))
	}
	return err
}

// flagsOf picks flags and their values out of arguments.
func flagsOf(args []string, names ...string) (out []string) {
	for i := 0; i+1 < len(args); i++ {
		for _, name := range names {
			if args[i] == name {
				out = append(out, name, args[i+1])
			}
		}
	}
	return out
}
