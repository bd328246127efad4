package interop

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/tier"
)

// npm runs npm in a directory, for as long as it takes, and without the scripts of packages.
func npm(t *testing.T, dir string, args ...string) ([]byte, error) {
	t.Helper()
	flags := []string{"--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund"}
	return exec.CommandContext(t.Context(), tool(t, "npm"), append(flags, args...)...).CombinedOutput()
}

// generatePrisma makes the client of the schema in a directory where Prisma is installed.
func generatePrisma(t *testing.T, dir string) {
	t.Helper()
	generate := exec.CommandContext(t.Context(), filepath.Join(dir, "node_modules", ".bin", "prisma"), "generate")
	generate.Dir = dir
	// Otherwise a program for migrations is fetched, which is not needed.
	generate.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "PRISMA_SCHEMA_ENGINE_BINARY="+tool(t, "node"))
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("prisma generate: %v\n%s", err, out)
	}
}

// TestORMs runs the programs of examples/orms: keys of both types have defaults, are read back as they are in the
// database, and so in JSON.
func TestORMs(t *testing.T) {
	tier.Nightly(t, "npm installs 250 packages and compiles SQLite")
	program, dir := tool(t, "node"), t.TempDir()
	fatal.If(t, os.CopyFS(dir, os.DirFS("../../../examples/orms")))
	file := pack(t)
	if out, err := npm(t, dir, "ci"); err != nil {
		t.Skipf("not run: npm ci: %v\n%s", err, out)
	}
	if out, err := npm(t, dir, "install", "--no-save", "--offline", file); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	node := dev(t, "scalable")
	server := postgres.Start(t)
	for _, name := range []string{"drizzle", "knex", "prisma", "sequelize", "typeorm", "better-sqlite3"} {
		t.Run(name, func(t *testing.T) {
			database := strings.ReplaceAll(name, "-", "_")
			if name == "prisma" {
				generatePrisma(t, dir)
			}
			if name == "better-sqlite3" {
				if out, err := npm(t, dir, "rebuild", "--ignore-scripts=false", name); err != nil {
					t.Skipf("not run: npm rebuild: %v\n%s", err, out)
				}
			} else {
				server.Psql(t, "CREATE DATABASE "+database)
				server.Psql(t, "\\connect "+database+"\n"+
					"CREATE TABLE orders (id bigint PRIMARY KEY, item text); CREATE TABLE events (id uuid PRIMARY KEY, item text);")
			}
			cmd := exec.CommandContext(t.Context(), program, filepath.Join(dir, name+".mjs"))
			cmd.Env = append(os.Environ(), "NODES=http://"+node.HTTP, "PGHOST="+server.Dir, "PGUSER=test", "PGDATABASE="+database,
				"SQLITE="+filepath.Join(dir, "orders.db"))
			var problems strings.Builder
			cmd.Stderr = &problems
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, &problems)
			}
			var rows []struct{ ID, Item string }
			if err := json.Unmarshal(out, &rows); err != nil || len(rows) != 3 || rows[2].Item != "sold" || len(rows[2].ID) != 36 {
				t.Fatalf("%v: %s", err, out)
			}
			var want string
			if name == "better-sqlite3" {
				want = output(t, "", tool(t, "sqlite3"), filepath.Join(dir, "orders.db"), "SELECT id FROM orders; SELECT id FROM events")
			} else {
				want = server.Psql(t, "\\connect "+database+"\nSELECT id FROM orders ORDER BY id; SELECT id FROM events;")
			}
			for _, row := range rows {
				if !strings.Contains("\n"+want, "\n"+row.ID+"\n") {
					t.Errorf("%q is not in the database, which has\n%s", row.ID, want)
				}
			}
		})
	}
}
