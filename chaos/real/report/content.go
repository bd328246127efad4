package report

import (
	"fmt"
	"html/template"
	"strings"
	"time"
)

// content is all that the page shows.
type content struct {
	Style  template.CSS
	Script template.JS

	Notes   []string // what is missing or left out
	Outcome outcome
	Title   string
	Summary string
	Facts   []fact
	Why     []string
	WhyLeft int
	Replay  string
	NotRun  []string

	Whole     *chart
	Close     *chart
	First     *violation
	Near      []opRow
	NearCount int
	NearLeft  int

	Checks   []checkRow
	Names    []string // of the cells of Faults
	Faults   []faultRow
	Idle     []idle
	Phases   []phaseRow
	PhasesNo int // left out

	run   run
	lines int64
}

type fact struct{ Name, Value string }

// tell puts what results.json says into words.
func (c *content) tell() {
	r := &c.run
	c.Outcome = outcomeOf(r.Verdict)
	c.Checks, c.Names = r.checkRows(), r.checkNames()
	c.Faults, c.Idle = r.faultRows()
	c.Phases, c.PhasesNo = r.phaseRows()
	if c.First = r.firstViolation(); c.First != nil {
		c.First.Claim, c.First.Check, c.First.Detail = clip(c.First.Claim, 40), clip(c.First.Check, 40), clip(c.First.Detail, 600)
	}
	c.Replay = clip(r.Replay, 600)
	if r.Cut {
		c.Notes = append(c.Notes, "The run was ended before its time. This is what was seen until then.")
	}
	struck := 0
	for _, f := range r.Faults {
		struck += len(f.Injections)
	}
	took := (time.Duration(r.TookMs) * time.Millisecond).Round(100 * time.Millisecond)
	profile := clip(r.Profile, 60)
	c.Title = "chaos " + profile
	c.Summary = fmt.Sprintf("%s IDs, %d strikes of %d faults, %v", grouped(r.IDs), struck, len(c.Faults), took)
	fact := func(name, value string) {
		if value != "" {
			c.Facts = append(c.Facts, fact{name, clip(value, 300)})
		}
	}
	if !r.Began.IsZero() {
		fact("Date", r.Began.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	var commit, machine, level []string
	if s := r.Setup; s != nil {
		for _, v := range s.Versions[:min(len(s.Versions), 20)] {
			switch {
			case strings.HasPrefix(v, "commit "):
				commit = append(commit, strings.TrimPrefix(v, "commit "))
			case strings.HasPrefix(v, "uid "):
				level = append(level, v)
			default:
				machine = append(machine, clip(v, 80))
			}
		}
	}
	fact("Commit", strings.Join(commit, " "))
	if r.Command != "" {
		fact("Command", r.Command)
	} else {
		fact("Profile", r.Profile)
	}
	fact("Seed", fmt.Sprint(r.Seed))
	fact("Machine", strings.Join(machine, " · "))
	if r.Level != "" {
		level = append(level, r.Level)
	}
	fact("Privileges", strings.Join(level, "; "))
	if s := r.Setup; s != nil {
		fact("Cluster", fmt.Sprintf("%d nodes, window %d ms, greatest skew %d ms, greatest lead %d ms, layout %s", len(s.Nodes), s.WindowMs, s.MaxSkewMs, s.MaxLeadMs, s.Layout))
		for _, why := range s.NotRun[:min(len(s.NotRun), most)] {
			c.NotRun = append(c.NotRun, clip(why, 200))
		}
	}
	fact("History", grouped(c.lines)+" lines")
	for _, w := range r.Why {
		if len(c.Why) == 30 {
			c.WhyLeft = len(r.Why) - 30
			break
		}
		c.Why = append(c.Why, clip(w, 300))
	}
}
