package main

import (
	"bytes"
	"cmp"
	"flag"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/flakelease/allocator/chaos/fatal"
)

var (
	site = flag.String("site", "../../bin/docs", "directory of the site to check")
	base = cmp.Or(os.Getenv("DOCS_BASE"), "/") // The site was built for this path.
)

// sources returns the Markdown files that the site is made of.
func sources(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "-co", "--exclude-standard", "*.md", ":!testdata", ":!.github").Output()
	fatal.If(t, err)
	var list []string
	for _, name := range strings.Fields(string(out)) {
		if _, err := os.Stat(filepath.Join("../..", name)); err == nil {
			list = append(list, name)
		}
	}
	if len(list) < 60 {
		t.Fatalf("found %d Markdown files", len(list))
	}
	return list
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	fatal.If(t, err)
	return b
}

// page returns where the site has the page of a Markdown file.
func page(name string) string {
	if dir, ok := strings.CutSuffix(name, "README.md"); ok {
		return dir + "index.html"
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}

// Each Markdown file is a page, is beside it unchanged, and is in llms.txt with its first sentence.
func TestPages(t *testing.T) {
	listed := map[string]string{} // path to first sentence
	for line := range strings.Lines(string(read(t, filepath.Join(*site, "llms.txt")))) {
		if entry, ok := strings.CutPrefix(line, "- ["); ok {
			_, rest, _ := strings.Cut(entry, "](")
			name, first, _ := strings.Cut(strings.TrimSpace(rest), ")")
			listed[name] = strings.TrimPrefix(first, ": ")
		}
	}
	for _, name := range sources(t) {
		if !bytes.Equal(read(t, filepath.Join(*site, name)), read(t, filepath.Join("../..", name))) {
			t.Errorf("%s differs from the file in the repository: run make docs", name)
		}
		first, ok := listed[name]
		if !ok {
			t.Errorf("llms.txt does not list %s", name)
		}
		// Words, since the HTML has tags between them.
		text := visible(parse(t, page(name)))
		if words := strings.Fields(first); len(words) < 3 && name != "docs/README.md" {
			t.Errorf("llms.txt has %q for %s", first, name)
		} else if joined := strings.Join(words, ""); !strings.Contains(strings.Join(strings.Fields(text), ""), joined) {
			t.Errorf("llms.txt says of %s what its page does not: %q", name, first)
		}
		delete(listed, name)
	}
	for _, name := range []string{"docs/reference/cli.md", "docs/reference/metrics.md"} { // tests write them
		if _, ok := listed[name]; !ok {
			t.Errorf("llms.txt does not list %s", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("llms.txt lists %s, and there is no such file", name)
	}
}

func parse(t *testing.T, name string) *html.Node {
	t.Helper()
	n, err := html.Parse(bytes.NewReader(read(t, filepath.Join(*site, name))))
	fatal.If(t, err)
	return n
}

func visible(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode && d.Parent.Data != "script" {
			b.WriteString(d.Data)
		}
	}
	// Anchors of headings have a character that is not seen.
	return strings.ReplaceAll(b.String(), "\u200b", "")
}

// Every link, picture and script within the site leads somewhere, with its fragment.
func TestLinks(t *testing.T) {
	type target struct{ from, to string }
	var targets []target
	fragments := map[string]map[string]bool{} // of each page
	err := fs.WalkDir(os.DirFS(*site), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".html" {
			return err
		}
		fragments[name] = map[string]bool{"": true}
		for n := range parse(t, name).Descendants() {
			for _, a := range n.Attr {
				switch a.Key {
				case "id":
					fragments[name][a.Val] = true
				case "href", "src", "srcset":
					targets = append(targets, target{name, a.Val})
				}
			}
		}
		return nil
	})
	fatal.If(t, err)
	if len(fragments) < 60 || len(targets) < 1000 {
		t.Fatalf("found %d pages with %d links", len(fragments), len(targets))
	}
	for _, l := range targets {
		u, err := url.Parse(l.to)
		if err != nil {
			t.Errorf("%s links to %q: %v", l.from, l.to, err)
			continue
		}
		if u.Scheme != "" || u.Host != "" {
			continue
		}
		to := l.from
		if u.Path != "" {
			to = strings.TrimPrefix(path.Join("/", path.Dir(l.from), u.Path), "/")
			if path.IsAbs(u.Path) {
				below, ok := strings.CutPrefix(u.Path, base)
				if to = path.Clean(below); !ok {
					t.Errorf("%s links to %s, which is not below %s", l.from, l.to, base)
					continue
				}
			}
			if strings.HasSuffix(u.Path, "/") {
				to = path.Join(to, "index.html")
			}
		}
		if _, err := os.Stat(filepath.Join(*site, to)); err != nil {
			t.Errorf("%s links to %s, which is not there", l.from, l.to)
		} else if path.Ext(to) == ".html" && !fragments[to][u.Fragment] {
			t.Errorf("%s links to %s, and %s has no such fragment", l.from, l.to, to)
		}
	}
}
