//go:build linux

package unixsocket_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/unixsocket"
)

func listen(t *testing.T, path string, mode fs.FileMode) *unixsocket.Listener {
	t.Helper()
	l, err := unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: mode})
	fatal.If(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// beside runs look again and again, from before f until after it.
func beside(f, look func()) {
	begun, ended := make(chan struct{}), make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		look()
		close(begun)
		for {
			select {
			case <-ended:
				return
			default:
				look()
			}
		}
	})
	<-begun
	f()
	close(ended)
	looks.Wait()
}

// left makes a socket that nobody listens on, as a killed process leaves it.
func left(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	fatal.If(t, err)
	l.SetUnlinkOnClose(false)
	fatal.If(t, l.Close())
}

func TestPaths(t *testing.T) {
	for addr, want := range map[string]error{
		"unix:/run/a.sock":                       nil,
		"unix:///run/a.sock":                     nil,
		"unix:/" + strings.Repeat("a", 106):      nil,
		"unix:/" + strings.Repeat("a", 107):      unixsocket.ErrPath,
		"unix:a.sock":                            unixsocket.ErrPath,
		"unix:":                                  unixsocket.ErrPath,
		"unix:@abstract":                         unixsocket.ErrPath,
		"unix:/run/":                             unixsocket.ErrPath,
		"unix:/run/a\x00b":                       unixsocket.ErrPath,
		"unix:/run/" + strings.Repeat("é/", 100): unixsocket.ErrPath,
	} {
		if err := unixsocket.Check(addr); !errors.Is(err, want) {
			t.Errorf("Check(%q) = %v, want %v", addr, err, want)
		}
		if want == nil {
			continue
		}
		if _, err := unixsocket.Listen(t.Context(), unixsocket.Config{Addr: addr, Mode: 0o600}); !errors.Is(err, want) {
			t.Errorf("Listen(%q) = %v, want %v", addr, err, want)
		}
	}
	if path, ok := unixsocket.Path("127.0.0.1:9000"); ok || path != "" {
		t.Errorf("host:port has the path %q", path)
	}
	if path, ok := unixsocket.Path("unix:///run/a.sock"); !ok || path != "/run/a.sock" {
		t.Errorf("a URL has the path %q", path)
	}
}

// TestMode checks the mode under every umask, and that the socket is never wider than asked: the
// umask alone would leave it open between bind and chmod.
func TestMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for i := range 200 {
		mask := []int{0, 0o022, 0o077, 0o777}[i%4]
		var l *unixsocket.Listener
		var err error
		old := syscall.Umask(mask)
		beside(func() {
			l, err = unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o620})
		}, func() {
			if info, err := os.Lstat(path); err == nil && info.Mode().Perm()&^0o620 != 0 {
				t.Errorf("umask %o: the socket had mode %v", mask, info.Mode())
			}
		})
		syscall.Umask(old)
		fatal.If(t, err)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o620 {
			t.Errorf("umask %o: mode %v, %v", mask, info.Mode(), err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestReplacedSocketStays: another program may put a file or a link in the place of a new socket, before the socket gets
// its mode. Neither that file nor the target of the link gets the mode.
func TestReplacedSocketStays(t *testing.T) {
	for name, replace := range map[string]func(path, victim string) error{
		"a link":         func(path, victim string) error { return os.Symlink(victim, path) },
		"a hard link":    func(path, victim string) error { return os.Link(victim, path) },
		"another socket": func(path, _ string) error { left(t, path); return os.Chmod(path, 0o600) },
		"nothing":        func(string, string) error { return nil },
	} {
		dir := t.TempDir()
		path, victim := filepath.Join(dir, "s"), filepath.Join(dir, "victim")
		fatal.If(t, os.WriteFile(victim, nil, 0o600))
		left(t, path)
		made, err := os.Lstat(path)
		fatal.If(t, err)
		if err := unixsocket.Open(path, made, os.Getgid(), 0o640); err != nil {
			t.Errorf("%s: before it was replaced: %v", name, err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|0o640 {
			t.Errorf("%s: before it was replaced: %v, %v", name, info, err)
		}
		kept := path + ".kept" // Else another socket could get its inode.
		fatal.If(t, errors.Join(os.Rename(path, kept), replace(path, victim)))
		if err := unixsocket.Open(path, made, os.Getgid(), 0o666); err == nil {
			t.Errorf("%s: no error", name)
		}
		for _, file := range []string{victim, path} {
			if info, err := os.Stat(file); err == nil && info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %s has mode %v", name, file, info.Mode())
			}
		}
	}
}

func TestStaleIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	left(t, path)
	l := listen(t, path, 0o600)
	if got := l.Addr().String(); got != "unix:"+path {
		t.Errorf("address %q", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := os.Lstat(path + ".lock"); err != nil {
		t.Errorf("the lock after Close: %v", err)
	}
	listen(t, path, 0o600) // as the lock is free
}

// TestLockOutlivesTheSocket: who gets the lock of a listener that ends finds no socket of it any
// more. Else it could make one, which the other would remove.
func TestLockOutlivesTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 200 {
		l := listen(t, path, 0o600)
		lock, err := os.Open(path + ".lock")
		fatal.If(t, err)
		fd := int(lock.Fd())
		beside(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}, func() {
			if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
				return
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket of a lock that is free: %v", err)
			}
			if err := syscall.Flock(fd, syscall.LOCK_UN); err != nil {
				t.Error(err)
			}
		})
		_ = lock.Close()
	}
}

// TestUnfinished: a process that ended before it set the mode of its socket keeps nobody from
// listening there, and one that listens keeps its socket, though nobody but root may connect to find
// out which it is. The root user runs it again as somebody else.
func TestUnfinished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	left(t, path)
	fatal.If(t, os.Chmod(path, 0))
	again := listen(t, path, 0o600)
	fatal.If(t, again.UnixListener.Close()) // as the one does who accepts from a duplicate
	if err := errors.Join(again.Close(), again.Close()); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("closed, and the file is there: %v", err)
	}

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	fatal.If(t, err)
	defer func() { _ = l.Close() }()
	fatal.If(t, os.Chmod(path, 0))
	_, err = unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600})
	if !errors.Is(err, unixsocket.ErrInUse) {
		t.Errorf("beside one that listens: %v", err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0 {
		t.Errorf("the socket of one that listens: %v, %v", info, err)
	}
	if os.Getuid() == 0 {
		asNobody(t, scratch(t), another+"=x")
	}
}

// another is the variable that a test has which another user runs.
const another = "UNIXSOCKET_TEST_PATH"

// scratch makes a directory that all may write.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "socket")
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o777)
	}
	fatal.If(t, err)
	return dir
}

// asNobody runs a test again as a user who may write the directory.
func asNobody(t *testing.T, dir, env string) {
	t.Helper()
	self, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "test"), self, 0o755)
	}
	fatal.If(t, err)
	cmd := exec.Command(filepath.Join(dir, "test"), "-test.run=^"+t.Name()+"$")
	cmd.Env, cmd.Dir = []string{env, "TMPDIR=" + dir}, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as another user: %v\n%s", err, out)
	}
}

// TestInUse checks both ways to see a live socket: the lock of a process of ours, and the accepting
// socket of any other.
func TestInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listen(t, path, 0o600)
	if _, err := unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600}); !errors.Is(err,
		unixsocket.ErrInUse) {
		t.Errorf("beside our own: %v", err)
	}
	path = filepath.Join(t.TempDir(), "s")
	other, err := net.Listen("unix", path)
	fatal.If(t, err)
	defer func() { _ = other.Close() }()
	if _, err := unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600}); !errors.Is(err,
		unixsocket.ErrInUse) {
		t.Errorf("beside a program without the lock: %v", err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the other program's socket: %v", err)
	} else {
		_ = c.Close()
	}
}

func TestOtherFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	fatal.If(t, os.WriteFile(file, []byte("keep"), 0o600))
	link := filepath.Join(dir, "link")
	fatal.If(t, os.Symlink(file, link))
	for _, path := range []string{file, link, dir} {
		_, err := unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600})
		if !errors.Is(err, unixsocket.ErrFile) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "keep" {
		t.Errorf("the file has %q, %v", text, err)
	}
	fatal.If(t, os.Remove(file))
	listen(t, file, 0o600) // as no failure keeps the lock
	_, err := unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + dir + "/none/s", Mode: 0o600})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	cfg := unixsocket.Config{Addr: "unix:" + filepath.Join(dir, "s"), Group: "no-group-of-this-name"}
	if _, err := unixsocket.Listen(t.Context(), cfg); err == nil {
		t.Errorf("%+v was accepted", cfg)
	}
}

// TestAnothersSocket starts this test again as a user who may write the directory and does not own
// the socket that was left there.
func TestAnothersSocket(t *testing.T) {
	if path := os.Getenv(another); path != "" {
		_, err := unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600})
		if !errors.Is(err, unixsocket.ErrOwner) {
			t.Errorf("as another user: %v", err)
		}
		path += ".new"
		_, err = unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600, Group: "root"})
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("given to the group of the root user: %v", err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket that could not be given away: %v", err)
		}
		path = filepath.Join(filepath.Dir(path), "closed", "s")
		_, err = unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600})
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("in a directory of another user: %v", err)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only the root user can become another one")
	}
	dir := scratch(t)
	path := filepath.Join(dir, "s")
	left(t, path)
	closed := filepath.Join(dir, "closed") // has a lock that all may take
	lock := filepath.Join(closed, "s.lock")
	fatal.If(t, errors.Join(os.Mkdir(closed, 0o755), os.WriteFile(lock, nil, 0o600), os.Chmod(lock, 0o666)))
	asNobody(t, dir, another+"="+path)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the socket is gone: %v", err)
	}
}

// TestGroup gives a socket to a group, and nobody may connect before that.
func TestGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only the root user can give a file to any group")
	}
	path := filepath.Join(t.TempDir(), "s")
	look := func() (open, given bool) {
		info, err := os.Lstat(path)
		if err != nil {
			return false, false
		}
		st := info.Sys().(*syscall.Stat_t)
		return info.Mode().Perm() != 0, st.Gid == 4242
	}
	for range 200 {
		beside(func() {
			l, err := unixsocket.Listen(t.Context(), unixsocket.Config{
				Addr:  "unix:" + path,
				Mode:  0o600,
				Group: "4242",
			})
			if err != nil {
				t.Error(err)
				return
			}
			if open, given := look(); !open || !given {
				t.Errorf("open %v, given away %v", open, given)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}, func() {
			if open, given := look(); open && !given {
				t.Error("it was open before it was given away")
			}
		})
	}
}

// TestBusySocketStays: a socket whose queue is full refuses connections as well, and is in use.
func TestBusySocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		defer func() { _ = syscall.Close(fd) }()
		err = errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0))
	}
	fatal.If(t, err)
	for n := 0; err == nil && n < 64; n++ {
		var c net.Conn
		if c, err = net.Dial("unix", path); err == nil {
			defer func() { _ = c.Close() }()
		}
	}
	if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Skip("this kernel has no queue that fills, or refuses then")
	}
	_, err = unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600})
	if !errors.Is(err, unixsocket.ErrInUse) {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket is gone: %v", err)
	}
}

// TestLockIsNoLink: nobody can have a lock made elsewhere, by a link.
func TestLockIsNoLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fatal.If(t, os.Symlink(path+".target", path+".lock"))
	_, err := unixsocket.Listen(t.Context(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600})
	if !errors.Is(err, syscall.ELOOP) && !errors.Is(err, syscall.EMLINK) {
		t.Error(err)
	}
	if _, err := os.Lstat(path + ".target"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the target of the link: %v", err)
	}
}

// TestCloseLeavesOthers checks that Close removes no socket that took the place of its own.
func TestCloseLeavesOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := listen(t, path, 0o600)
	fatal.If(t, os.Rename(path, path+".moved"))
	left(t, path)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another socket is gone: %v", err)
	}
}

// TestStartersRace checks that of many starters on a stale socket one listens, and that its socket
// stays.
func TestStartersRace(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "s")
		left(t, path)
		var mu sync.Mutex // guards won
		var won []*unixsocket.Listener
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				l, err := unixsocket.Listen(context.Background(), unixsocket.Config{Addr: "unix:" + path, Mode: 0o600})
				if err == nil {
					mu.Lock()
					won = append(won, l)
					mu.Unlock()
				} else if !errors.Is(err, unixsocket.ErrInUse) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(won) != 1 {
			t.Fatalf("%d starters listen", len(won))
		}
		c, err := net.Dial("unix", path)
		fatal.If(t, err)
		_ = c.Close()
		_ = won[0].Close()
	}
}

func TestPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := listen(t, path, 0o600)
	c, err := net.Dial("unix", path)
	fatal.If(t, err)
	defer func() { _ = c.Close() }()
	got, err := l.Accept()
	fatal.If(t, err)
	defer func() { _ = got.Close() }()
	want := unixsocket.Peer{UID: os.Getuid(), PID: os.Getpid(), Known: true}
	if got.RemoteAddr() != want {
		t.Errorf("peer %v, want %v", got.RemoteAddr(), want)
	}
	for text, user := range map[string]string{
		want.String():                "uid:" + strings.TrimPrefix(strings.Split(want.String(), ",")[0], "uid:"),
		unixsocket.Peer{}.String():   "unix",
		"127.0.0.1:80":               "",
		"[::1]:80":                   "",
		"node,pid:1":                 "",
		"uid:1000":                   "",
		"uid:1000,pid:1,uid:5,pid:2": "uid:1000",
	} {
		if got := unixsocket.User(text); got != user {
			t.Errorf("User(%q) = %q, want %q", text, got, user)
		}
	}
}
