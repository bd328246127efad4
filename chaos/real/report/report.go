// Package report draws a run of the chaos harness as one page of HTML.
//
// [Write] reads what a run left in its folder, results.json and history.jsonl, and
// puts report.html beside them. The page loads nothing from anywhere and can be
// read without scripts; what little script it has only marks the time under the
// pointer. Its size does not grow with the run: lines keep the smallest and the
// greatest value of each piece of time, points are thinned, and where something
// is left out the page says how much.
//
// It shows what the checks of chaos/history found and judges nothing itself.
// The same folder gives the same bytes.
package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
)

// Name of the page in the folder of its run.
const Name = "report.html"

// Write makes the report of the run in dir. One of results.json and history.jsonl
// may be missing or cut short, as a run that was killed leaves them: the page says
// so, and shows the rest.
//
// It returns an error that wraps os.ErrNotExist if both are missing, and errors of
// reading and writing files. An old report stays as it was then.
func Write(dir string) error {
	p, err := load(dir)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var out bytes.Buffer
	if err := page.Execute(&out, p); err != nil {
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

var (
	//go:embed report.tmpl
	text string
	//go:embed report.css
	style string
	//go:embed report.js
	script string

	page = template.Must(template.New("report").Parse(text))
)

// load reads a folder into what the page shows.
func load(dir string) (*content, error) {
	c := &content{Style: template.CSS(style), Script: template.JS(script)}
	data, err := os.ReadFile(filepath.Join(dir, "results.json"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		c.Notes = append(c.Notes, "There is no results.json: the run was ended before it was judged.")
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(data, &c.run); err != nil {
			c.Notes = append(c.Notes, "results.json is not what the harness writes: "+clip(err.Error(), 200))
		}
	}
	missing := err != nil
	f, err := os.Open(filepath.Join(dir, "history.jsonl"))
	if err != nil && (missing || !errors.Is(err, os.ErrNotExist)) {
		return nil, err
	}
	if err != nil {
		c.Notes = append(c.Notes, "There is no history.jsonl, so nothing is drawn.")
		c.tell()
		return c, nil
	}
	defer f.Close()
	end, err := lastTime(f)
	if err != nil {
		return nil, err
	}
	first := c.run.firstViolation()
	whole := newView(0, max(end, 1))
	views := []*view{whole}
	var close *view
	if first != nil && first.At > 0 {
		close = newView(first.At-around, first.At+around)
		close.near = &near{at: first.At, detail: first.Detail}
		views = append(views, close)
	}
	if err := read(f, c, views); err != nil {
		return nil, err
	}
	whole.judged(&c.run)
	c.draw(whole, close)
	c.tell()
	return c, nil
}

// around is how much is shown on each side of a violation.
const around = clock.Mono(200 * time.Millisecond)

// read gives every op of a history to the views.
func read(r io.Reader, c *content, views []*view) error {
	in := history.NewReader(r)
	var op history.Op
	for {
		err := in.Read(&op)
		var line *history.LineError
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &line):
			c.Notes = append(c.Notes, fmt.Sprintf("history.jsonl can be read up to line %d only (%s): what follows is not shown.", line.Line, clip(line.Err.Error(), 120)))
			return nil
		case err != nil:
			return err
		}
		if op.Setup != nil && c.run.Setup == nil {
			c.run.Setup = op.Setup
		}
		c.lines++
		for _, v := range views {
			v.add(&op)
		}
	}
}

// lastTime returns the time of the last op of a history, and goes back to its
// start. It reads the end of it only, where whole lines follow the first newline.
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

// clip bounds a text to n letters, and shows what would hide or turn letters
// around it as a sign of its own.
func clip(s string, n int) string {
	if len(s) > 4*n+4 {
		s = strings.ToValidUTF8(s[:4*n+4], "") // no letter has more than four bytes
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' || unicode.In(r, unicode.Cf) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
