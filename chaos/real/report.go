package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/nemesis"
)

//go:embed report.html
var reportHTML string

// reportPage shows a Results. It loads nothing and has no script: a copy of the file is all that a reader needs.
var reportPage = template.Must(template.New("report.html").Funcs(template.FuncMap{
	"join": strings.Join, "grouped": grouped, "inSeconds": inSeconds, "share": shareOf,
	"symbol": func(verdict any) string { // no meaning rests on color alone
		switch fmt.Sprint(verdict) {
		case string(history.Pass):
			return "✓"
		case string(history.Broken):
			return "✗"
		}
		return "?"
	},
	"first": func(n int, o []nemesis.Outcome) []nemesis.Outcome { return o[:min(n, len(o))] },
	"took":  func(ms int64) time.Duration { return (time.Duration(ms) * time.Millisecond).Round(time.Second) },
}).Parse(reportHTML))

// reportFault is a row of the page.
type reportFault struct {
	FaultResult
	Seen, IDs, Refused, Returned string
}

// Injected returns the faults that were injected, for the page.
func (res *Results) Injected() (out []reportFault) {
	for _, f := range res.Faults {
		if len(f.Injections) > 0 {
			r := res.sum(f)
			seen := fmt.Sprintf("%d of %d", r.fired, len(f.Injections))
			out = append(out, reportFault{f, seen, grouped(r.ids), inSeconds(r.refused), inSeconds(r.returned)})
		}
	}
	return out
}

// Skipped returns the names of the faults that were not injected, by reason.
func (res *Results) Skipped() map[string][]string {
	out := map[string][]string{}
	for _, f := range res.Faults {
		if len(f.Injections) == 0 {
			out[f.Reason] = append(out[f.Reason], f.Fault)
		}
	}
	return out
}

// Because returns what was seen of the fault, or why it did not pass.
func (f *FaultResult) Because() string {
	if f.Reason == "" && len(f.Injections) > 0 {
		return f.Injections[0].Effect
	}
	return f.Reason
}

// shareOf returns which part of the calls was answered with IDs, and how many a second.
func shareOf(s history.Served) string {
	part, any := s.Share()
	if !any {
		return "no calls"
	}
	return fmt.Sprintf("%.2f %%, %s IDs/s", part, grouped(int64(float64(s.IDs)/max(s.Seconds, 1e-9))))
}

// report writes report.html into dir.
func (res *Results) report(dir string) error {
	var page strings.Builder
	if err := reportPage.Execute(&page, res); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "report.html"), []byte(page.String()), 0o644)
}

// row sums up the injections of a fault.
type row struct {
	fired             int
	ids               int64
	refused, returned int64 // the slowest, in ms; -1: none
}

// sum adds up what a run had of a fault.
func (res *Results) sum(f FaultResult) row {
	w := row{refused: -1, returned: -1}
	for _, o := range f.Injections {
		if o.Fired {
			w.fired++
		}
	}
	for _, c := range res.Checks {
		for _, p := range c.Phases {
			if p.Fault == f.Fault {
				w.ids += p.During.IDs
				w.returned = max(w.returned, p.FirstMs)
			}
		}
		for _, d := range c.Refused {
			if d.Fault == f.Fault {
				w.refused = max(w.refused, d.AfterMs)
			}
		}
	}
	return w
}

func inSeconds(ms int64) string {
	if ms < 0 {
		return ""
	}
	return fmt.Sprintf("%.1f s", float64(ms)/1e3)
}

// grouped writes a number with its thousands apart.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
