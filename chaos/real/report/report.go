// Package report renders a run of the chaos harness as one HTML page.
//
// [Write] reads results.json and history.jsonl from the directory of a run and
// writes report.html beside them. The page loads nothing from anywhere: an embedded
// library draws charts from JSON inside the page; tables and the timeline are plain
// HTML and need no script. The size of the page is bounded whatever the length of
// the run, and the page states what it leaves out.
//
// The verdicts are those of package history; nothing is judged here. The same
// directory gives the same bytes.
package report

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
)

// Name of the page in the directory of its run.
const Name = "report.html"

//go:embed page.html page.css page.js vendored/uPlot.iife.min.js vendored/uPlot.min.css
var files embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"css":  func(name string) (template.CSS, error) { b, err := files.ReadFile(name); return template.CSS(b), err },
	"js":   func(name string) (template.JS, error) { b, err := files.ReadFile(name); return template.JS(b), err },
	"join": strings.Join, "outcome": outcomeOf, "grouped": grouped, "measured": measured, "targets": targetNames,
	"share": shareOf, "class": className, "seconds": seconds,
	"ms":  func(ms int64) string { return unlessNegative(ms, float64(ms)/1e3, "%.2f") },
	"sec": func(t clock.Mono) string { return unlessNegative(int64(t), seconds(t), "%.1f") },
	"sub": func(a, b clock.Mono) clock.Mono { return a - b },
	"rounded": func(ms int64) time.Duration {
		return (time.Duration(ms) * time.Millisecond).Round(100 * time.Millisecond)
	},
}).ParseFS(files, "page.html"))

// page is what the template shows.
type page struct {
	results
	Notes    []string // parts that are missing or left out
	Lines    int64    // lines of the history
	First    *violation
	Near     *near
	Closeup  *timeline
	Timeline *timeline
	Run      *recorder
	Charts   *charts
}

// Write makes the report of the run in dir. One of results.json and history.jsonl
// may be missing or truncated, as a killed run leaves them: the page states that
// and shows the rest.
//
// It returns an error that wraps os.ErrNotExist if both are missing, and errors of
// reading and writing files. An existing report then stays unchanged.
func Write(dir string) error {
	p, err := load(dir)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, p); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	name := filepath.Join(dir, Name)
	if err := os.WriteFile(name+".new", out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (p *page) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

func load(dir string) (*page, error) {
	p := &page{}
	data, err := os.ReadFile(filepath.Join(dir, "results.json"))
	noResults := errors.Is(err, os.ErrNotExist)
	switch {
	case noResults:
		p.note("There is no results.json: the run ended before it was checked.")
	case err != nil:
		return nil, err
	default:
		if err := p.decode(data); err != nil {
			p.note("results.json cannot be read: %s", clip(err.Error(), 200))
		}
	}
	if p.Cut {
		p.note("The run was interrupted. This is what was recorded until then.")
	}
	p.First = p.firstViolation()
	f, err := os.Open(filepath.Join(dir, "history.jsonl"))
	switch {
	case err == nil:
		defer f.Close()
		return p, p.draw(f)
	case noResults || !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	p.note("There is no history.jsonl, so nothing is drawn.")
	return p, nil
}

// around is how much is shown on each side of the first violation.
const around = clock.Mono(200 * time.Millisecond)

// draw reads the history and fills everything that is made from it.
func (p *page) draw(f io.ReadSeeker) error {
	end, err := lastTime(f)
	if err != nil {
		return err
	}
	whole := newRecorder(0, max(end, 1))
	recorders := []*recorder{whole}
	if p.First != nil && p.First.At > 0 {
		p.Near = &near{at: p.First.At, detail: p.First.Detail}
		closeup := newRecorder(p.First.At-around, p.First.At+around)
		closeup.near = p.Near
		recorders = append(recorders, closeup)
	}
	if err := p.read(f, recorders); err != nil {
		return err
	}
	if p.Lines == 0 {
		p.note("history.jsonl is empty: nothing is drawn.")
		return nil
	}
	bands := whole.bands(&p.results)
	if n := len(bands) - maxRows; n > 0 {
		p.note("Only the first %d injections are drawn; %d are not.", maxRows, n)
		bands = bands[:maxRows]
	}
	if whole.nodesLeft {
		p.note("Only %d nodes are drawn.", maxNodes)
	}
	p.Run, p.Timeline, p.Charts = whole, whole.timeline(bands), whole.charts(bands)
	if len(recorders) > 1 {
		p.Closeup = recorders[1].timeline(recorders[1].bands(&p.results))
		p.Closeup.mark(p.First.At)
		p.Timeline.mark(p.First.At)
		p.Charts.Violation = number(seconds(p.First.At))
	}
	return nil
}

// read gives every op of a history to the recorders.
func (p *page) read(r io.Reader, recorders []*recorder) error {
	in := history.NewReader(r)
	var op history.Op
	for {
		err := in.Read(&op)
		var line *history.LineError
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &line):
			p.note("history.jsonl can be read up to line %d only (%s): what follows is not shown.", line.Line,
				clip(line.Err.Error(), 120))
			return nil
		case err != nil:
			return err
		}
		if op.Setup != nil && p.Setup == nil {
			p.Setup = op.Setup
			clipAll(p.Setup)
		}
		p.Lines++
		for _, rec := range recorders {
			rec.add(&op)
		}
	}
}

// lastTime returns the time of the last op of a history, and goes back to its
// start. It reads only the end, where whole lines follow the first newline.
func lastTime(f io.ReadSeeker) (end clock.Mono, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	from := max(0, size-4*history.MaxLine)
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return 0, err
	}
	tail, err := io.ReadAll(f)
	if err != nil {
		return 0, err
	}
	if from > 0 {
		_, tail, _ = bytes.Cut(tail, []byte{'\n'})
	}
	in := history.NewReader(bytes.NewReader(tail))
	var op history.Op
	for in.Read(&op) == nil {
		end = op.Time
	}
	_, err = f.Seek(0, io.SeekStart)
	return end, err
}
