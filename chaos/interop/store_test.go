package interop

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

	"github.com/flakelease/allocator/chaos/pages"
)

// TestStoreIDs runs the SQL of docs/how-to/store-ids.md in SQLite and PostgreSQL, and
// compares what it prints.
func TestStoreIDs(t *testing.T) {
	page := pages.Open(t, "../../docs/how-to/store-ids.md")
	for name, run := range map[string]func(*testing.T, string) string{"sqlite": inSQLite, "postgres": inPostgres} {
		t.Run(name, func(t *testing.T) {
			if got, want := run(t, page.Text(t, "run: "+name)), page.Text(t, "prints: "+name); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func inSQLite(t *testing.T, sql string) string {
	return output(t, nil, sql, tool(t, "sqlite3"), "-batch", ":memory:")
}

// inPostgres runs sql in a server of its own, which listens on a socket in its directory alone.
func inPostgres(t *testing.T, sql string) string {
	bin, err := postgresBin()
	if err != nil {
		t.Skipf("not run: %v", err)
	}
	dir, err := os.MkdirTemp("", "pg") // a path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // PostgreSQL does not run as root
		if as.Credential, err = credential("postgres"); err != nil {
			t.Skipf("not run: %v", err)
		}
		if err := os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	output(t, as, "", filepath.Join(bin, "initdb"), "--no-sync", "--auth=trust", "--username=test", "--pgdata", data)
	ctl := filepath.Join(bin, "pg_ctl")
	output(t, as, "", ctl, "start", "--wait", "--silent", "--pgdata", data, "--log", filepath.Join(dir, "log"),
		"--options", fmt.Sprintf("-F -c listen_addresses='' -c unix_socket_directories=%s", dir))
	t.Cleanup(func() { output(t, as, "", ctl, "stop", "--silent", "--mode=immediate", "--pgdata", data) })
	return output(t, as, sql, filepath.Join(bin, "psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
		"--variable=ON_ERROR_STOP=1", "--host", dir, "--username=test", "--dbname=postgres")
}

// output runs a program with input, as as, and returns what it prints.
func output(t *testing.T, as *syscall.SysProcAttr, input, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...) // not ended with the test's context: it also stops the server
	cmd.Stdin, cmd.SysProcAttr, cmd.Dir = strings.NewReader(input), as, os.TempDir()
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(name), err, &problems)
	}
	return out.String()
}

func postgresBin() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // where Debian has it, outside PATH
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			found = []string{path}
		}
	}
	if len(found) == 0 {
		return "", errors.New("initdb is not installed (Debian: apt-get install postgresql)")
	}
	return filepath.Dir(found[len(found)-1]), nil
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no user %s: %w", name, err)
	}
	uid, errU := strconv.ParseUint(u.Uid, 10, 32)
	gid, errG := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(errU, errG)
}
