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
	"time"

	"github.com/flakelease/allocator/chaos/pages"
)

// TestSQL runs the SQL of pages in the databases that they are about, the blocks of one
// page and database one after the other, and compares what is printed.
func TestSQL(t *testing.T) {
	databases := map[string]func(*testing.T, string) string{"postgres": inPostgres, "mariadb": inMariaDB, "sqlite": inSQLite}
	for path, names := range map[string][]string{
		"../../docs/how-to/store-ids.md":       {"postgres", "mariadb", "sqlite"},
		"../../docs/how-to/move-from-uuids.md": {"postgres", "mariadb"},
	} {
		for _, name := range names {
			t.Run(filepath.Base(path)+"/"+name, func(t *testing.T) {
				page := pages.Open(t, path)
				if got, want := databases[name](t, page.Text(t, "run: "+name)), page.Text(t, "prints: "+name); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
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

// inMariaDB runs sql in a server of its own, which listens on a socket in its directory alone.
func inMariaDB(t *testing.T, sql string) string {
	server, err := exec.LookPath("mariadbd")
	if err != nil {
		server = "/usr/sbin/mariadbd" // where Debian has it, not in everybody's PATH
	}
	if _, err := os.Stat(server); err != nil {
		t.Skip("not run: mariadbd is not installed (Debian: apt-get install mariadb-server-core mariadb-client-core)")
	}
	dir, err := os.MkdirTemp("", "maria")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "socket")
	output(t, nil, "", tool(t, "mariadb-install-db"), "--no-defaults", "--skip-test-db", "--user="+me.Username, "--datadir="+data)
	cmd := exec.Command(server, "--no-defaults", "--skip-networking", "--skip-grant-tables", "--user="+me.Username, "--datadir="+data, "--socket="+socket)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	for range time.Tick(50 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		select {
		case <-ended:
			t.Fatalf("mariadbd ended:\n%s", &log)
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		default:
		}
	}
	return output(t, nil, "CREATE DATABASE page; USE page;\n"+sql, tool(t, "mariadb"), "--no-defaults", "--batch", "--skip-column-names", "--default-character-set=utf8mb4", "--socket="+socket)
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
