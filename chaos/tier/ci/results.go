package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// A record is the result of a test, or of a package.
type record struct {
	Package string
	Test    string // empty: the package
	Result  string // pass, fail or skip
	Seconds float64
	Cached  bool
	Tier    string // The first tier that runs a skipped test is named here.
	Why     string // it was skipped, or did less than it could
}

// event is one of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

const module = "github.com/flakelease/allocator/"

var (
	located = regexp.MustCompile(`^\s*\w+\.go:\d+: (.*)\n$`)
	tiered  = regexp.MustCompile(`^tier (\w+): (.*)$`)
)

// A pack is what a package has printed so far.
type pack struct {
	lines []event
	said  map[string]string // the last line that each test logged: if there is one, about its tier
	open  map[string]bool   // tests without a result, or failed
}

// results reads the output of go test -json, prints it to out as lines, and passes each result to
// keep.
func results(in io.Reader, out io.Writer, keep func(record)) error {
	packs := map[string]*pack{}
	for lines := bufio.NewReader(in); ; {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case err != nil:
			if err != io.EOF {
				return fmt.Errorf("read the output of go test: %w", err)
			}
			return nil
		case json.Unmarshal(line, &e) != nil:
			_, _ = out.Write(line)
			continue
		case e.Action == "build-output":
			_, _ = io.WriteString(out, e.Output)
			continue
		}
		p := packs[e.Package]
		if p == nil {
			p = &pack{said: map[string]string{}, open: map[string]bool{}}
			packs[e.Package] = p
		}
		if r, ok := p.add(e); ok {
			keep(r)
			if e.Test == "" {
				p.print(out, r)
				delete(packs, e.Package)
			}
		}
	}
}

// add notes an event, and returns the result that it is, if it is one.
func (p *pack) add(e event) (r record, ok bool) {
	switch e.Action {
	case "output":
		p.lines = append(p.lines, e)
		m := located.FindStringSubmatch(e.Output)
		if m != nil && (tiered.MatchString(m[1]) || !tiered.MatchString(p.said[e.Test])) {
			p.said[e.Test] = m[1]
		}
		return record{}, false
	case "run":
		p.open[e.Test] = true
		return record{}, false
	case "pass", "skip":
		delete(p.open, e.Test)
	case "fail":
	default:
		return record{}, false
	}
	r = record{Package: strings.TrimPrefix(e.Package, module), Test: e.Test, Result: e.Action, Seconds: e.Elapsed}
	switch m := tiered.FindStringSubmatch(p.said[e.Test]); {
	case m != nil && e.Action == "skip":
		r.Tier, r.Why = m[1], m[2]
	case m != nil:
		r.Why = m[2]
	case e.Action == "skip":
		r.Why = p.said[e.Test]
	}
	if e.Test == "" {
		for _, l := range p.lines {
			r.Cached = r.Cached || l.Test == "" && strings.HasSuffix(l.Output, "(cached)\n")
		}
	}
	return r, true
}

// print prints the result of a package: with what its failed tests printed, if it failed.
func (p *pack) print(out io.Writer, r record) {
	mark, took := "ok", elapsed(r.Seconds)
	switch {
	case r.Result == "skip": // it has no tests
		return
	case r.Result == "fail":
		mark = "FAIL"
		for _, l := range p.lines {
			if (l.Test == "" || p.open[l.Test]) && !strings.HasPrefix(l.Output, "=== ") &&
				!strings.HasPrefix(l.Output, "FAIL") {
				_, _ = io.WriteString(out, l.Output)
			}
		}
	case r.Cached:
		took = "cached"
	}
	_, _ = fmt.Fprintf(out, "%-4s  %8s  %s\n", mark, took, r.Package)
}
