// Package sqlread has the SQL functions that read and convert IDs in databases, without a node or an extension.
//
// One template a database is filled with the numbers of a format, so a change of layouts changes all of them. What is
// no ID of the format becomes NULL. They agree with packages flake and ulid: tests of chaos/real/interop run them.
package sqlread

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

//go:embed *.sql
var files embed.FS

// dialect is how a database takes bits from a number for characters, and makes numbers of characters.
type dialect struct {
	file   string
	encode [3]string // before, between and behind the characters of a number
	char   string    // A character of alphabet $a: the one of the bits of $x from $s on, $m at most.
	or     string    // between the numbers of characters
	number string    // The number of the character of text $x at $i, counted from 1, moved to bit $s.
}

var dialects = map[string]dialect{
	"postgresql": {
		file:   "postgresql.sql",
		encode: [3]string{"", " || ", ""},
		char:   `substr($a, (($x >> $s) & $m)::int + 1, 1)`,
		or:     " | ",
		number: `((strpos($a, substr($x, $i, 1)) - 1)::bigint << $s)`,
	},
	"mysql": {
		file:   "mysql.sql",
		encode: [3]string{"CONCAT(", ", ", ")"},
		char:   `SUBSTR($a, (($x >> $s) & $m) + 1, 1)`,
		or:     " | ",
		number: `((LOCATE(SUBSTR($x, $i, 1), $a) - 1) << $s)`,
	},
	"sqlite": {
		file:   "sqlite.sql",
		encode: [3]string{"", " || ", ""},
		char:   `substr($a, (($x >> $s) & $m) + 1, 1)`,
		or:     " | ",
		number: `((instr($a, substr($x, $i, 1)) - 1) << $s)`,
	},
	"clickhouse": {
		file:   "clickhouse.sql",
		encode: [3]string{"concat(", ", ", ")"},
		char:   `substring($a, bitAnd(bitShiftRight($x, $s), $m) + 1, 1)`,
		or:     " + ",
		number: `bitShiftLeft(toInt64(position($a, substring($x, $i, 1))) - 1, $s)`,
	},
}

// Databases returns the names of the databases that there are functions for.
func Databases() []string { return []string{"postgresql", "mysql", "mariadb", "sqlite", "clickhouse"} }

const (
	base32 = "'0123456789ABCDEFGHJKMNPQRSTVWXYZ'"
	base16 = "'0123456789abcdef'"
)

// encode32 returns n characters of the low bits of number x.
func (d dialect) encode32(x string, n int) string {
	var chars []string
	for i := range n {
		chars = append(chars, strings.NewReplacer("$a", base32, "$x", x, "$s", fmt.Sprint(5*(n-1-i)), "$m", "31").
			Replace(d.char))
	}
	return d.encode[0] + strings.Join(chars, d.encode[1]) + d.encode[2]
}

// decode returns what gives the number of n characters of text x, which begin at from.
func (d dialect) decode(alphabet string, bits int) func(x string, from, n int) string {
	return func(x string, from, n int) string {
		var numbers []string
		for i := range n {
			numbers = append(numbers, strings.NewReplacer("$a", alphabet, "$x", x, "$i", fmt.Sprint(from+i),
				"$s", fmt.Sprint(bits*(n-1-i))).Replace(d.number))
		}
		return "(" + strings.Join(numbers, d.or) + ")"
	}
}

// values are what templates are filled with.
type values struct {
	Format                    flake.Format
	Schema                    string // before the name of each function
	Epoch, Unit               int64
	End                       int64 // The first Unix ms that no ID has.
	Low                       int   // bits below the time
	LowMask, PerUnit, Units   int64 // Units are all that fit beside Low, in 63 bits.
	SIDShift                  int
	SIDMask                   int64
	HighShift                 int   // from the bits below the time to those before the variant of a UUID
	BesideMask                int64 // bits below the time that are behind the variant
	Random                    int   // random bits of a UUID
	RandomMask                int64
	FlakePattern, ULIDPattern string // Neither is compared in upper case: others become S and K there.
}

// never is the first time that DATETIME and dates of SQLite do not have.
var never = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()

// Check returns nil if there are functions for a format, else why not.
func Check(f flake.Format) error {
	if err := f.Layout.Validate(); err != nil {
		return err
	}
	if f.Epoch < 0 || f.Epoch+f.Layout.End() > never {
		return fmt.Errorf("IDs of %v have times before 1970 or after the year 9999: UUIDs or dates of databases do not",
			f)
	}
	return nil
}

// SQL returns the functions of a database, each with the schema before its name, which ends with a dot or is empty.
// The database is one of Databases, and the format has passed Check.
func SQL(database, schema string, f flake.Format) string {
	if database == "mariadb" {
		database = "mysql"
	}
	d := dialects[database]
	l := f.Layout
	random := ulid.RandomBits(l)
	beside := 62 - random
	v := values{
		Format: f, Schema: schema, Epoch: f.Epoch, Unit: l.Unit(), End: f.Epoch + l.End(),
		Low: l.LowBits(), LowMask: 1<<l.LowBits() - 1, PerUnit: 1 << l.LowBits(), Units: 1 << (63 - l.LowBits()),
		SIDMask: 1<<l.SIDBits() - 1, HighShift: beside, BesideMask: 1<<beside - 1,
		Random: random, RandomMask: 1<<random - 1,
		FlakePattern: "'^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{12}$'",
		ULIDPattern:  "'^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$'",
	}
	if l.SIDFirst() {
		v.SIDShift = l.SequenceBits()
	}
	t := template.Must(template.New(d.file).Funcs(template.FuncMap{
		"encode": d.encode32, "decode": d.decode(base32, 5), "hex": d.decode(base16, 4),
	}).ParseFS(files, d.file))
	var b strings.Builder
	if err := t.Execute(&b, v); err != nil {
		panic(err) // Templates are part of the program.
	}
	return b.String()
}

// Statements returns SQL as single statements, without comments before them.
func Statements(database, schema string, f flake.Format) []string {
	list := strings.Split(SQL(database, schema, f), ";\n")
	for i, s := range list {
		for strings.HasPrefix(s, "--") {
			_, s, _ = strings.Cut(s, "\n")
		}
		list[i] = s
	}
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}
