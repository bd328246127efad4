package interop

import (
	"bytes"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/proc"
)

// TestSQL runs the SQL of pages in PostgreSQL, the blocks of one page one after the other,
// and compares what is printed.
func TestSQL(t *testing.T) {
	for _, path := range []string{
		"../../../docs/how-to/store-ids.md", "../../../docs/how-to/move-from-uuids.md", "../../../docs/how-to/move-from-bigserial.md",
		breaks,
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			page := pages.Open(t, path)
			if got, want := inPostgres(t, page.Text(t, "run: postgres")), page.Text(t, "prints: postgres"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestSQLFiles runs the SQL that pages refer to.
func TestSQLFiles(t *testing.T) {
	for name, run := range map[string]func(*testing.T, string) string{
		"move-from-uuids.sql": inMariaDB, "move-from-uuids-postgres.sql": inPostgres,
		"store-ids-mariadb.sql": inMariaDB, "store-ids-sqlite.sql": inSQLite,
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile("../../../examples/sql/" + name)
			fatal.If(t, err)
			sql, want, ok := strings.Cut(string(text), "\n-- prints:\n-- ")
			if !ok {
				t.Fatal("the file does not say what it prints")
			}
			want = strings.ReplaceAll(want, "\n-- ", "\n")
			if got := run(t, sql); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func inSQLite(t *testing.T, sql string) string {
	return output(t, sql, tool(t, "sqlite3"), "-batch", ":memory:")
}

func inPostgres(t *testing.T, sql string) string { return postgres.Start(t).Psql(t, sql) }

// inMariaDB runs sql in a server of its own.
func inMariaDB(t *testing.T, sql string) string {
	return sqlMariaDB(t, startMariaDB(t), "CREATE DATABASE page; USE page;\n"+sql)
}

func sqlMariaDB(t *testing.T, socket, sql string) string {
	return output(t, sql, tool(t, "mariadb"), "--no-defaults", "--batch", "--skip-column-names", "--default-character-set=utf8mb4", "--socket="+socket)
}

// startMariaDB starts a server that listens on a socket in a directory of its own alone, and returns the socket.
func startMariaDB(t *testing.T) string {
	t.Helper()
	server, err := exec.LookPath("mariadbd")
	if err != nil {
		server = "/usr/sbin/mariadbd" // where Debian has it, not in everybody's PATH
	}
	if _, err := os.Stat(server); err != nil {
		t.Skip("not run: mariadbd is not installed (Debian: apt-get install mariadb-server-core mariadb-client-core)")
	}
	dir, err := os.MkdirTemp("", "maria")
	fatal.If(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	me, err := user.Current()
	fatal.If(t, err)
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "socket")
	output(t, "", tool(t, "mariadb-install-db"), "--no-defaults", "--skip-test-db", "--user="+me.Username, "--datadir="+data)
	cmd := exec.Command(server, "--no-defaults", "--skip-networking", "--skip-grant-tables", "--user="+me.Username, "--datadir="+data, "--socket="+socket)
	p := proc.Run(t, cmd)
	t.Cleanup(p.Kill)
	p.Until(t, "mariadbd listens", func() error {
		_, err := os.Stat(socket)
		return err
	})
	return socket
}

// output runs a program with input and returns what it prints.
func output(t *testing.T, input, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin, cmd.Dir = strings.NewReader(input), os.TempDir()
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(name), err, &problems)
	}
	return out.String()
}
