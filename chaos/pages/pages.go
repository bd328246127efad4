// Package pages runs the commands of a Markdown page as a reader would, and compares
// what they print with what the page shows. Tests import it.
//
// A fenced block says in an HTML comment on the line above what a test does with it:
//
//	<!-- run -->                 runs it: a block "console" line by line, comparing what
//	                             each command prints; another one as a script
//	<!-- run: NAME -->           the same, and a test finds it by its name
//	<!-- background: NAME -->    starts its one command, waits until it has printed what
//	                             the block shows, and leaves it running
//	<!-- interrupt: NAME -->     interrupts that command, and compares what it prints then
//	<!-- file: NAME -->          writes it to a file
//	<!-- not run: REASON -->     does nothing: no test can run it here
package pages

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// A Block is a fenced block of a page.
type Block struct {
	Mark string // the comment on the line above, such as "run: create"; "" without one
	Lang string // after the fence; "" without one
	Text string
	Line int // Line is where the opening fence is; the first line of the page is 1.
}

// A Page is the blocks of a page, in order.
type Page struct {
	Path   string
	Blocks []Block
}

var (
	comment = regexp.MustCompile(`^ *<!-- (.*) -->$`)
	opening = regexp.MustCompile("^( *)(```+)([a-z]*)")
)

// Open reads a page.
func Open(t testing.TB, path string) Page {
	t.Helper()
	text, err := os.ReadFile(path)
	fatal.If(t, err)
	return Page{path, Parse(string(text))}
}

// Parse returns the fenced blocks of a text; an indented one without its indent.
func Parse(text string) (out []Block) {
	var open *Block
	var indent, fence, above string
	for n, line := range strings.Split(text, "\n") {
		switch {
		case open != nil && strings.TrimSpace(line) == fence:
			out, open, line = append(out, *open), nil, ""
		case open != nil:
			open.Text += strings.TrimPrefix(line, indent) + "\n"
		default:
			if m := opening.FindStringSubmatch(line); m != nil {
				open, indent, fence = &Block{Lang: m[3], Line: n + 1}, m[1], m[2]
				if c := comment.FindStringSubmatch(above); c != nil {
					open.Mark = c[1]
				}
			}
		}
		above = line
	}
	return out
}

// Text returns what is under a mark, of several blocks together.
func (p Page) Text(t testing.TB, mark string) string {
	t.Helper()
	out := ""
	for _, b := range p.Blocks {
		if b.Mark == mark {
			out += b.Text
		}
	}
	if out == "" {
		t.Fatalf("%s has no block <!-- %s -->", p.Path, mark)
	}
	return out
}

// A Step is a command of a console block and what it prints.
type Step struct{ Command, Prints string }

// Steps splits a console block: a line that begins with "$ " is a command, with the
// lines that follow one that ends in a backslash; the others are what it prints.
func (b Block) Steps() (out []Step, err error) {
	continued := false
	for line := range strings.Lines(b.Text) {
		command, is := strings.CutPrefix(line, "$ ")
		switch {
		case is:
			out = append(out, Step{Command: command})
		case len(out) == 0:
			return nil, fmt.Errorf("line %d: the block does not begin with a command: %q", b.Line+1, line)
		case continued:
			out[len(out)-1].Command += line
		default:
			out[len(out)-1].Prints += line
		}
		continued = (is || continued) && strings.HasSuffix(line, "\\\n")
	}
	return out, nil
}

// Follow carries out a page from its first block to its last, in the directory of s.
func (p Page) Follow(t testing.TB, s *Shell) {
	t.Helper()
	for _, b := range p.Blocks {
		if err := s.Carry(b); err != nil {
			t.Fatalf("%s:%d: %v", p.Path, b.Line, err)
		}
	}
}
