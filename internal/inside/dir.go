// Package inside runs an etcd for the nodes themselves: one program, two processes.
//
// The node starts its own program again as a child, which is the member of etcd, so that a flood
// of requests for IDs cannot take the processor from the raft loop, and so that a crash of either
// leaves the other. A node that starts finds a member that still runs and takes it over. A node
// that stops in order stops the member too, after it gave its sid back.
//
// Inside (the node's part) asks the other members, has internal/inside/member decide how to start, and
// tends the child: it promotes a learner, notes the members, writes snapshots, and restarts a
// member that ended. Serve is the child. Neither is on the path of a request for IDs.
//
// Site is the part of a member that nodes and pods of the chart have in common: what its directory is to say, what its
// etcd runs with, and how it is asked, noted, promoted and moved.
package inside

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Dir is a directory of etcd.inside:
//
//	member.json   who the member is, and how it began, or is to begin
//	run.json      what the child is to run with
//	node.lock     held by the node
//	etcd.lock     held by the child, with its process ID and what tells it from a later one
//	restore.lock  held by who prepares a restore, or takes it over
//	etcd/         etcd's own data
//	sockets/      where a member listens that is alone
//	events.jsonl  the node's events, and those before in events.jsonl.1
//	snapshots/    what is written each hour and before an upgrade
//	copied.json   which of them was copied elsewhere last
//	restored/     what a restore prepared to take the place of etcd/
//	restored.json what is to take the place of member.json then
type Dir string

func (d Dir) marker() string   { return filepath.Join(string(d), "member.json") }
func (d Dir) run() string      { return filepath.Join(string(d), "run.json") }
func (d Dir) nodeLock() string { return filepath.Join(string(d), "node.lock") }
func (d Dir) etcdLock() string { return filepath.Join(string(d), "etcd.lock") }
func (d Dir) copied() string   { return filepath.Join(string(d), "copied.json") }

// Data returns the directory of etcd's own data.
func (d Dir) Data() string { return filepath.Join(string(d), "etcd") }

// Database returns the file of etcd's database.
func (d Dir) Database() string { return filepath.Join(d.Data(), "member", "snap", "db") }

// ErrDir is a directory that cannot be used as etcd.inside. Nothing was written.
var ErrDir = errors.New("etcd.inside")

func (d Dir) unfit(format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrDir, string(d), fmt.Sprintf(format, args...))
}

// ErrPasses is an error that may end by itself: a name is not found yet, this machine has not got its
// address, or another process still has the directory. Nothing was written.
var ErrPasses = errors.New("it may end by itself")

// passing makes an error ErrPasses too, and leaves its text.
type passing struct{ error }

func (p passing) Unwrap() []error { return []error{p.error, ErrPasses} }

// unnamed is what runs returns for a member whose process is none that this one sees.
const unnamed = -1

// runs returns the process ID of the member that runs in d, as held does.
func (d Dir) runs() int { return held(d.etcdLock()) }

func (d Dir) inUse(pid int) error {
	if pid == unnamed {
		return passing{d.unfit("is in use by another node that cannot be named (another container or machine?): " +
			"stop it first")}
	}
	return passing{d.unfit("is in use by another node (process %d): stop it, or choose another directory", pid)}
}

func (d Dir) heldUnnamed() error {
	return d.unfit("is held by a process that cannot be named (another container or machine?), which has " +
		"etcd.lock: stop it first")
}

// MinRoom is what the disk of a member has to have free: minFree, and two files of its log.
const MinRoom = minFree + 128<<20

// Free returns how many bytes are free on the disk of d; -1: that is not known.
func (d Dir) Free() int64 {
	free, err := freeBytes(string(d))
	if err != nil {
		return -1
	}
	return free
}

const (
	// minFree is what a new member needs of the disk. etcd writes its log in files of 64 MB, and
	// makes the next one before it needs it.
	minFree = 256 << 20
	// maxMarker is far more than the file of a member has.
	maxMarker = 1 << 20
)

// Check says why d cannot be used; nil: it can. It writes nothing.
func (d Dir) Check() error { return d.check(freeBytes) }

// check is Check with what says how many bytes are free at a path.
func (d Dir) check(free func(path string) (int64, error)) error {
	entries, err := os.ReadDir(string(d))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return d.writable(existing(string(d)), free)
	case errors.Is(err, syscall.ENOTDIR):
		return d.unfit("is not a directory: choose another")
	case err != nil:
		return d.unfit("cannot be read: %v; check its owner and mode", err)
	}
	if err := private(string(d)); err != nil {
		return d.unfit("%v", err)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == name })
	}
	others := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return !ours(e.Name()) })
	switch {
	case has("member") && !has("member.json"):
		return d.unfit("has the data of another etcd: choose an empty directory, or restore a snapshot of that one "+
			"with %q", "allocator etcd restore")
	case others && !has("member.json") && !has("restored.json"):
		return d.unfit("is not empty, and is no directory of etcd.inside: choose an empty one")
	}
	if err := d.writable(string(d), free); err != nil {
		return err
	}
	data, err := d.read()
	if err != nil {
		return err
	}
	if data != nil && newer(data.Version, etcdstore.ServerVersion()) {
		return d.unfit("was used by etcd %s, and this program has %s, which cannot read it: use the newer program",
			data.Version, etcdstore.ServerVersion())
	}
	if pid := held(d.nodeLock()); pid != 0 {
		return d.inUse(pid)
	}
	return nil
}

// ours reports whether a directory without member.json may have name in it: what a start or a
// restore writes before that file, also where a crash ended it.
func ours(name string) bool {
	return slices.Contains([]string{"lost+found", "node.lock", "etcd.lock", "restore.lock", "snapshots", "restored",
		"restored.json", "events.jsonl", "events.jsonl.1"}, name) ||
		strings.HasPrefix(name, ".member.json-") || strings.HasPrefix(name, ".restored.json-")
}

// writable says why nothing could be written under at, of which free says how many bytes are free.
func (d Dir) writable(at string, free func(path string) (int64, error)) error {
	if err := access(at); err != nil {
		return d.unfit("cannot be written: %s: %v; check its owner, its mode, and ReadWritePaths of the unit", at, err)
	}
	left, err := free(at)
	if _, has := os.Stat(d.marker()); err == nil && has != nil && left < minFree {
		return d.unfit("has %d MiB free: etcd needs %d to begin; choose another disk", left>>20, int64(minFree)>>20)
	}
	return nil
}

// existing returns the first directory above path that there is.
func existing(path string) string {
	for p := path; ; p = filepath.Dir(p) {
		if _, err := os.Stat(p); err == nil || p == filepath.Dir(p) {
			return p
		}
	}
}

// read returns the marker; nil: there is none.
func (d Dir) read() (*member.Data, error) {
	f, err := os.Open(d.marker())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, d.unfit("cannot be read: %v", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMarker))
	data, parsed := ParseData(text)
	if err = cmp.Or(err, parsed); err != nil {
		return nil, d.unfit("has a member.json that cannot be read: %v; if the cluster has its quorum, empty the "+
			"directory and replace the member", err)
	}
	return data, nil
}

// ParseData reads a member.json.
func ParseData(text []byte) (*member.Data, error) {
	var data member.Data
	if err := json.Unmarshal(text, &data); err != nil {
		return nil, err
	}
	if data.Host == "" || data.Peer == "" || data.Version == "" {
		return nil, errors.New("it does not say whose it is")
	}
	return &data, nil
}

// Intends reports whether the marker says that a member begins the cluster of a list and a token, in which
// it has not answered. So it says before the member begins, and until it has answered.
func (d Dir) Intends(peer, initial, token string) (bool, error) {
	m, err := d.read()
	return m != nil && m.Cluster == 0 && m.Peer == peer && m.Initial == initial && m.Token == token, err
}

// Own returns what d holds; nil: nothing, or a marker without etcd's log. The log may have been lost
// then, or there was none yet: the others know, and Intends says whether the member may begin.
func (d Dir) Own() (*member.Data, error) {
	data, err := d.read()
	if data == nil || err != nil {
		return nil, err
	}
	if has, err := meet.HasLog(d.Data()); err != nil {
		return nil, d.unfit("cannot be read: %v", err)
	} else if !has {
		return nil, nil
	}
	return data, nil
}

// Note writes the marker.
//
// It returns ErrDir if the marker does not say it durably.
func (d Dir) Note(data *member.Data) error {
	if err := meet.WriteJSON(d.marker(), data); err != nil {
		return d.unfit("cannot be written: %v", err)
	}
	return nil
}

// setAside keeps the data that is there under another name, so that a member starts without any.
func (d Dir) setAside(why string, now time.Time) error {
	err := os.Rename(d.Data(), d.Data()+"-"+why+"-"+now.UTC().Format(snapshotTime))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return d.unfit("cannot be written: %v", err)
	}
	return nil
}

// Copy is data that a restore or a loss left beside the present one.
type Copy struct {
	Path string    `json:"path"`
	At   time.Time `json:"at"`
	Size int64     `json:"size"`
}

// copiesFor is how long copies stay; the latest of them stays longer.
const copiesFor = 7 * 24 * time.Hour

// Copies returns what setAside kept, the latest first.
func (d Dir) Copies() (out []Copy) {
	paths, _ := filepath.Glob(d.Data() + "-*-*")
	for _, path := range paths {
		at, err := time.Parse(snapshotTime, path[strings.LastIndexByte(path, '-')+1:])
		if err != nil {
			continue
		}
		one := Copy{Path: path, At: at}
		_ = filepath.WalkDir(path, func(_ string, e fs.DirEntry, err error) error {
			if err == nil {
				if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
					one.Size += info.Size()
				}
			}
			return nil
		})
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Copy) int { return b.At.Compare(a.At) })
	return out
}

// forget deletes the copies that are old, except for the latest, and returns them.
func (d Dir) forget(now time.Time) (gone []Copy, err error) {
	for i, one := range d.Copies() {
		if i > 0 && now.Sub(one.At) > copiesFor {
			if err := os.RemoveAll(one.Path); err != nil {
				return gone, err
			}
			gone = append(gone, one)
		}
	}
	return gone, nil
}

// newer reports whether version a is of a later minor version than b.
func newer(a, b string) bool {
	var ofA, ofB struct{ major, minor int }
	_, errA := fmt.Sscanf(a, "%d.%d", &ofA.major, &ofA.minor)
	_, errB := fmt.Sscanf(b, "%d.%d", &ofB.major, &ofB.minor)
	return errA == nil && errB == nil && (ofA.major > ofB.major || ofA.major == ofB.major && ofA.minor > ofB.minor)
}
