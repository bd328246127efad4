package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/nemesis"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/audit/spool"
)

// Results is the content of results.json.
type Results struct {
	Verdict history.Verdict  `json:"verdict"`
	Why     []string         `json:"why,omitempty"` // reasons for any other verdict than a pass
	Profile string           `json:"profile"`
	Command string           `json:"command"`
	Level   string           `json:"level"` // level of faults that the machine supports
	Seed    uint64           `json:"seed"`
	Began   time.Time        `json:"began"`
	TookMs  int64            `json:"took_ms"`
	Replay  string           `json:"replay"` // command that repeats the schedule
	Setup   *history.Setup   `json:"setup"`
	IDs     int64            `json:"ids"`
	Faults  []FaultResult    `json:"faults"`
	Checks  []history.Result `json:"checks"`
	Danger  history.Danger   `json:"danger"`           // Danger is what could have broken a claim.
	Broken  []string         `json:"broken,omitempty"` // violations that clients found
	Cut     bool             `json:"cut,omitempty"`    // interrupted by a signal
	Stalls  []string         `json:"stalls,omitempty"` // pauses of this machine: a run with one shows nothing
	// Delays are the times in which this machine was late, pauses among them. The cause of a
	// violation near one may be the machine, unless the check does not depend on timing.
	Delays []Delay `json:"delays,omitempty"`
	// Undecided is a check that is unknown though this machine was never late. How many calls came before
	// a fault, and how soon one was refused, depends on how fast the machine is: those checks do not count.
	Undecided string `json:"undecided,omitempty"`
}

// FaultResult is the verdict on one kind of fault.
type FaultResult struct {
	Fault      string            `json:"fault"`
	Class      string            `json:"class"`
	Expected   string            `json:"expected"`
	Must       string            `json:"must,omitempty"` // reason that targets must refuse with
	Verdict    string            `json:"verdict"`        // pass, fail, unknown, not run
	Reason     string            `json:"reason,omitempty"`
	Injections []nemesis.Outcome `json:"injections,omitempty"`
	// Claims has the verdict of each check in the time of the fault: a violation in
	// it counts against the fault.
	Claims map[string]string `json:"claims,omitempty"`
}

// untimed are the checks that do not depend on timing, unless a violation says so itself.
var untimed = []string{"unique", "intervals", "order", "causal", "reserved", "holders", "final"}

func timed(check string) bool { return !slices.Contains(untimed, check) }

const (
	notRun       = "not run"
	notInProfile = "not in this profile"
)

// results checks the history and puts everything together.
func (r *runner) results(began time.Time, took time.Duration, runErr error, cut bool) *Results {
	checks, danger, err := check(r.dir)
	res := &Results{
		Profile: r.profile,
		Seed:    r.schedule.Seed,
		Began:   began.UTC(),
		TookMs:  took.Milliseconds(),
		Setup:   r.setup(),
		IDs:     r.rig.IDs(),
		Checks:  checks,
		Danger:  danger,
		Broken:  r.broken,
		Cut:     cut,
		Replay:  "bin/chaos run --schedule " + filepath.Join(r.dir, "schedule.json"),
	}
	res.Command, res.Level = "bin/chaos "+strings.Join(os.Args[1:], " "), r.level()
	var outcomes []nemesis.Outcome
	if r.nemesis != nil {
		outcomes = r.nemesis.Outcomes()
		res.Stalls, res.Delays = r.nemesis.Stalls(), r.delays.all()
	}
	for _, e := range []error{runErr, err} {
		if e != nil {
			res.Why = append(res.Why, e.Error())
		}
	}
	if cut {
		res.Why = append(res.Why, "the run was interrupted")
	}
	res.Faults = faultResults(outcomes, checks, r.notRun, res.Delays, r.rig.Timing)
	res.judge()
	return res
}

// level states what the machine supports.
func (r *runner) level() string {
	able := []string{"loopback only", "no clock faults"}
	if r.rig.Net != nil {
		able[0] = "each process in its own network namespace"
	}
	if r.rig.Clocks {
		able[1] = "clocks can be set by process"
	}
	return strings.Join(append(able, r.rig.Cannot...), "; ")
}

// check reads the history of a run.
func check(dir string) ([]history.Result, history.Danger, error) {
	f, err := os.Open(filepath.Join(dir, "history.jsonl"))
	if err != nil {
		return nil, history.Danger{}, err
	}
	defer f.Close()
	files, err := spool.NewDir(dir, nil)
	if err != nil {
		return nil, history.Danger{}, err
	}
	defer files.Close()
	dangers := history.NewDangers()
	checks, err := history.NewSuite(64<<20, &limited{files, 8 << 30}).Check(f, dangers)
	return checks, dangers.Count(), err
}

// limited is a spool that takes so many bytes in all: a history must not fill the disk.
type limited struct {
	audit.Spool
	left int64
}

type limitedFile struct {
	audit.Spooled
	of *limited
}

func (l *limited) Create() (audit.Spooled, error) {
	s, err := l.Spool.Create()
	return limitedFile{s, l}, err
}

func (f limitedFile) Write(b []byte) (int, error) {
	if f.of.left -= int64(len(b)); f.of.left < 0 {
		return 0, errors.New("the history takes more room than the search for duplicates may use")
	}
	return f.Spooled.Write(b)
}

func faultResults(outcomes []nemesis.Outcome, checks []history.Result, not []string, delays []Delay,
	t rig.Timing) (out []FaultResult) {
	for _, f := range nemesis.Table() {
		r := FaultResult{
			Fault:    f.Name,
			Class:    string(f.Class),
			Expected: f.Expect(t).Text,
			Must:     f.Expect(t).Must,
			Verdict:  notRun,
			Reason:   notInProfile,
		}
		for _, why := range not {
			if name, reason, _ := strings.Cut(why, ": "); name == f.Name {
				r.Reason = reason
			}
		}
		for _, o := range outcomes {
			if o.Fault == f.Name {
				r.Injections = append(r.Injections, o)
			}
		}
		if len(r.Injections) > 0 {
			r.judge(checks, delays)
		}
		out = append(out, r)
	}
	return out
}

// judge decides the verdict of a fault by its injections and by what checks found
// while they lasted.
func (r *FaultResult) judge(checks []history.Result, delays []Delay) {
	verdict := history.Pass
	r.Reason = ""
	worsen := func(v history.Verdict, format string, args ...any) {
		if w := history.Worst(verdict, v); w != verdict {
			verdict, r.Reason = w, fmt.Sprintf(format, args...)
		}
	}
	for _, o := range r.Injections {
		switch {
		case o.Broken:
			worsen(history.Broken, "%s", o.Error)
		case o.Error != "" && o.Stop == 0:
			worsen(history.Unknown, "could not be injected: %s", o.Error)
		case o.Cut:
			worsen(history.Unknown, "interrupted")
		case o.Error != "":
			worsen(history.Unknown, "%s", o.Error)
		case !o.Fired:
			worsen(history.Unknown, "no effect was seen")
		}
	}
	r.Claims = map[string]string{}
	for _, c := range checks {
		r.Claims[c.Check] = string(history.Pass)
		if c.Verdict == history.Unknown && c.Check != "suspicion" && (c.Check != "deadlines" || r.Must != "") {
			r.Claims[c.Check] = string(history.Unknown)
			worsen(history.Unknown, "%s is unknown: %s", c.Check, c.Reason)
		}
		for _, v := range c.Violations {
			at := int64(v.At) / 1e6
			if c.Check == "suspicion" { // about this fault, or about the whole run
				for _, o := range r.Injections {
					if at > 0 && o.Start <= at && at <= o.Stop {
						worsen(history.Unknown, "%s", v.Detail)
					}
				}
				continue
			}
			if at == 0 { // found at the end: it counts against the run
				r.Claims[c.Check] = string(history.Unknown)
				worsen(history.Unknown, "%s failed at an unknown time", c.Check)
			}
			for _, o := range r.Injections {
				if at == 0 || at < o.Start || o.Over < at {
					continue
				}
				if explainedBy(delays, c.Check, v) {
					r.Claims[c.Check] = string(history.Worst(history.Verdict(r.Claims[c.Check]), history.Unknown))
					worsen(history.Unknown, "this machine was overloaded: %s: %s", c.Check, v.Detail)
				} else {
					r.Claims[c.Check] = string(history.Broken)
					worsen(history.Broken, "%s: %s", c.Check, v.Detail)
				}
			}
		}
	}
	r.Verdict = string(verdict)
}

// judge decides the verdict of the run.
func (res *Results) judge() {
	verdict := history.Pass
	worsen := func(v history.Verdict, why string) {
		if verdict = history.Worst(verdict, v); v != history.Pass {
			res.Why = append(res.Why, why)
		}
	}
	if len(res.Why) > 0 {
		verdict = history.Unknown
	}
	if len(res.Checks) == 0 {
		worsen(history.Unknown, "nothing was checked")
	}
	if len(res.Stalls) > 0 {
		worsen(history.Unknown, "this machine was paused: "+strings.Join(res.Stalls, ", "))
	}
	mustRefuse := false
	for _, f := range res.Faults {
		mustRefuse = mustRefuse || len(f.Injections) > 0 && f.Must != ""
	}
	for _, c := range res.Checks {
		if c.Check == "deadlines" && !mustRefuse && c.Verdict == history.Unknown {
			continue // no fault of this run makes a node refuse
		}
		why := c.Check + ": " + c.Reason
		if c.Verdict == history.Broken && len(c.Violations) > 0 {
			why = fmt.Sprintf("%s: %d violations, the first: %s", c.Check, c.Count, c.Violations[0].Detail)
		}
		v := c.Verdict
		if v == history.Broken && allExplainedBy(res.Delays, &c) {
			v, why = history.Unknown, "this machine was overloaded: "+why
		}
		worsen(v, why)
	}
	for _, b := range res.Broken {
		worsen(history.Broken, b)
	}
	for _, f := range res.Faults {
		switch f.Verdict {
		case notRun, string(history.Pass):
		default:
			worsen(history.Verdict(f.Verdict), f.Fault+": "+f.Reason)
		}
	}
	res.Verdict, res.Undecided = verdict, ""
	for _, c := range res.Checks {
		if late := len(res.Stalls)+len(res.Delays) > 0; !late && c.Verdict == history.Unknown &&
			c.Check != "suspicion" && c.Check != "deadlines" {
			res.Undecided = c.Check
		}
	}
}

// finish writes and prints the results, and returns the verdict as an error unless
// everything passed.
func (r *runner) finish(res *Results) error {
	if err := writeJSON(filepath.Join(r.dir, "results.json"), res); err != nil {
		return err
	}
	res.print()
	if err := res.report(r.dir); err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err) // the verdict does not depend on it
	}
	if res.Verdict == history.Pass { // data and programs are kept only to find the cause of a failure
		for _, dir := range []string{"bin", "etcd"} {
			if err := os.RemoveAll(filepath.Join(r.dir, dir)); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(os.Stdout, "results in %s\n", r.dir)
	if res.Verdict != history.Pass {
		return verdictError(res.Verdict)
	}
	return nil
}

// print writes the results as tables.
func (res *Results) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nCHECK\tCLAIM\tVERDICT\tCHECKED")
	for _, c := range res.Checks {
		measured := ""
		for _, f := range c.Measurements {
			measured += fmt.Sprintf("; %s %.4g %s", f.Name, f.Value, f.Unit)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\n", c.Check, c.Claim, c.Verdict, clip(c.Reason, 110), clip(measured, 140))
	}
	fmt.Fprintln(w, "\nFAULT\tINJECTIONS\tVERDICT\tEFFECT OR REASON")
	for _, f := range res.Faults {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", f.Fault, len(f.Injections), f.Verdict, clip(f.Because(), 130))
	}
	_ = w.Flush()
	fmt.Println("\nclaims in danger:", res.Danger)
	for _, c := range res.Checks {
		for _, v := range c.Violations[:min(len(c.Violations), 10)] {
			fmt.Printf("%s: %s\n", c.Check, v.Detail)
		}
	}
	fmt.Printf("\n%s: %d IDs of layout %s, seed %d, %v\n", strings.ToUpper(string(res.Verdict)), res.IDs,
		res.Setup.Layout, res.Seed, (time.Duration(res.TookMs) * time.Millisecond).Round(time.Second))
	for _, why := range res.Why {
		fmt.Println("  " + clip(why, 200))
	}
}

func clip(s string, n int) string {
	s, _, _ = strings.Cut(s, "\n")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// verify checks the history of a run again.
func verify(dir string) error {
	var res Results
	data, err := os.ReadFile(filepath.Join(dir, "results.json"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		res.Why = append(res.Why, "there is no results.json: outcomes of faults are unknown")
	case err != nil:
		return usageError{err}
	default:
		if err := json.Unmarshal(data, &res); err != nil {
			return usageError{fmt.Errorf("%s: %w", dir, err)}
		}
		res.Why = nil
	}
	checks, danger, err := check(dir)
	if errors.Is(err, os.ErrNotExist) {
		return usageError{err}
	}
	if err != nil {
		res.Why = append(res.Why, err.Error())
	}
	if res.Cut {
		res.Why = append(res.Why, "the run was interrupted")
	}
	res.Checks, res.Danger = checks, danger
	for _, c := range checks {
		for _, f := range c.Measurements {
			if f.Name == "IDs" {
				res.IDs = int64(f.Value)
			}
		}
	}
	for i := range res.Faults {
		if f := &res.Faults[i]; len(f.Injections) > 0 {
			f.judge(checks, res.Delays)
		}
	}
	res.judge()
	res.print()
	if res.Verdict != history.Pass {
		return verdictError(res.Verdict)
	}
	return nil
}
