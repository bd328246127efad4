package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/tier"
)

const breaks = "../../../docs/how-to/where-ids-break.md"

// TestColumns reads an ID from a column through each library of the page's table, and changes the row with what came.
func TestColumns(t *testing.T) {
	tier.Check(t, "npm installs 100 packages")
	npm, program, dir := tool(t, "npm"), tool(t, "node"), t.TempDir()
	fatal.If(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "columns"))))
	if out, err := exec.CommandContext(t.Context(), npm, "ci", "--prefix", dir, "--ignore-scripts", "--no-audit",
		"--no-fund").CombinedOutput(); err != nil {
		t.Skipf("not run: npm ci: %v\n%s", err, out)
	}
	const table = `CREATE TABLE orders (id BIGINT PRIMARY KEY, note TEXT);
		INSERT INTO orders VALUES (95734197552188192, 'neighbor'), (95734197552188193, 'this'), (95734197552188224, 'neighbor');`
	server := postgres.Start(t)
	server.Psql(t, table)
	socket := startMariaDB(t)
	sqlMariaDB(t, socket, "CREATE DATABASE ids; USE ids;"+table)
	text, err := os.ReadFile(breaks)
	fatal.If(t, err)
	_, rows, _ := strings.Cut(string(text), "<!-- drivers -->\n")
	rows, _, _ = strings.Cut(rows, "<!-- drivers -->")
	tried := 0
	for row := range strings.Lines(rows) {
		cells := strings.Split(strings.Trim(row, "| \n"), " | ")
		library, _, _ := strings.Cut(cells[0], " ")
		library = strings.Trim(library, ",")
		if len(cells) != 4 || library == "library" || strings.Contains(cells[0], "not run") {
			continue
		}
		tried++
		t.Run(library, func(t *testing.T) {
			switch library {
			case "better-sqlite3":
				tier.Nightly(t, "SQLite is compiled")
				if out, err := exec.CommandContext(t.Context(), npm, "rebuild", "--prefix", dir, library).CombinedOutput(); err != nil {
					t.Skipf("not run: npm rebuild: %v\n%s", err, out)
				}
			case "Prisma":
				tier.Nightly(t, "npm installs 100 packages more")
				if out, err := exec.CommandContext(t.Context(), npm, "install", "--no-save", "--prefix", dir, "--ignore-scripts", "--no-audit",
					"--no-fund", "prisma@7.10.0", "@prisma/client@7.10.0", "@prisma/adapter-pg@7.10.0").CombinedOutput(); err != nil {
					t.Skipf("not run: npm install: %v\n%s", err, out)
				}
				generatePrisma(t, dir)
			case "node:sqlite":
				if _, err := run(t, "", program, "-e", "require('node:sqlite')"); err != nil {
					t.Skip("not run: this Node.js has no node:sqlite; from 22.13 on it does")
				}
			}
			got := output(t, "", program, filepath.Join(dir, "columns.mjs"), library, server.Dir, socket)
			if want := cells[1] + " | " + cells[3]; strings.TrimSpace(got) != want {
				t.Errorf("got %s, the page has %s", got, want)
			}
		})
	}
	if tried != 9 {
		t.Errorf("%d libraries", tried)
	}
}

// Three UUIDs in the order of their IDs, whose second halves are in another one.
const uuids = "('01855978-effc-758f-bfc1-6b755429799c', 1), ('01855978-f00f-74c2-a6f0-8e8c5445ec9a', 2), " +
	"('01855978-f019-7104-8ab4-79f068bc8150', 3)"

// TestOrders sorts what the page says of types and collations, and runs its queries where the order is right and where
// it is not.
func TestOrders(t *testing.T) {
	page := pages.Open(t, breaks)
	types, collations := page.Text(t, "run: types"), page.Text(t, "run: collations")
	const tables = `CREATE TABLE u (id uuid PRIMARY KEY, n int); INSERT INTO u VALUES ` + uuids + `;
		CREATE TABLE texts (id %s); INSERT INTO texts VALUES ('02MA'), ('010A'), ('02NZ'), ('02NT'), ('02ny');`
	// SQL Server's order, and that of a column's bytes.
	lastBytes := strings.Replace(types, "ORDER BY id", "ORDER BY substr(CAST(id AS char(36)), 25)", 1)
	bytes := strings.Replace(collations, `id COLLATE "C" < earlier`, "hex(id) < hex(earlier)", 1)
	t.Run("MariaDB", func(t *testing.T) {
		got := inMariaDB(t, fmt.Sprintf(tables, "char(4) COLLATE utf8mb4_estonian_ci")+`
			SELECT group_concat(n ORDER BY id) FROM u;`+types+lastBytes+bytes+`
			ALTER TABLE texts MODIFY id char(4) CHARACTER SET ascii COLLATE ascii_bin;`+bytes+`
			SELECT '02NZ' < '02NT' COLLATE utf8mb4_estonian_ci, '02NY' < '02NK' COLLATE utf8mb4_lithuanian_ci;
			SELECT group_concat(id ORDER BY id) FROM texts;`)
		if got != "1,2,3\n0\n1\n1\n0\n1\t1\n010A,02MA,02NT,02NZ,02ny\n" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		got := inPostgres(t, `CREATE COLLATION digits (provider = icu, locale = 'en-u-kn-true');`+fmt.Sprintf(tables, "text COLLATE digits")+`
			SELECT array_agg(n ORDER BY id) FROM u;`+types+lastBytes+collations+`
			ALTER TABLE texts ALTER id TYPE text COLLATE "C";`+collations+`
			SELECT '02NY' < '02NK' COLLATE "lt-x-icu", '02MA' < '010A' COLLATE digits, '02MA' < '010A' COLLATE "C";`)
		if got != "{1,2,3}\n0\n1\n2\n0\nt|t|f\n" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("SQLite", func(t *testing.T) {
		for collation, want := range map[string]string{"NOCASE": "1\n", "BINARY": "0\n"} {
			if got := output(t, "", tool(t, "sqlite3"), ":memory:", fmt.Sprintf(tables, "text COLLATE "+collation)+bytes); got != want {
				t.Errorf("%s: got %s", collation, got)
			}
		}
	})
	t.Run("ClickHouse", func(t *testing.T) {
		tier.Nightly(t, "npm installs 550 MB")
		dir := t.TempDir()
		if out, err := exec.CommandContext(t.Context(), tool(t, "npm"), "install", "--prefix", dir, "--ignore-scripts", "--no-audit",
			"--no-fund", "chdb@3.4.0").CombinedOutput(); err != nil {
			t.Skipf("not run: npm install: %v\n%s", err, out)
		}
		got := output(t, "", tool(t, "node"), "-e", `const { query } = require(process.argv[1] + '/node_modules/chdb')
			const u = "WITH u AS (SELECT id, n FROM values('id UUID, n Int8', `+uuids+`)) "
			for (const by of ['id', 'toUInt128(id)']) {
				console.log(query(u + 'SELECT groupArray(n) FROM (SELECT n FROM u ORDER BY ' + by + ')', 'TSV').trim())
				console.log(query(u + process.argv[2].replace('ORDER BY id', 'ORDER BY ' + by).replace(';', ''), 'TSV').trim())
			}
			for (const quote of [0, 1]) {
				console.log(query('SELECT 95734197552188193::UInt64 AS id SETTINGS output_format_json_quote_64bit_integers=' + quote, 'JSONEachRow').trim())
			}`, dir, page.Text(t, "run: clickhouse"))
		if got != "[3,2,1]\n2\n[1,2,3]\n0\n{\"id\":95734197552188193}\n{\"id\":\"95734197552188193\"}\n" {
			t.Errorf("got %s", got)
		}
	})
}

// TestSpreadsheet opens a file with IDs and writes it again.
func TestSpreadsheet(t *testing.T) {
	tier.Check(t, "LibreOffice starts")
	office, dir := tool(t, "soffice"), t.TempDir()
	file := filepath.Join(dir, "ids.csv")
	const uuid = "01a1f9d9-1a9a-7082-a8a2-962be40838f5"
	fatal.If(t, os.WriteFile(file, []byte("id,note\n95734197552188193,int\n0234567890E12,flake\n"+uuid+",uuid\n"), 0o600))
	output(t, "", office, "--headless", "--norestore", "-env:UserInstallation=file://"+dir+"/user", "--convert-to", "csv",
		"--outdir", filepath.Join(dir, "out"), file)
	got, err := os.ReadFile(filepath.Join(dir, "out", "ids.csv"))
	if want := "id,note\n9.57341975521882E+016,int\n2.3456789E+020,flake\n" + uuid + ",uuid\n"; err != nil || string(got) != want {
		t.Errorf("%v: got\n%s\nwant\n%s", err, got, want)
	}
}

// TestRoundedIDs runs what the page shows of programs that round.
func TestRoundedIDs(t *testing.T) {
	if v := strings.TrimSpace(output(t, "", tool(t, "jq"), "--version")); v != "jq-1.6" {
		t.Skipf("not run: %s keeps the digits, jq-1.6 does not", v)
	}
	path, err := buildAllocator()
	fatal.If(t, err)
	shell := pages.NewShell(t, pages.Config{Dir: t.TempDir(), Env: []string{"PATH=" + filepath.Dir(path) + ":" + os.Getenv("PATH")}})
	for _, b := range pages.Open(t, breaks).Blocks {
		if b.Mark == "run: rounded" {
			if err := shell.Carry(b); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Error("the page has no such block")
}
