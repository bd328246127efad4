package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/internal/clock"
)

// Bounds of what is shown.
const (
	maxRows = 400 // rows of a table
	maxText = 500 // characters of a text
)

// results is the part of results.json that is shown.
type results struct {
	Verdict, Profile, Command, Level, Replay string

	Why    []string
	Seed   uint64
	Began  time.Time
	TookMs int64 `json:"took_ms"`
	Setup  *history.Setup
	IDs    int64
	Faults []faultResult
	Checks []history.Result
	Danger *history.Danger // nil in results of an older harness
	Cut    bool
}

// faultResult is the verdict on one fault and what became of its injections.
type faultResult struct {
	Fault, Class, Expected, Must, Verdict, Reason string

	Injections []injection
	Claims     map[string]string // check to claims
}

type injection struct {
	ID         int64
	Targets    []string
	Fired, Cut bool
	Effect     string
	Start      int64 `json:"start_ms"`
	Stop       int64 `json:"stop_ms"`
}

func (r *results) decode(data []byte) error {
	err := json.Unmarshal(data, r)
	clipAll(r)
	return err
}

const notRun = "not run"

// outcome is a verdict with its symbol, so that no meaning rests on color alone.
type outcome struct{ Text, Symbol, Class string }

func outcomeOf(verdict any) outcome {
	switch text := fmt.Sprint(verdict); text {
	case string(history.Pass):
		return outcome{"pass", "✓", "pass"}
	case string(history.Broken):
		return outcome{"fail", "✗", "fail"}
	case notRun:
		return outcome{notRun, "–", "notrun"}
	case "":
		return outcome{"not checked", "?", "unknown"}
	default:
		return outcome{clip(text, 20), "?", "unknown"}
	}
}

// claims are the claims of docs/DESIGN.md in short, and why no check of a run
// covers a claim.
var claims = []struct{ id, text, elsewhere string }{
	{"I1", "no ID is issued twice", ""},
	{"I2", "IDs of a process, and of a sid, increase", ""},
	{"I3", "no ID outside a window that etcd confirmed", ""},
	{"I4", "windows of one sid are disjoint, and increase", ""},
	{"I5", "the time in an ID is close to real time", ""},
	{"I6", "an ID requested after X is greater than X", ""},
	{"I7", "a refusal changes nothing", "not observable from outside: tests of the generator show it"},
	{"I8", "all forms of an ID sort alike", "independent of faults: tests of the codecs show it"},
	{"I9", "no ID below a watermark that was answered before", ""},
}

// violation is a violation and the check that found it.
type violation struct {
	history.Violation
	Check string
}

// firstViolation returns the earliest violation of a failed check: of a numbered
// claim if there is one, and one with a known time before one without. It returns
// nil if no check failed.
func (r *results) firstViolation() *violation {
	var all []violation
	for _, c := range r.Checks {
		for _, v := range c.Violations {
			if c.Verdict == history.Broken {
				all = append(all, violation{v, c.Check})
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	rank := func(v violation) (n int) {
		if i := strings.TrimPrefix(v.Claim, "I"); len(i) != 1 || i < "1" || i > "8" {
			n = 2
		}
		if v.At <= 0 {
			n++
		}
		return n
	}
	slices.SortStableFunc(all, func(a, b violation) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.At, b.At))
	})
	return &all[0]
}

// Injected returns how many injections there were.
func (r *results) Injected() (n int) {
	for _, f := range r.Faults {
		n += len(f.Injections)
	}
	return n
}

// checkRow is a check under one claim.
type checkRow struct {
	ID, Text string
	Outcome  outcome
	history.Result
}

// CheckRows lists checks by claim; a check of two claims has two rows. A claim
// that no check of the run covers has a row that states the reason.
func (r *results) CheckRows() (out []checkRow) {
	listed := map[string]bool{}
	for _, p := range claims {
		before := len(out)
		for _, c := range r.Checks {
			if !slices.Contains(strings.FieldsFunc(c.Claim, func(r rune) bool { return r == ',' || r == ' ' }), p.id) {
				continue
			}
			listed[c.Check] = true
			row := checkRow{p.id, p.text, outcomeOf(c.Verdict), c}
			// All violations are listed, and all are of other claims of this check.
			if c.Verdict == history.Broken && c.Count == int64(len(c.Violations)) && c.Claim != p.id &&
				!slices.ContainsFunc(c.Violations, func(v history.Violation) bool {
					return v.Claim == p.id || !strings.Contains(c.Claim, v.Claim)
				}) {
				row.Outcome = outcomeOf(history.Pass)
			}
			out = append(out, row)
		}
		if len(out) == before {
			out = append(out, checkRow{p.id, p.text, outcomeOf(notRun),
				history.Result{Check: "–", Reason: cmp.Or(p.elsewhere, "no check of it in these results")}})
		}
	}
	for _, c := range r.Checks {
		if !listed[c.Check] && len(out) < 60 {
			out = append(out, checkRow{"", c.Claim, outcomeOf(c.Verdict), c})
		}
	}
	return out
}

// CheckNames are the checks that have a column in the table of faults.
func (r *results) CheckNames() (out []string) {
	for _, c := range r.Checks {
		if c.Check != "suspicion" && len(out) < 16 {
			out = append(out, clip(c.Check, 24))
		}
	}
	return out
}

// ClaimOf returns the verdict of a check while the fault lasted.
func (f faultResult) ClaimOf(check string) outcome { return outcomeOf(cmp.Or(f.Claims[check], notRun)) }

// Because returns what was seen of the fault, or why it did not pass.
func (f faultResult) Because() string {
	if f.Reason == "" && len(f.Injections) > 0 {
		return f.Injections[0].Effect
	}
	return f.Reason
}

// InjectedFaults returns the faults that were injected.
func (r *results) InjectedFaults() []faultResult {
	out := slices.DeleteFunc(slices.Clone(r.Faults), func(f faultResult) bool { return f.Verdict == notRun })
	return out[:min(len(out), maxRows)]
}

// Skipped returns the names of the faults that were not injected, by reason.
func (r *results) Skipped() map[string][]string {
	out := map[string][]string{}
	for _, f := range r.Faults {
		if f.Verdict == notRun {
			reason := cmp.Or(f.Reason, "no reason was given")
			out[reason] = append(out[reason], f.Fault)
		}
	}
	return out
}

// Phases returns the availability before, during and after each injection.
func (r *results) Phases() (out []history.FaultPhases) {
	for _, c := range r.Checks {
		out = append(out, c.Phases...)
	}
	return out[:min(len(out), maxRows)]
}

// PhasesLeft returns how many injections Phases leaves out.
func (r *results) PhasesLeft() (n int) {
	for _, c := range r.Checks {
		n += len(c.Phases)
	}
	return max(0, n-maxRows)
}

// share is which part of the calls was answered with IDs.
type share struct {
	Text, Rate string
	Percent    int
	Lost       bool
}

func shareOf(s history.Served) share {
	part, any := s.Share()
	out := share{Text: "no calls", Percent: int(part), Lost: any && s.Failed+s.Unknown > 0}
	switch {
	case out.Lost && part >= 99.95:
		out.Text = fmt.Sprintf("%.3f %%", part)
	case out.Lost:
		out.Text = fmt.Sprintf("%.1f %%", part)
	case any:
		out.Text = "100 %"
	}
	if s.Seconds > 0 {
		out.Rate = measured(float64(s.IDs)/s.Seconds) + "/s"
	}
	return out
}

// targetNames names the targets of a fault in short: n1–n5 for all from n1 to n5.
func targetNames(names []string) string {
	if n := len(names); n > 2 {
		return clip(names[0], 12) + "–" + clip(names[n-1], 12)
	}
	return clip(strings.Join(names, " "), 26)
}

func seconds(m clock.Mono) float64 { return float64(m) / 1e9 }

func unlessNegative(n int64, v float64, format string) string {
	if n < 0 {
		return "–"
	}
	return fmt.Sprintf(format, v)
}

// grouped writes a whole number with its thousands apart.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// measured writes a measured value.
func measured(v float64) string {
	if math.Abs(v) < 1e15 && (v == math.Trunc(v) || math.Abs(v) >= 10_000) {
		return grouped(int64(math.Round(v)))
	}
	return fmt.Sprintf("%.4g", v)
}

// clip bounds a text to n characters, and replaces control and formatting
// characters, which would hide or reorder the text around them.
func clip(s string, n int) string {
	if len(s) > 4*n+4 {
		s = strings.ToValidUTF8(s[:4*n+4], "") // no character has more than four bytes
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

// clipAll clips every text that v points to, except keys of maps.
func clipAll(v any) { clipValue(reflect.ValueOf(v)) }

func clipValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			clipValue(v.Elem())
		}
	case reflect.String:
		v.SetString(clip(v.String(), maxText))
	case reflect.Slice:
		for i := range v.Len() {
			clipValue(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				clipValue(v.Field(i))
			}
		}
	}
}
