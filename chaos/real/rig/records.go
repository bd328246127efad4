package rig

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/operator"
	"github.com/flakelease/allocator/internal/lease"
)

var errBehind = errors.New("rig: the watch has not reached the revision")

// grants follows the records in etcd. After a restore it begins again, at the
// revision of the snapshot.
type grants struct {
	mu   sync.Mutex // guards all below
	seen int64      // the last revision of the watch
	from int64      // begin again from here, if not 0
	kick context.CancelFunc
}

// watchRecords writes every version of a window and of a holder to the history,
// until ctx ends.
func (r *Rig) watchRecords(ctx context.Context) {
	from := int64(1)
	for ctx.Err() == nil {
		inner, stop := context.WithCancel(ctx)
		r.grants.mu.Lock()
		r.grants.kick = stop
		r.grants.mu.Unlock()
		_ = r.Op.Watch(inner, from, r.recordWrite, func(revision int64) {
			r.grants.mu.Lock()
			r.grants.seen = revision
			r.grants.mu.Unlock()
		})
		stop()
		r.grants.mu.Lock()
		if r.grants.from > 0 {
			from, r.grants.from = r.grants.from, 0
		} else {
			from = r.grants.seen + 1
		}
		r.grants.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// rewatch begins again after etcd's history went back to a revision.
func (r *Rig) rewatch(revision int64) {
	r.grants.mu.Lock()
	defer r.grants.mu.Unlock()
	r.grants.from, r.grants.seen = revision+1, revision
	if r.grants.kick != nil {
		r.grants.kick()
	}
}

// CatchUp returns when everything that etcd has granted until now is in the
// history.
func (r *Rig) CatchUp(ctx context.Context) error {
	want, err := r.Op.Revision(ctx)
	if err != nil {
		return err
	}
	return until(ctx, most, "the history of etcd", func(ctx context.Context) error {
		r.grants.mu.Lock()
		seen := r.grants.seen
		r.grants.mu.Unlock()
		if seen >= want {
			return nil
		}
		_ = r.Op.Progress(ctx)
		return errBehind
	})
}

func (r *Rig) recordWrite(w operator.Write) {
	op := history.Op{Process: history.Etcd, Type: history.Info, F: history.FWindow}
	if w.IsHolder {
		op.F = history.FHolder
		op.Holder = &history.Holder{SID: int64(w.SID), Rev: w.Revision, Lease: w.OnLease, Deleted: w.Deleted}
		if w.Holder != nil && w.Err == nil {
			op.Node, op.Holder.Instance = w.Holder.Node, string(w.Holder.Instance)
			op.Run = r.runOf(op.Node, op.Holder.Instance)
		}
	} else {
		op.Window = &history.Window{SID: int64(w.SID), Rev: w.Revision, Deleted: w.Deleted, Unreadable: w.Err != nil}
		if v := w.Window; v != nil && w.Err == nil {
			op.Node = v.Node
			op.Window.Term, op.Window.Base, op.Window.Ceil = v.Term, int64(v.Base), int64(v.Ceil)
			op.Window.Instance, op.Window.Released = string(v.Instance), v.State == lease.Released
			op.Run = r.runOf(op.Node, op.Window.Instance)
		}
	}
	_, _ = r.History.Write(op)
}

// runOf names the process that has an instance: it writes that to its log before
// it takes a sid. It returns "" for what is no process of ours.
func (r *Rig) runOf(node, instance string) string {
	for _, n := range append(r.Nodes, r.spare) {
		if n.Name != node {
			continue
		}
		for range 10 {
			if run := n.instances.find(n, instance); run > 0 {
				return fmt.Sprintf("%s#%d", node, run)
			}
			time.Sleep(20 * time.Millisecond) // the log is behind etcd
		}
	}
	return ""
}

// instances knows the instances of a node's runs.
type instances struct {
	mu    sync.Mutex // guards byRun
	byRun map[int]string
}

var instanceWord = regexp.MustCompile(`"instance":"([0-9a-f-]{36})"`)

// of returns the instance of a run, "" while its log does not tell.
func (i *instances) of(n *Node, run int) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if found := i.byRun[run]; found != "" {
		return found
	}
	m := instanceWord.FindStringSubmatch(n.Output(run))
	if m == nil {
		return ""
	}
	if i.byRun == nil {
		i.byRun = map[int]string{}
	}
	i.byRun[run] = m[1]
	return m[1]
}

// find returns the run that has an instance, 0 if none is known to.
func (i *instances) find(n *Node, instance string) int {
	for run := n.Run(); run > 0; run-- {
		if i.of(n, run) == instance {
			return run
		}
	}
	return 0
}
