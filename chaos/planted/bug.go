package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

//go:embed bugs
var bugs embed.FS

// A Bug is a mistake that was made, or is likely.
type Bug struct {
	Name      string // its file's, without .txt
	Says      string // one sentence
	Breaks    string // claims, as in docs/DESIGN.md, or what else fails
	Incidents string // T01 … T44, see docs/INCIDENTS.md; empty: none is known
	Edits     []Edit
	Catches   []Catch
}

// An Edit replaces whole lines of one file, which occur there exactly once.
type Edit struct {
	File     string // from the repository's root, with slashes
	Old, New string
}

// A Catch is a test that must fail with the bug.
type Catch struct {
	Kind Kind
	Args []string // Args are for go test: a package, and flags of its test.
}

func (c Catch) String() string { return strings.Join(c.Args, " ") }

// Kind is how much of the product a test runs, and on what.
type Kind string

// The kinds.
const (
	Unit    Kind = "unit"    // the tests of the package
	Sim     Kind = "sim"     // whole clusters as state machines in one goroutine: chaos/sim
	Virtual Kind = "virtual" // whole nodes in virtual time: chaos/virtual
	Real    Kind = "real"    // real processes
)

var kinds = []Kind{Unit, Sim, Virtual, Real}

// all returns every bug, by name.
func all() ([]Bug, error) {
	files, err := fs.Glob(bugs, "bugs/*.txt")
	if err != nil {
		return nil, err
	}
	out := make([]Bug, 0, len(files))
	for _, name := range files {
		raw, err := bugs.ReadFile(name)
		if err != nil {
			return nil, err
		}
		b, err := parse(strings.TrimSuffix(path.Base(name), ".txt"), raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, b)
	}
	return out, nil
}

// parse reads a bug's file, a txtar archive. Above the first section it has lines
// of a key, a colon and a value; then pairs of sections, "old FILE" and "new".
func parse(name string, raw []byte) (Bug, error) {
	b := Bug{Name: name}
	a := txtar.Parse(raw)
	for line := range strings.Lines(string(a.Comment)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, ": ")
		if value = strings.TrimSpace(value); !ok || value == "" {
			return b, fmt.Errorf("line %q is not of the form key: value", line)
		}
		switch key {
		case "says":
			b.Says = value
		case "breaks":
			b.Breaks = value
		case "incidents":
			b.Incidents = value
		default:
			kind := Kind(key)
			if !slices.Contains(kinds, kind) {
				return b, fmt.Errorf("%q is no key and no kind of test", key)
			}
			b.Catches = append(b.Catches, Catch{kind, strings.Fields(value)})
		}
	}
	for i, f := range a.Files {
		file, old := strings.CutPrefix(f.Name, "old ")
		switch {
		case old && i%2 == 0:
			b.Edits = append(b.Edits, Edit{File: file, Old: string(f.Data)})
		case f.Name == "new" && i%2 == 1:
			b.Edits[len(b.Edits)-1].New = string(f.Data)
		default:
			return b, fmt.Errorf("section %q: sections come in pairs, \"old FILE\" and \"new\"", f.Name)
		}
	}
	switch {
	case b.Says == "" || b.Breaks == "":
		return b, errors.New("it does not say what is wrong, or what breaks")
	case len(b.Edits) == 0 || len(a.Files)%2 == 1:
		return b, errors.New("it changes nothing")
	case len(b.Catches) == 0:
		return b, errors.New("no test is named that catches it")
	}
	return b, nil
}

// apply returns the changed text of every file that b changes, by the file's path
// from the root.
func (b Bug) apply(root string) (map[string]string, error) {
	out := map[string]string{}
	for _, e := range b.Edits {
		text, ok := out[e.File]
		if !ok {
			raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
			if err != nil {
				return nil, fmt.Errorf("bug %s: %w", b.Name, err)
			}
			text = string(raw)
		}
		old := "\n" + e.Old // whole lines
		switch n := strings.Count(text, old); {
		case strings.TrimSpace(e.Old) == "" || e.Old == e.New:
			return nil, fmt.Errorf("bug %s changes nothing in %s", b.Name, e.File)
		case n != 1:
			return nil, fmt.Errorf("bug %s: its old text occurs %d times in %s, not once: let the bug follow the code",
				b.Name, n, e.File)
		}
		out[e.File] = strings.Replace(text, old, "\n"+e.New, 1)
	}
	return out, nil
}
