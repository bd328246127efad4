package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/history"
)

// run is results.json, as far as it is shown.
type run struct {
	Verdict string
	Why     []string
	Profile string
	Command string
	Seed    uint64
	Began   time.Time
	TookMs  int64 `json:"took_ms"`
	Replay  string
	Setup   *history.Setup
	IDs     int64
	Faults  []fault
	Checks  []history.Result
	Broken  []string
	Level   string
	Cut     bool
}

// fault is the verdict on one kind of fault.
type fault struct {
	Fault, Class, Expected, Must, Verdict, Reason string

	Injections []strike
	Claims     map[string]string
}

// strike is what became of one injection.
type strike struct {
	ID            int64
	Targets       []string
	Fired         bool
	Effect, Error string
	Start         int64 `json:"start_ms"`
	Stop          int64 `json:"stop_ms"`
	Cut           bool
}

const notRun = "not run"

// firstViolation returns the earliest violation of a check that failed: of a
// numbered claim if there is one, since late answers are the lesser evil. Those
// that do not say when come after others of their kind. It returns nil if nothing
// failed.
func (r *run) firstViolation() *violation {
	var all []violation
	for _, c := range r.Checks {
		if c.Verdict != history.Broken {
			continue
		}
		for _, v := range c.Violations {
			all = append(all, violation{Violation: v, Check: c.Check})
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b violation) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.At, b.At))
	})
	return &all[0]
}

func (v violation) rank() int {
	rank := 2
	if slices.ContainsFunc(promises, func(p promise) bool { return p.claim == v.Claim }) {
		rank = 0
	}
	if v.At <= 0 {
		rank++
	}
	return rank
}

type violation struct {
	history.Violation
	Check string
}

// Second is when it was seen, in words.
func (v violation) Second() string {
	if v.At <= 0 {
		return "at no known time"
	}
	return fmt.Sprintf("at %.3f s", seconds(v.At))
}

// outcome is a verdict with its sign, so that no meaning hangs on colour alone.
type outcome struct{ Word, Sign, Class string }

func outcomeOf(verdict string) outcome {
	switch verdict {
	case string(history.Pass):
		return outcome{"pass", "✓", "pass"}
	case string(history.Broken):
		return outcome{"fail", "✗", "fail"}
	case notRun:
		return outcome{notRun, "–", "notrun"}
	case string(history.Unknown):
		return outcome{"unknown", "?", "unknown"}
	case "":
		return outcome{"not judged", "?", "unknown"}
	}
	return outcome{clip(verdict, 20), "?", "unknown"}
}

// promises are the claims in a few words, in order; docs/DESIGN.md has them whole.
var promises = []promise{
	{"I1", "no ID is issued twice", ""},
	{"I2", "IDs of a process, and of a sid, rise", ""},
	{"I3", "no ID outside a window that etcd confirmed", ""},
	{"I4", "windows of one sid are disjoint, and rise", ""},
	{"I5", "the time in an ID is close to real time", ""},
	{"I6", "an ID asked for after X is greater than X", ""},
	{"I7", "a refusal changes nothing", "not seen from outside: tests of the generator show it"},
	{"I8", "all forms of an ID sort alike", "no matter of faults: tests of the codecs show it"},
}

type promise struct{ claim, words, elsewhere string }

// checkRow is a row of the table of checks.
type checkRow struct {
	Claim, Words, Check string
	Outcome             outcome
	Seen                string
	Count               int64
	Figures             []string
	Violations          []violation
}

// checkRows lists checks by claim: a check of two claims stands under both. Claims
// that no check of the run covers are listed with the reason.
func (r *run) checkRows() (out []checkRow) {
	rest := map[string]bool{}
	for _, c := range r.Checks {
		rest[c.Check] = true
	}
	row := func(claim, words string, c *history.Result) checkRow {
		delete(rest, c.Check)
		row := checkRow{Claim: claim, Words: words, Check: clip(c.Check, 40), Outcome: outcomeOf(string(c.Verdict)), Seen: clip(c.Reason, 300), Count: c.Count}
		for _, f := range c.Figures[:min(len(c.Figures), 8)] {
			row.Figures = append(row.Figures, strings.TrimSpace(fmt.Sprintf("%s %s %s", clip(f.Name, 40), figure(f.Value), clip(f.Unit, 12))))
		}
		for _, v := range c.Violations[:min(len(c.Violations), 10)] {
			v.Detail = clip(v.Detail, 500)
			row.Violations = append(row.Violations, violation{v, c.Check})
		}
		return row
	}
	for _, p := range promises {
		covered := false
		for i := range r.Checks {
			c := &r.Checks[i]
			if slices.Contains(strings.FieldsFunc(c.Claim, func(r rune) bool { return r == ',' || r == ' ' }), p.claim) {
				one := row(p.claim, p.words, c)
				if spares(c, p.claim) {
					one.Outcome = outcomeOf(string(history.Pass))
				}
				out = append(out, one)
				covered = true
			}
		}
		switch {
		case covered:
		case p.elsewhere != "":
			out = append(out, checkRow{Claim: p.claim, Words: p.words, Check: "–", Outcome: outcomeOf(notRun), Seen: p.elsewhere})
		default:
			out = append(out, checkRow{Claim: p.claim, Words: p.words, Check: "–", Outcome: outcomeOf(notRun), Seen: "no check of it in these results"})
		}
	}
	for i := range r.Checks {
		if c := &r.Checks[i]; rest[c.Check] && len(out) < 60 {
			out = append(out, row("", clip(c.Claim, 60), c))
		}
	}
	return out
}

// spares reports whether a check of several claims failed, and not for this one:
// all its violations are told, and all are of others.
func spares(c *history.Result, claim string) bool {
	return c.Verdict == history.Broken && c.Count == int64(len(c.Violations)) && c.Claim != claim &&
		!slices.ContainsFunc(c.Violations, func(v history.Violation) bool { return v.Claim == claim || !strings.Contains(c.Claim, v.Claim) })
}

// faultRow is a fault that struck.
type faultRow struct {
	Name, Class, Expected, Must string
	Outcome                     outcome
	Injections                  []string
	Because                     string
	Cells                       []cell // one a check, as in checkNames
}

// cell is the verdict of a check in a fault's time.
type cell struct {
	outcome
	Check string
}

// idle are faults that did not strike, for one reason.
type idle struct {
	Reason string
	Names  []string
}

// most bounds the rows of a table and the strikes that are drawn.
const most = 400

// checkNames are the checks whose verdicts faults carry.
func (r *run) checkNames() (out []string) {
	for _, c := range r.Checks {
		if c.Check != "suspicion" && len(out) < 16 {
			out = append(out, clip(c.Check, 24))
		}
	}
	return out
}

// faultRows splits the faults into those that struck and those that did not.
func (r *run) faultRows() (struck []faultRow, not []idle) {
	names := r.checkNames()
	at := map[string]int{}
	for _, f := range r.Faults[:min(len(r.Faults), most)] {
		name := clip(f.Fault, 40)
		if f.Verdict == notRun {
			reason := clip(cmp.Or(f.Reason, "no reason was given"), 200)
			i, ok := at[reason]
			if !ok {
				i = len(not)
				at[reason] = i
				not = append(not, idle{Reason: reason})
			}
			not[i].Names = append(not[i].Names, name)
			continue
		}
		row := faultRow{Name: name, Class: className(f.Class), Expected: clip(f.Expected, 200), Must: clip(f.Must, 40), Outcome: outcomeOf(f.Verdict), Because: clip(f.Reason, 400)}
		for i, s := range f.Injections {
			if i == 6 {
				row.Injections = append(row.Injections, fmt.Sprintf("and %d more", len(f.Injections)-i))
				break
			}
			row.Injections = append(row.Injections, s.words())
			if row.Because == "" {
				row.Because = clip(s.Effect, 300)
			}
		}
		for _, n := range names {
			verdict, ok := f.Claims[n]
			if !ok {
				verdict = notRun
			}
			row.Cells = append(row.Cells, cell{outcomeOf(verdict), n})
		}
		struck = append(struck, row)
	}
	return struck, not
}

func (s *strike) words() string {
	text := fmt.Sprintf("#%d %s", s.ID, targets(s.Targets))
	if s.Stop > 0 {
		text += fmt.Sprintf(" %.1f–%.1f s", float64(s.Start)/1e3, float64(s.Stop)/1e3)
	}
	switch {
	case s.Cut:
		text += ", cut short"
	case !s.Fired:
		text += ", no effect seen"
	}
	return text
}

// targets names whom a fault hit in few letters: n1–n5 rather than all of them.
func targets(names []string) string {
	if n := len(names); n > 2 {
		return clip(names[0], 12) + "–" + clip(names[n-1], 12)
	}
	return clip(strings.Join(names, " "), 26)
}

// phaseRow is how clients were served around one strike.
type phaseRow struct {
	Name, Targets         string
	Start, Lasted         string
	Before, During, After share
	First, Back           string
}

// share is which part of calls was answered.
type share struct {
	Text, Class string
	Rate        string
	Width       int // of a bar, in percent
}

func shareOf(s history.Served) share {
	part, any := s.Share()
	if !any {
		return share{Text: "nobody asked", Class: "none"}
	}
	out := share{Text: fmt.Sprintf("%.1f %%", part), Class: "full", Width: int(part)}
	if s.OK < s.OK+s.Failed+s.Unknown {
		out.Class = "part"
		if part >= 99.95 {
			out.Text = fmt.Sprintf("%.3f %%", part)
		}
	} else {
		out.Text = "100 %"
	}
	if s.Seconds > 0 {
		out.Rate = count(float64(s.IDs)/s.Seconds) + "/s"
	}
	return out
}

// phaseRows is availability by phase.
func (r *run) phaseRows() (out []phaseRow, left int) {
	for _, c := range r.Checks {
		for _, p := range c.Phases {
			if len(out) == most {
				left++
				continue
			}
			row := phaseRow{Name: fmt.Sprintf("#%d %s", p.ID, clip(p.Fault, 40)), Targets: targets(p.Targets), Start: fmt.Sprintf("%.1f", seconds(p.Start)),
				Lasted: "not healed", Before: shareOf(p.Before), During: shareOf(p.During), After: shareOf(p.After), First: "–", Back: "–"}
			if p.Stop >= 0 {
				row.Lasted = fmt.Sprintf("%.1f", seconds(p.Stop-p.Start))
			}
			if p.FirstMs >= 0 {
				row.First = fmt.Sprintf("%.2f", float64(p.FirstMs)/1e3)
			}
			if p.BackMs >= 0 {
				row.Back = fmt.Sprintf("%.1f", float64(p.BackMs)/1e3)
			}
			out = append(out, row)
		}
	}
	return out, left
}
