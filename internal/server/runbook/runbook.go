// Package runbook shows the documents that the program carries: those that refusals and problems
// name must be at hand when nothing else is, and be those of the version that runs.
package runbook

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	markup "github.com/yuin/goldmark/renderer/html"
	gtext "github.com/yuin/goldmark/text"

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
		out[name], err = render(name, string(text), func(name string) bool {
			_, err := fs.Stat(docs.Pages, name)
			return err == nil
		})
		if err != nil {
			panic(fmt.Sprintf("runbook: %s: %v", name, err)) // it was seen to work by a test
		}
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

// reader reads the documents as GitHub shows them. They are part of the program, so the anchors
// that they have in HTML are taken as they are. Pages of the console may have no styles inline.
var reader = goldmark.New(
	goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignNone))),
	goldmark.WithRendererOptions(markup.WithUnsafe()),
)

// picture is one in light and dark, with what it shows.
var picture = regexp.MustCompile(`(?s)^<picture>.* alt="([^"]*)"`)

// render returns the page of a document. Links to documents that do not exist become text, as
// pictures do.
func render(name, source string, exists func(string) bool) (p Page, err error) {
	text := []byte(source)
	doc := reader.Parser().Parse(gtext.NewReader(text))
	var links, pictures []ast.Node
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // Nothing in it fails.
		switch n := n.(type) {
		case *ast.Heading:
			if entering {
				title := words(n, text)
				n.SetAttributeString("id", anchorOf(title))
				p.Title = cmp.Or(p.Title, title)
			}
		case *ast.Link, *ast.Image:
			if entering {
				links = append(links, n)
			}
		case *ast.HTMLBlock:
			if entering && picture.Match(n.Lines().Value(text)) {
				pictures = append(pictures, n)
			}
		}
		return ast.WalkContinue, nil
	})
	for _, n := range links {
		if link, ok := n.(*ast.Link); ok {
			page, _, _ := strings.Cut(string(link.Destination), "#")
			if strings.HasPrefix(page, "https://") || page == "" || exists(path.Join(path.Dir(name), page)) {
				link.SetAttributeString("rel", "noreferrer")
				continue
			}
		}
		for c := n.FirstChild(); c != nil; c = n.FirstChild() {
			n.Parent().InsertBefore(n.Parent(), n, c)
		}
		n.Parent().RemoveChild(n.Parent(), n)
	}
	for _, n := range pictures {
		says := ast.NewParagraph()
		alt := picture.FindSubmatch(n.Lines().Value(text))[1]
		says.AppendChild(says, ast.NewString([]byte(html.UnescapeString(string(alt)))))
		n.Parent().ReplaceChild(n.Parent(), n, says)
	}
	var out strings.Builder
	err = reader.Renderer().Render(&out, text, doc)
	p.HTML = template.HTML(out.String()) //nolint:gosec // The documents are part of the program.
	return p, err
}

// words returns the text within a node, without its markup.
func words(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
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
