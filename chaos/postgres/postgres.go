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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Server is a server that listens on a socket alone. Its superuser is "test", without a
// password.
type Server struct {
	Dir string // directory of the socket
	Bin string // directory of PostgreSQL's programs

	settings []string
	data     string
	control  func(args ...string) error // pg_ctl, with the data directory
	stop     func() error
}

// Start returns a new server that is stopped when the test ends. Settings are such as
// "wal_level=logical". It skips the test where PostgreSQL is not installed.
func Start(t *testing.T, settings ...string) *Server {
	t.Helper()
	s, _, err := New(settings...)
	return started(t, s, err)
}

// New returns a new server, and what stops it. The error is ErrMissing where PostgreSQL is not installed.
func New(settings ...string) (s *Server, stop func() error, err error) {
	s, err = start(settings, func(run runner, data string) error {
		return run("initdb", "--no-sync", "--auth=trust", "--username=test", "--pgdata", data)
	})
	if err != nil {
		return nil, nil, err
	}
	return s, s.stop, nil
}

// ErrMissing means that PostgreSQL cannot run here.
var ErrMissing = errors.New("PostgreSQL cannot run here")

func started(t *testing.T, s *Server, err error) *Server {
	t.Helper()
	if errors.Is(err, ErrMissing) {
		t.Skipf("not run: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
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
	return s.backup(t, "--write-recovery-conf")
}

// Backup returns a new server that begins with a base backup of s, and takes writes as s does.
func (s *Server) Backup(t *testing.T) *Server {
	t.Helper()
	return s.backup(t)
}

func (s *Server) backup(t *testing.T, more ...string) *Server {
	t.Helper()
	copied, err := s.copied(more...)
	return started(t, copied, err)
}

// NewStandby is Standby outside of tests, with what stops the new server.
func (s *Server) NewStandby() (standby *Server, stop func() error, err error) {
	standby, err = s.copied("--write-recovery-conf")
	if err != nil {
		return nil, nil, err
	}
	return standby, standby.stop, nil
}

func (s *Server) copied(more ...string) (*Server, error) {
	return start(s.settings, func(run runner, data string) error {
		return run("pg_basebackup", append(more, "--no-sync", "--checkpoint=fast", "--host", s.Dir, "--username=test",
			"--pgdata", data)...)
	})
}

// Copy shuts s down, copies its files, and starts both.
func (s *Server) Copy(t *testing.T) *Server {
	t.Helper()
	if err := s.control("stop", "--mode", "fast"); err != nil {
		t.Fatal(err)
	}
	copied, err := start(s.settings, func(run runner, data string) error { return run("/bin/cp", "-a", s.data, data) })
	if err := s.control("start"); err != nil {
		t.Fatal(err)
	}
	return started(t, copied, err)
}

// Kill ends all processes of the server at once, as a loss of power does, and starts it again.
func (s *Server) Kill(t *testing.T) {
	t.Helper()
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if err := s.control("start"); err != nil {
		t.Fatal(err)
	}
}

// Processes returns the processes of the server: the one that starts the others, and one of each connection among them.
func (s *Server) Processes() ([]int, error) {
	pid, err := s.first()
	all := []int{pid}
	tasks, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for child := range strings.FieldsSeq(string(tasks)) {
		n, _ := strconv.Atoi(child)
		all = append(all, n)
	}
	return all, err
}

// first returns the process that starts the others.
func (s *Server) first() (pid int, err error) {
	text, err := os.ReadFile(filepath.Join(s.data, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(first)
}

// End is Kill that does not start the server again.
func (s *Server) End() error {
	pid, err := s.first()
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGSTOP) // It starts no more processes.
	}
	if err != nil {
		return err
	}
	all, err := s.Processes()
	if err != nil {
		return err
	}
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for n := 0; slices.ContainsFunc(all, runs); n++ {
		if time.Sleep(5 * time.Millisecond); n > 12_000 {
			return errors.New("processes of the server do not end")
		}
	}
	// They name the process, whose number the system may still have.
	return errors.Join(os.Remove(filepath.Join(s.data, "postmaster.pid")),
		os.Remove(filepath.Join(s.Dir, ".s.PGSQL.5432.lock")))
}

// runs reports whether a process has memory still: one that ended has none, also before its parent notices.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// Stop ends the server, as a crash does, and removes its files.
func (s *Server) Stop(t *testing.T) {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}

func start(settings []string, create func(run runner, data string) error) (_ *Server, err error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pg") // a path of t.TempDir is too long for a socket
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // PostgreSQL does not run as root
		if as.Credential, err = credential("postgres"); err != nil {
			return nil, err
		}
		if err := os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid)); err != nil {
			return nil, err
		}
	}
	run := func(name string, args ...string) error {
		if !filepath.IsAbs(name) {
			name = filepath.Join(bin, name)
		}
		cmd := exec.Command(name, args...)
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
		return nil, err
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
		return nil, err
	}
	stop := sync.OnceValue(func() error {
		err := run("pg_ctl", "stop", "--silent", "--mode=immediate", "--pgdata", data)
		return errors.Join(err, os.RemoveAll(dir))
	})
	return &Server{Dir: dir, Bin: bin, settings: settings, data: data, control: control, stop: stop}, nil
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
func (s *Server) Promote() error { return s.control("promote") }

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
