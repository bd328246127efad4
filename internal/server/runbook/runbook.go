// Package runbook shows the documents that the program carries: those that refusals and problems
// name must be at hand when nothing else is, and be those of the version that runs.
//
// It reads the Markdown that these documents use and no other. They are part of the program,
// and all text is escaped all the same.
package runbook

import (
	"fmt"
	"html"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/flakelease/allocator/docs"
)

// Path is where the API serves the documents, for links from answers.
const Path = "/docs/"

// Page is a document.
type Page struct {
	Title string
	HTML  template.HTML
}

// pages makes every page when the first one is asked for: some 30, in some milliseconds.
var pages = sync.OnceValue(func() map[string]Page {
	out := map[string]Page{}
	names, err := fs.Glob(docs.Pages, "*/*.md")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, name := range names {
		text, err := docs.Pages.ReadFile(name)
		if err != nil {
			panic(fmt.Sprintf("runbook: %s: %v", name, err)) // it is in the program
		}
		out[name] = render(name, string(text), func(name string) bool {
			_, err := fs.Stat(docs.Pages, name)
			return err == nil
		})
	}
	return out
})

// Find returns the document with a name such as how-to/repair-sids.md.
func Find(name string) (Page, bool) {
	p, ok := pages()[name]
	return p, ok
}

// head begins a page on its own. It needs nothing from elsewhere.
const head = `<!doctype html><html lang="en"><meta charset="utf-8">` +
	`<meta name="viewport" content="width=device-width"><style>body{max-width:50em;margin:2em auto;padding:0 1em;` +
	`font-family:sans-serif;line-height:1.5}pre{overflow:auto;background:#8882;padding:.5em}` +
	`td,th{padding:.2em .6em;text-align:left;vertical-align:top}:target{background:#fd06}</style><title>`

// Serve answers with a page on its own, or 404.
func Serve(w http.ResponseWriter, name string) {
	p, ok := Find(name)
	if !ok {
		http.Error(w, "there is no such document", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	_, _ = fmt.Fprintf(w, "%s%s</title>\n%s", head, html.EscapeString(p.Title), p.HTML) // The client may have left.
}

var (
	heading  = regexp.MustCompile(`^(#{1,6}) (.*)$`)
	item     = regexp.MustCompile(`^(-|[0-9]+\.) (.*)$`)
	divider  = regexp.MustCompile(`^\|[-:| ]+\|$`)
	comment  = regexp.MustCompile(`(?s)<!--.*?-->\n?`)
	code     = regexp.MustCompile("`([^`]+)`")
	anchor   = regexp.MustCompile(`&lt;a id=&#34;([A-Za-z0-9_-]+)&#34;&gt;&lt;/a&gt;`)
	image    = regexp.MustCompile(`!\[([^\]]*)\]\([^)]*\)`)
	link     = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)\)`)
	strong   = regexp.MustCompile(`\*\*([^*]+)\*\*`)
	emphasis = regexp.MustCompile(`\*([^*\s][^*]*)\*`)
	held     = regexp.MustCompile("\x00([0-9]+)\x00")
)

// writer writes a page line by line.
type writer struct {
	strings.Builder
	dir    string
	exists func(name string) bool
	open   string // the block that is open has this tag; "": none is
}

// render returns the page of a document. Links to documents that do not exist become text.
func render(name, text string, exists func(string) bool) (p Page) {
	w := &writer{dir: path.Dir(name), exists: exists}
	fenced := false
	for line := range strings.Lines(comment.ReplaceAllString(text, "")) {
		line = strings.TrimRight(line, "\r\n")
		switch h, i := heading.FindStringSubmatch(line), item.FindStringSubmatch(line); {
		case strings.HasPrefix(line, "```"):
			w.block(map[bool]string{true: "", false: "pre"}[fenced])
			fenced = !fenced
		case fenced:
			w.WriteString(html.EscapeString(line) + "\n")
		case line == "":
			w.block("")
		case h != nil:
			w.block("")
			if p.Title == "" {
				p.Title = h[2]
			}
			fmt.Fprintf(w, "<h%d id=\"%s\">%s</h%[1]d>\n", len(h[1]), anchorOf(h[2]), w.inline(h[2]))
		case divider.MatchString(line):
		case strings.HasPrefix(line, "|"):
			w.row(line)
		case i != nil:
			list := "ol"
			if i[1] == "-" {
				list = "ul"
			}
			if w.open != list {
				w.block(list)
			}
			w.WriteString("<li>" + w.inline(i[2]) + "\n")
		case w.open != "":
			w.WriteString(w.inline(strings.TrimSpace(line)) + "\n")
		default:
			w.block("p")
			w.WriteString(w.inline(line) + "\n")
		}
	}
	w.block("")
	p.HTML = template.HTML(w.String()) //nolint:gosec // All text in it was escaped.
	return p
}

// block ends the block that is open, and begins another one.
func (w *writer) block(tag string) {
	if w.open != "" {
		fmt.Fprintf(w, "</%s>\n", w.open)
	}
	if w.open = tag; tag != "" {
		fmt.Fprintf(w, "<%s>", tag)
	}
}

// row writes a line of a table, the first one as its head.
func (w *writer) row(line string) {
	cell := "td"
	if w.open != "table" {
		w.block("table")
		cell = "th"
	}
	line = strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x01")
	w.WriteString("<tr>")
	for _, one := range strings.Split(line, "|") {
		fmt.Fprintf(w, "<%s>%s</%[1]s>", cell, w.inline(strings.ReplaceAll(strings.TrimSpace(one), "\x01", "|")))
	}
	w.WriteString("</tr>\n")
}

// inline returns the HTML of text within a block. Nothing in code is markup.
func (w *writer) inline(s string) string {
	var codes []string
	s = code.ReplaceAllStringFunc(s, func(c string) string {
		codes = append(codes, "<code>"+html.EscapeString(c[1:len(c)-1])+"</code>")
		return fmt.Sprintf("\x00%d\x00", len(codes)-1)
	})
	s = html.EscapeString(s)
	s = anchor.ReplaceAllString(s, `<a id="$1"></a>`)
	s = image.ReplaceAllString(s, "[$1]")
	s = link.ReplaceAllStringFunc(s, func(l string) string {
		m := link.FindStringSubmatch(l)
		page, _, _ := strings.Cut(m[2], "#")
		if strings.HasPrefix(m[2], "https://") || page == "" || w.exists(path.Join(w.dir, page)) {
			return `<a href="` + m[2] + `" rel="noreferrer">` + m[1] + "</a>"
		}
		return m[1]
	})
	s = strong.ReplaceAllString(s, "<strong>$1</strong>")
	s = emphasis.ReplaceAllString(s, "<em>$1</em>")
	return held.ReplaceAllStringFunc(s, func(h string) string {
		var n int
		_, _ = fmt.Sscanf(strings.Trim(h, "\x00"), "%d", &n)
		return codes[n]
	})
}

// anchorOf returns the anchor of a heading, as GitHub makes it.
func anchorOf(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return -1
	}, title)
}
