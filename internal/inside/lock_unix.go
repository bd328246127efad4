//go:build unix

package inside

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/internal/inside/meet"
)

// errTaken says that another process holds a lock.
var errTaken = errors.New("the lock is taken")

// Pauses between two tries to take or to read a lock.
const (
	lockPause = 10 * time.Millisecond
	// lockReads bounds how often a lock is read whose holder has not written who it is yet.
	lockReads = 20
)

// hold takes a lock file for as long as this process lives, and writes into it who that is. It
// tries for a while: a process that asks who holds the lock shares it for a moment.
//
// It returns errTaken with the ID that the process which has it wrote.
func hold(path string, within time.Duration) (release func(), pid int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = meet.Own(filepath.Dir(path), filepath.Base(path))
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	for range within/lockPause + 1 {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		time.Sleep(lockPause)
	}
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		defer f.Close()
		return nil, written(f).pid, errTaken
	case err != nil:
		_ = f.Close()
		return nil, 0, err
	}
	if err = f.Truncate(0); err == nil {
		me := holder{os.Getpid(), namespace(), startOf(os.Getpid())}
		_, err = fmt.Fprintln(f, me.pid, me.namespace, me.start)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return func() { _ = f.Close() }, os.Getpid(), nil
}

// holder names a process. Its ID alone does not: another container has its own, and the system
// gives it to another process later.
type holder struct {
	pid       int
	namespace string
	start     string // in ticks since the system started
}

// unknown stands for what only Linux tells.
const unknown = "-"

// namespace returns the one in which the process IDs count that this process sees.
func namespace() string {
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return unknown
	}
	return name
}

// startOf returns when a process started: field 22, where the second may have spaces and ends
// with a parenthesis.
func startOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return unknown
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return unknown
	}
	return fields[19]
}

// written returns the holder that a lock names; zero: none.
func written(f *os.File) (h holder) {
	var text [128]byte
	n, _ := f.ReadAt(text[:], 0)
	fields := strings.Fields(string(text[:n]))
	if len(fields) != 3 {
		return holder{}
	}
	h.pid, _ = strconv.Atoi(fields[0])
	h.namespace, h.start = fields[1], fields[2]
	return h
}

// holds says that h is a process that this one sees, and the one that wrote it.
func (h holder) holds() bool {
	return h.pid > 0 && h.namespace == namespace() && h.start == startOf(h.pid)
}

// lock takes d for one node.
func (d Dir) lock() (release func(), err error) {
	release, pid, err := hold(d.nodeLock(), lockPause) // Check shares it for a moment.
	switch {
	case errors.Is(err, errTaken):
		return nil, d.inUse(pid)
	case err != nil:
		return nil, d.unfit("cannot be locked: %v", err)
	}
	return release, nil
}

// held returns the ID of the process that holds a lock; 0: none does; unnamed: one does that cannot be
// named. It takes no lock from another process, and writes nothing.
func held(path string) int {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		return unnamed
	}
	defer f.Close()
	for range lockReads {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		if err == nil {
			return 0 // The file's end gives it back.
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return unnamed
		}
		if h := written(f); h.holds() {
			return h.pid
		}
		time.Sleep(lockPause) // It has the lock, and writes.
	}
	return unnamed
}

// access says why path cannot be written.
func access(path string) error {
	return unix.Access(path, unix.W_OK|unix.X_OK)
}

// private says who else could write the directory at path, and so replace what a member starts with: its
// data, its address and its certificates.
func private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	groups, _ := os.Getgroups()
	others := info.Mode()&0o002 != 0 ||
		info.Mode()&0o020 != 0 && int(s.Gid) != os.Getegid() && !slices.Contains(groups, int(s.Gid))
	within := filepath.Join(path, "etcd")
	switch owner := int(s.Uid); {
	case owner != os.Geteuid() && owner != 0:
		return fmt.Errorf("belongs to user %d, who could replace what the member starts with: run the node as that "+
			"user, give the directory to user %d (chown -R), or choose one in it, which the node makes: %s", owner,
			os.Geteuid(), within)
	case others:
		return fmt.Errorf("may be written by others (mode %04o), who could replace what the member starts with: "+
			"chmod go-w %s, or, if the mode cannot be changed, choose a directory in it, which the node makes: %s",
			info.Mode().Perm(), path, within)
	}
	return nil
}

func freeBytes(path string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}

// ahead gives the threads of this process the priority of niceness, where that is allowed: by
// LimitNICE= of the unit, or to root.
func ahead(niceness int) {
	tasks, _ := filepath.Glob("/proc/self/task/*")
	for _, t := range tasks {
		if id, err := strconv.Atoi(filepath.Base(t)); err == nil {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, niceness)
		}
	}
}

// apart starts a process in a session of its own, so that an interrupt at a terminal reaches the
// node alone: the node stops the member after it has given its sid back.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func terminate(pid int) { signal(pid, syscall.SIGTERM) }

func kill(pid int) { signal(pid, syscall.SIGKILL) }

// killGroup kills a process that was started apart, and those that it started.
func killGroup(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }

// signal sends s to one process: 0 and less mean groups of them.
func signal(pid int, s syscall.Signal) {
	if pid > 0 {
		_ = syscall.Kill(pid, s)
	}
}
