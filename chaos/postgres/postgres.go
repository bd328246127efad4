// Package postgres starts PostgreSQL servers for tests and measurements, from Debian's package.
package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Server is a server that listens on a socket alone. Its superuser is "test", without a
// password.
type Server struct {
	Dir string // directory of the socket
	Bin string // directory of PostgreSQL's programs

	settings []string
	control  func(args ...string) error // pg_ctl, with the data directory
}

// Start returns a new server that is stopped when the test ends. Settings are such as
// "wal_level=logical". It skips the test where PostgreSQL is not installed.
func Start(t *testing.T, settings ...string) *Server {
	t.Helper()
	s, stop, err := New(settings...)
	return started(t, s, stop, err)
}

// New returns a new server, and what stops it. The error is ErrMissing where PostgreSQL is not installed.
func New(settings ...string) (s *Server, stop func() error, err error) {
	return start(settings, func(run runner, data string) error {
		return run("initdb", "--no-sync", "--auth=trust", "--username=test", "--pgdata", data)
	})
}

// ErrMissing means that PostgreSQL cannot run here.
var ErrMissing = errors.New("PostgreSQL cannot run here")

func started(t *testing.T, s *Server, stop func() error, err error) *Server {
	t.Helper()
	if errors.Is(err, ErrMissing) {
		t.Skipf("not run: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// runner runs one of PostgreSQL's programs.
type runner func(name string, args ...string) error

// Standby returns a new server that repeats what s writes.
func (s *Server) Standby(t *testing.T) *Server {
	t.Helper()
	standby, stop, err := start(s.settings, func(run runner, data string) error {
		return run("pg_basebackup", "--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--host", s.Dir,
			"--username=test", "--pgdata", data)
	})
	return started(t, standby, stop, err)
}

func start(settings []string, create func(run runner, data string) error) (_ *Server, stop func() error, err error) {
	bin, err := programs()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "pg") // a path of t.TempDir is too long for a socket
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // PostgreSQL does not run as root
		if as.Credential, err = credential("postgres"); err != nil {
			return nil, nil, err
		}
		if err := os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid)); err != nil {
			return nil, nil, err
		}
	}
	run := func(name string, args ...string) error {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.SysProcAttr, cmd.Dir = as, os.TempDir()
		var problems bytes.Buffer
		cmd.Stderr = &problems
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, &problems)
		}
		return nil
	}
	data := filepath.Join(dir, "data")
	if err := create(run, data); err != nil {
		return nil, nil, err
	}
	options := fmt.Sprintf("-F -c listen_addresses='' -c unix_socket_directories=%s", dir)
	for _, s := range settings {
		options += " -c " + s
	}
	control := func(args ...string) error {
		return run("pg_ctl", append(args, "--wait", "--silent", "--pgdata", data, "--log", filepath.Join(dir, "log"),
			"--options", options)...)
	}
	if err := control("start"); err != nil {
		return nil, nil, err
	}
	stop = func() error {
		err := run("pg_ctl", "stop", "--silent", "--mode=immediate", "--pgdata", data)
		return errors.Join(err, os.RemoveAll(dir))
	}
	return &Server{Dir: dir, Bin: bin, settings: settings, control: control}, stop, nil
}

// Restart stops the server and starts it again. With mode "immediate" it is as after a crash, with "fast" it was shut
// down.
func (s *Server) Restart(t *testing.T, mode string) {
	t.Helper()
	if err := s.control("restart", "--mode", mode); err != nil {
		t.Fatal(err)
	}
}

// Promote makes a standby take writes.
func (s *Server) Promote(t *testing.T) {
	t.Helper()
	if err := s.control("promote"); err != nil {
		t.Fatal(err)
	}
}

// URL is what drivers connect to.
func (s *Server) URL() string { return "postgres://test@/postgres?host=" + s.Dir }

// Psql runs SQL and returns what it prints.
func (s *Server) Psql(t *testing.T, sql string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "psql"),
		"--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
		"--variable=ON_ERROR_STOP=1", s.URL())
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(sql), &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("psql: %v\n%s", err, &problems)
	}
	return out.String()
}

func programs() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // where Debian has it, outside PATH
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			found = []string{path}
		}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("%w: initdb is not installed (Debian: apt-get install postgresql)", ErrMissing)
	}
	return filepath.Dir(found[len(found)-1]), nil
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("%w: it does not run as root, and there is no user %s: %w", ErrMissing, name, err)
	}
	uid, errU := strconv.ParseUint(u.Uid, 10, 32)
	gid, errG := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(errU, errG)
}
