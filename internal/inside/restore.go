package inside

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Restored is what a restore makes of a snapshot: a member of a cluster that never was before.
type Restored struct {
	File    string
	SHA256  string
	Checked bool   // It has a checksum of etcd; the copy of a database has none.
	Cluster uint64 // It follows from Initial and Token, as the IDs of the members do.
	Runs    int    // the process of the member that runs now; 0: none
	// Data is what the directory is to say. The caller sets its Act, which says who restores. Its Token follows from
	// the snapshot, the members and how often that snapshot was restored before, so that it is the same on each
	// machine, and no cluster that the snapshot knows has it: the snapshot was taken of that one.
	member.Data
}

// ErrSnapshot is a file that cannot be restored.
var ErrSnapshot = errors.New("snapshot")

func (d Dir) restored() string       { return filepath.Join(string(d), "restored") }
func (d Dir) restoredMarker() string { return filepath.Join(string(d), "restored.json") }
func (d Dir) restoreLock() string    { return filepath.Join(string(d), "restore.lock") }

// holdRestored takes what a restore prepares for this process alone.
func (d Dir) holdRestored() (release func(), err error) {
	release, pid, err := hold(d.restoreLock(), 0)
	switch {
	case errors.Is(err, errTaken):
		return nil, d.unfit("has a restore that process %d prepares or takes over: try again when that has ended", pid)
	case errors.Is(err, os.ErrPermission):
		return nil, d.unfit("has files of another user: %v; give them to the user of the node: chown -R USER %s",
			err, string(d))
	case err != nil:
		return nil, d.unfit("cannot be locked: %v", err)
	}
	return release, nil
}

// PlanRestore reads a snapshot and says what its restore would make. It writes nothing. again counts how
// often all members were restored from the snapshot before.
//
// It returns ErrSnapshot or ErrDir, or a *member.Refusal if the member has started from this restore already.
func (d Dir) PlanRestore(file, host, peer, initial string, again uint) (Restored, error) {
	r := Restored{File: file, Runs: d.runs(), Data: member.Data{Host: host, Peer: peer,
		Version: etcdstore.ServerVersion(), Initial: initial, Restored: true}}
	if r.Runs == unnamed {
		return r, d.heldUnnamed()
	}
	var err error
	if r.SHA256, r.Checked, err = ReadSnapshot(file); err != nil {
		return r, err
	}
	from := r.SHA256 + "\n" + initial
	if again > 0 {
		from += fmt.Sprintf("\n%d", again)
	}
	r.Token = fmt.Sprintf("restored-%x", sha256.Sum256([]byte(from)))[:25]
	if r.Cluster, err = ClusterOf(initial, r.Token); err != nil {
		return r, d.unfit("has no list of members: %v", err)
	}
	if err := d.first(r); err != nil {
		return r, err
	}
	if _, err := os.Stat(string(d)); errors.Is(err, os.ErrNotExist) {
		return r, d.writable(existing(string(d)), freeBytes)
	}
	return r, d.writable(string(d), freeBytes)
}

// first refuses a restore from which the member has started already: under the same ID it would forget
// for what it voted and what it acknowledged.
func (d Dir) first(r Restored) error {
	data, err := d.Own()
	if err == nil && data != nil && !data.Restored && (data.Token == r.Token || data.Cluster == r.Cluster) {
		err = member.Again(r.Host)
	}
	return err
}

// ReadSnapshot reads a snapshot, and returns its SHA-256. checked says that it ends with the checksum that etcd
// writes, and that the checksum is right; the copy of a database has none.
//
// It returns ErrSnapshot.
func ReadSnapshot(file string) (sum string, checked bool, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", false, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() < 1024 {
		return "", false, fmt.Errorf("%w: %s is no snapshot of etcd", ErrSnapshot, file)
	}
	whole, body, rest := sha256.New(), sha256.New(), info.Size()%512
	if rest != 0 && rest != sha256.Size {
		return "", false, fmt.Errorf("%w: %s is no snapshot of etcd, or is truncated: none has %d bytes", ErrSnapshot,
			file, info.Size())
	}
	var last bytes.Buffer
	if _, err = io.CopyN(io.MultiWriter(whole, body), f, info.Size()-rest); err == nil {
		_, err = io.CopyN(io.MultiWriter(whole, &last), f, rest)
	}
	switch {
	case err != nil:
		return "", false, fmt.Errorf("%w: %w", ErrSnapshot, err)
	case rest != 0 && !bytes.Equal(last.Bytes(), body.Sum(nil)):
		return "", false, fmt.Errorf("%w: the checksum in %s is not that of its %d bytes: it is no snapshot of etcd, "+
			"is truncated, or was changed", ErrSnapshot, file, info.Size())
	}
	return fmt.Sprintf("%x", whole.Sum(nil)), rest != 0, nil
}

// unchanged says that a file is the one of which r was planned: the token says what the members have.
func (r Restored) unchanged() error {
	sum, _, err := ReadSnapshot(r.File)
	if err == nil && sum != r.SHA256 {
		err = errors.New("it has changed since its SHA-256 was shown: restore it again")
	}
	return err
}

// Restore prepares what r says in d. The member takes it over when it starts next; the data that
// it has now is kept beside it.
//
// It returns ErrSnapshot, or ErrDir, also if another process restores or takes over a restore, and a
// *member.Refusal if the member has started from it meanwhile. etcdserver.Restore is what restores.
func (d Dir) Restore(r Restored, restore func(file string, checked bool, of member.Data, dir string) error) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return d.unfit("cannot be made: %v", err)
	}
	release, err := d.holdRestored()
	if err != nil {
		return err
	}
	defer release()
	if err := d.first(r); err != nil {
		return err
	}
	// The marker first: without the directory it would say that its data is in place already.
	if err = os.RemoveAll(d.restoredMarker()); err == nil {
		err = durable.SyncDir(string(d))
	}
	if err == nil {
		err = os.RemoveAll(d.restored())
	}
	if err != nil {
		return d.unfit("cannot be written: %v", err)
	}
	err = restore(r.File, r.Checked, r.Data, d.restored())
	if err == nil {
		err = r.unchanged()
	}
	if err == nil {
		err = meet.Own(string(d), filepath.Base(d.restored()))
	}
	if err != nil {
		_ = os.RemoveAll(d.restored())
		return fmt.Errorf("%w: %s: %w", ErrSnapshot, r.File, err)
	}
	err = meet.WriteJSON(d.restoredMarker(), r.Data)
	if err != nil {
		return err
	}
	return meet.Own(string(d), filepath.Base(d.restoredMarker())) // The lock keeps the node from it until then.
}

// prepared reports whether a restore waits to be taken over.
func (d Dir) prepared() bool {
	_, err := os.Stat(d.restoredMarker())
	return err == nil
}

// takeRestored puts what Restore prepared in the place of the data. A crash between any two of
// its steps is no matter: the next call does the rest. It reports whether there was something: a
// later restore may have begun, and failed.
//
// It returns ErrDir while another process restores.
func (d Dir) takeRestored(now time.Time) (taken bool, err error) {
	release, err := d.holdRestored()
	if err != nil {
		return false, err
	}
	defer release()
	if !d.prepared() {
		return false, nil
	}
	if _, err := os.Stat(d.restored()); err == nil {
		if err := d.setAside("before", now); err != nil {
			return false, err
		}
		if err := os.Rename(d.restored(), d.Data()); err != nil {
			return false, err
		}
	}
	// The marker last: without the data it would say that they are in place.
	if err := durable.SyncDir(string(d)); err != nil {
		return false, err
	}
	if err := os.Rename(d.restoredMarker(), d.marker()); err != nil {
		return false, err
	}
	return true, durable.SyncDir(string(d)) // The member runs from it now.
}

// Terminate asks the member that runs in d to stop, and waits. Its node starts it again.
func (d Dir) Terminate(within time.Duration) error {
	pid := d.runs()
	switch pid {
	case 0:
		return nil
	case unnamed:
		return d.heldUnnamed()
	}
	terminate(pid)
	for began := time.Now(); d.runs() == pid; time.Sleep(adoptedEvery) {
		if time.Since(began) > within {
			return d.unfit("has a member that does not stop (process %d)", pid)
		}
	}
	return nil
}

// Initial returns the list with which members at hosts begin. It is the same for each order of them.
func Initial(hosts []string, peer func(host string) string) string {
	var parts []string
	for _, host := range slices.Sorted(slices.Values(hosts)) {
		parts = append(parts, host+"="+peer(host))
	}
	return strings.Join(parts, ",")
}
