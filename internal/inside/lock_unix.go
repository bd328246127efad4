//go:build unix

package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// errTaken says that another process holds a lock.
var errTaken = errors.New("the lock is taken")

// hold takes a lock file for as long as this process lives, and writes its process ID into it.
//
// It returns errTaken with the ID of the process that has it.
func hold(path string) (release func(), pid int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, 0, err
		}
		var text [32]byte
		n, _ := f.ReadAt(text[:], 0)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text[:n])))
		return nil, pid, errTaken
	}
	if err = f.Truncate(0); err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return func() { _ = f.Close() }, os.Getpid(), nil
}

// lock takes d for one node.
func (d Dir) lock() (release func(), err error) {
	if _, err := os.Stat(string(d)); errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	release, pid, err := hold(d.nodeLock())
	switch {
	case errors.Is(err, errTaken):
		return nil, d.unfit("is in use by another node (process %d): stop it, or choose another directory", pid)
	case err != nil:
		return nil, d.unfit("cannot be locked: %v", err)
	}
	return release, nil
}

// runs returns the process ID of the member that runs in d; 0: none does.
func (d Dir) runs() int {
	if _, err := os.Stat(d.etcdLock()); err != nil {
		return 0
	}
	release, pid, err := hold(d.etcdLock())
	if err == nil {
		release()
		return 0
	}
	return pid
}

// access says why path cannot be written.
func access(path string) error {
	return unix.Access(path, unix.W_OK|unix.X_OK)
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

func terminate(pid int) { _ = syscall.Kill(pid, syscall.SIGTERM) }

func kill(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }
