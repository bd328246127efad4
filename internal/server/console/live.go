package console

import (
	"html/template"
	"strings"
	"sync"

	"github.com/flakelease/allocator/internal/status"
)

// The parts of a page that change while it is open stand between these marks. Each is one element with an ID.
const (
	liveMark  = template.HTML("<!--live-->")
	stillMark = template.HTML("<!--still-->")
)

// shownRows is how many rows an open page follows. A page that is loaded has all.
const shownRows = 128

// Picture is a snapshot with the parts of pages that show it. A page is rendered once for all streams that follow it.
type Picture struct {
	console  *Console
	snapshot Snapshot

	mu    sync.Mutex // guards the rest
	parts map[followed][]string
	size  int // The largest page has this many bytes; 0: none was rendered.
}

// followed is what a stream follows.
type followed struct {
	page string
	grid bool // The page shows each sid.
}

// Picture returns what streams show of a cluster.
func (c *Console) Picture(of status.Cluster) *Picture {
	s := c.complete(of)
	s.most = shownRows
	return &Picture{console: c, snapshot: s, parts: map[followed][]string{}}
}

// Size returns how many bytes a stream was sent of it at most.
func (p *Picture) Size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// of returns the parts of a page.
func (p *Picture) of(what followed) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	parts, made := p.parts[what]
	if made {
		return parts
	}
	v := view{Page: what.page, Snapshot: p.snapshot}
	v.Snapshot.Grid = what.grid
	rest, size := string(p.console.render(v)), 0
	for {
		_, after, more := strings.Cut(rest, string(liveMark))
		if !more {
			break
		}
		part, after, _ := strings.Cut(after, string(stillMark))
		parts, rest = append(parts, part), after
		size += len(part)
	}
	p.parts[what], p.size = parts, max(p.size, size)
	return parts
}

// follower sends the parts of a page that differ from those that it has sent. It has one owner.
type follower struct {
	what followed
	sent []string
}

// show sends what changed in a picture, and nothing as a sign that it is current.
func (f *follower) show(picture any, send func(kind, text string)) {
	parts, same := picture.(*Picture).of(f.what), true
	for i, part := range parts {
		if i >= len(f.sent) || f.sent[i] != part {
			send("show", part)
			same = false
		}
	}
	if f.sent = parts; same {
		send("show", unchanged)
	}
}

// unchanged has no element.
const unchanged = "-"
