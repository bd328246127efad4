package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
	"golang.org/x/mod/module"
)

// stdlib is the name of Go's own library in lists of modules.
const stdlib = "stdlib"

// licenses finds the licenses of modules in the module cache, where every build leaves
// their source.
type licenses struct {
	cache, goroot string
	known         *classifier.Classifier
}

func newLicenses() (l licenses, err error) {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return l, fmt.Errorf("go env: %w", err)
	}
	l.cache, l.goroot, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	l.known, err = assets.DefaultClassifier()
	return l, err
}

// terms are what a module may be used under.
type terms struct {
	license string // an SPDX expression
	texts   []string
}

var (
	termsFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)(\.(txt|md))?$`)
	// supplement is a file beside a license that is none itself.
	supplement = regexp.MustCompile(`(?i)^(notice|patents)`)
)

// of returns the terms of a module. A module without a license that is known is an error:
// somebody has to look at it before it is shipped.
func (l licenses) of(m *debug.Module) (t terms, err error) {
	dir := l.goroot
	if m.Path != stdlib {
		path, err1 := module.EscapePath(m.Path)
		version, err2 := module.EscapeVersion(m.Version)
		if err1 != nil || err2 != nil {
			return t, fmt.Errorf("%s %s is not in the module cache", m.Path, m.Version)
		}
		dir = filepath.Join(l.cache, path+"@"+version)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return t, err
	}
	var found []string
	for _, e := range entries {
		if !e.Type().IsRegular() || !termsFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return t, err
		}
		t.texts = append(t.texts, strings.TrimSpace(string(text)))
		if supplement.MatchString(e.Name()) {
			continue
		}
		for _, match := range l.known.Match(text).Matches {
			if match.MatchType == "License" || match.MatchType == "Header" {
				found = append(found, match.Name)
			}
		}
	}
	slices.Sort(found)
	t.license = strings.Join(slices.Compact(found), " AND ")
	if t.license == "" {
		return t, fmt.Errorf("%s has no license file with a known license", dir)
	}
	return t, nil
}

// writeNotice writes what the licenses of the modules in some binaries demand of whoever
// distributes these: the texts, each once, and where the source is.
func writeNotice(w io.Writer, programs []program) error {
	l, err := newLicenses()
	if err != nil {
		return err
	}
	found := map[string]terms{}       // keyed by name and version of the module
	users := map[string][]string{}    // modules by text
	var names, modules, open []string // programs; modules in order; those whose source must be offered
	for _, p := range programs {
		names = append(names, filepath.Base(p.path))
		for _, m := range p.modules() {
			m = effective(m)
			name := m.Path + "@" + m.Version
			if _, ok := found[name]; ok {
				continue
			}
			if found[name], err = l.of(m); err != nil {
				return err
			}
			modules = append(modules, name)
		}
	}
	slices.Sort(modules)
	var b strings.Builder
	fmt.Fprintf(&b, "Third-party software in %s\n\n", strings.Join(names, " and "))
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, name := range modules {
		t := found[name]
		fmt.Fprintf(table, "%s\t%s\n", name, t.license)
		if strings.Contains(t.license, "MPL-2.0") {
			open = append(open, name)
		}
		for _, text := range t.texts {
			users[text] = append(users[text], name)
		}
	}
	_ = table.Flush() // never fails on a strings.Builder
	if len(open) > 0 {
		b.WriteString("\nThe modules under MPL-2.0 are used unchanged. Their source code is at https:// and " +
			"the\nmodule's name, under the tag of the version, and these commands fetch it:\n\n")
		for _, name := range open {
			fmt.Fprintf(&b, "go mod download -json %s\n", name)
		}
	}
	for _, name := range modules {
		for _, text := range found[name].texts {
			if len(users[text]) > 0 {
				fmt.Fprintf(&b, "\n%s\n%s:\n\n%s\n", strings.Repeat("-", 80), strings.Join(users[text], "\n"), text)
				users[text] = nil
			}
		}
	}
	_, err = io.WriteString(w, b.String())
	return err
}
