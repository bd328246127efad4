// Package unixsocket listens on Unix sockets: with the mode and owner that are asked for from the
// first moment on, beside a lock that tells a socket in use from one that a process left behind.
//
// A socket that is in use is never removed, nor a file that is no socket, nor what another user
// owns. The lock is the file PATH.lock, which a process holds for as long as it listens and the
// kernel lets go when it ends, however it ends. The file stays: whoever removed it could remove
// one that another process has just locked.
//
// Who may connect is what the socket's mode says. Who has connected is known from the kernel, as
// [Peer]: accepted connections have it as their remote address.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Prefix begins an address that names a Unix socket.
const Prefix = "unix:"

// MaxPath is how many bytes a path may have: the kernel's sockaddr_un has 108, with a zero at the end.
const MaxPath = 107

// Errors of Listen and Check. They come wrapped with the path and what to do.
var (
	ErrPath  = errors.New("the path of a Unix socket is wrong")
	ErrInUse = errors.New("the socket is in use")
	ErrOwner = errors.New("the file belongs to another user")
	ErrFile  = errors.New("the file is no socket")
)

// Path returns the path of an address unix:/path or unix:///path, and whether it is one.
func Path(addr string) (string, bool) {
	path, ok := strings.CutPrefix(addr, Prefix)
	if !ok {
		return "", false
	}
	if absolute, ok := strings.CutPrefix(path, "//"); ok {
		path = absolute
	}
	return path, true
}

// Is reports whether an address names a Unix socket.
func Is(addr string) bool { return strings.HasPrefix(addr, Prefix) }

// Check returns ErrPath if an address that Is accepts has no path that a socket can have.
func Check(addr string) error {
	path, _ := Path(addr)
	switch {
	case !strings.HasPrefix(path, "/"):
		return fmt.Errorf("%w: %.80q has no absolute path: write unix:/run/allocator/NAME.sock", ErrPath, addr)
	case len(path) > MaxPath:
		return fmt.Errorf("%w: %.40q… has %d bytes, and the kernel takes %d: use a shorter path", ErrPath, path,
			len(path), MaxPath)
	case strings.ContainsRune(path, 0) || strings.HasSuffix(path, "/"):
		return fmt.Errorf("%w: %.80q names no file: write unix:/run/allocator/NAME.sock", ErrPath, addr)
	}
	return nil
}

// Config is a socket to listen on.
type Config struct {
	Addr  string      // unix:/path
	Mode  fs.FileMode // The socket never has more than these permissions.
	Group string      // name or number; "": that of the process
}

// Listener is a Unix socket. Accept returns a *Conn.
type Listener struct {
	*net.UnixListener
	path string
	made os.FileInfo // the socket as it was made
	lock *os.File

	once   sync.Once // the first Close
	closed error     // what it returned
}

// Listen opens a socket.
//
// It returns ErrPath, ErrInUse, ErrOwner or ErrFile, or the error of a call of the system.
// After an error there is no new socket.
func Listen(ctx context.Context, cfg Config) (*Listener, error) {
	if err := Check(cfg.Addr); err != nil {
		return nil, err
	}
	path, _ := Path(cfg.Addr)
	gid, err := group(cfg.Group)
	if err != nil {
		return nil, err
	}
	lock, err := acquire(path + ".lock")
	if err != nil {
		return nil, err
	}
	l, err := bind(ctx, path, cfg.Mode.Perm(), gid)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	l.lock = lock
	return l, nil
}

// bind makes the socket, which is locked.
func bind(ctx context.Context, path string, mode fs.FileMode, gid int) (*Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	u, err := listenClosed(ctx, path)
	if err != nil {
		return nil, err
	}
	u.SetUnlinkOnClose(false) // Close looks first whose it is.
	l := &Listener{UnixListener: u, path: path}
	if l.made, err = os.Lstat(path); err == nil {
		err = open(path, l.made, gid, mode)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// removeStale removes a socket that nobody listens on.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%w: %s: remove it, or use another path", ErrFile, path)
	case !ours(info):
		return fmt.Errorf("%w: %s: have its owner remove it, or use another path", ErrOwner, path)
	}
	err = connect(ctx, path)
	if errors.Is(err, fs.ErrPermission) && info.Mode().Perm() == 0 {
		err = connectClosed(ctx, path, info)
	}
	if err == nil {
		return inUse(path)
	}
	if !refused(err) { // EAGAIN, EACCES: somebody may well listen.
		return fmt.Errorf("%w, as far as can be told: %w: stop the process that listens on %s, or use another path",
			ErrInUse, err, path)
	}
	return os.Remove(path)
}

// connectClosed connects to a socket with mode 0, as one has that we replace if its process ended before
// it set the mode. Only the root user may connect to one, but its owner may change the mode.
func connectClosed(ctx context.Context, path string, found os.FileInfo) error {
	if err := open(path, found, -1, 0o600); err != nil {
		return err
	}
	err := connect(ctx, path)
	if !refused(err) { // It stays, as it was.
		err = errors.Join(err, open(path, found, -1, 0))
	}
	return err
}

// replaced is the error of a socket in whose place there is something else.
func replaced(path string) error {
	return fmt.Errorf("%w any more: %s was replaced meanwhile: use a directory that no other user may write", ErrFile,
		path)
}

// notGiven explains the error of a socket that was to belong to somebody else.
func notGiven(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: this process may not give the socket away: name a group that it is in", err)
	}
	return err
}

// connect returns nil if somebody listens.
func connect(ctx context.Context, path string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

func inUse(path string) error {
	return fmt.Errorf("%w: another process listens on %s: stop it, or use another path", ErrInUse, path)
}

// group returns the number of a group; -1: that of the process.
func group(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	n, err := strconv.ParseUint(name, 10, 31)
	if err != nil {
		text, unknown := groupID(name)
		if unknown != nil {
			return 0, fmt.Errorf("group %q: %w: name a group of this machine, or a number", name, unknown)
		}
		return strconv.Atoi(text)
	}
	return int(n), nil
}

// Accept returns the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return &Conn{UnixConn: c, peer: peerOf(c)}, nil
}

// Close ends listening, and removes the socket if it is still the one that Listen made. A second
// call waits for the first and returns its error: the lock ends after the socket, or another
// process could lose the one that it made meanwhile.
func (l *Listener) Close() error {
	l.once.Do(func() { l.closed = l.close() })
	return l.closed
}

func (l *Listener) close() error {
	err := l.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) { // by somebody who accepts from a duplicate of its descriptor
		err = nil
	}
	if now, statErr := os.Lstat(l.path); statErr == nil && l.made != nil && os.SameFile(now, l.made) && err == nil {
		err = os.Remove(l.path)
	}
	if l.lock != nil {
		_ = l.lock.Close()
	}
	return err
}

// Addr returns the socket as unix:/path.
func (l *Listener) Addr() net.Addr { return address(l.path) }

type address string

func (address) Network() string  { return "unix" }
func (a address) String() string { return Prefix + filepath.Clean(string(a)) }

// Conn is an accepted connection.
type Conn struct {
	*net.UnixConn
	peer Peer
}

// RemoteAddr returns the Peer.
func (c *Conn) RemoteAddr() net.Addr { return c.peer }

// Peer is the process that connected, as the kernel told it then. The zero value is an unknown one.
type Peer struct {
	UID, PID int
	Known    bool
}

// Network returns "unix".
func (Peer) Network() string { return "unix" }

// String returns the peer for a log, such as "uid:1000,pid:4242".
func (p Peer) String() string {
	if !p.Known {
		return "unix"
	}
	return fmt.Sprintf("%s%d,pid:%d", userPrefix, p.UID, p.PID)
}

const userPrefix = "uid:"

// User returns the user in the text of a Peer, such as "uid:1000", by which callers are distinguished;
// "unix" if it is not known; "" of any other address.
func User(addr string) string {
	if addr == (Peer{}).String() {
		return addr
	}
	if user, _, ok := strings.Cut(addr, ",pid:"); ok && strings.HasPrefix(user, userPrefix) {
		return user
	}
	return ""
}
