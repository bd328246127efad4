package console

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/status"
)

// Snapshot is what the pages show: the cluster as the node knows it, and what follows
// from that for people.
type Snapshot struct {
	status.Snapshot
	Summary Summary        `json:"summary"`
	Members []Member       `json:"members"`
	Counts  map[string]int `json:"counts"` // sids by state
	Detail  Detail         `json:"detail"`
	Stale   bool           `json:"stale"` // the nodes and sids are of an earlier read: etcd does not answer

	Rows     []Row    `json:"-"` // the sids in use, in order
	Standbys []Member `json:"-"` // nodes without a sid
	Window   int64    `json:"-"` // the longest window left of all, ms
}

// Left returns what is left of the node's own window, in ms.
func (s Snapshot) Left() int64 { return max(0, s.Self.Ceil-s.At) }

// Summary is one sentence about the cluster.
type Summary struct {
	Level string `json:"level"` // ok, warn or bad
	Text  string `json:"text"`
	Help  string `json:"help,omitempty"` // page below docs
}

// Row is a sid that is or was in use.
type Row struct {
	status.SID
	State   string // free, held, waiting or quarantined; of held: refusing or exhausted
	Left    int64  // ms
	Verdict string // of its holder; "": not known
	Rate    string // of its holder, IDs a second; "–": not known
	Console string // of its holder; "": none
}

// Member is a registered node.
type Member struct {
	Name        string `json:"name"`
	Instance    string `json:"instance"`
	Version     string `json:"version"`
	GRPC        string `json:"grpc"`
	HTTP        string `json:"http"`
	Console     string `json:"console"` // URL of its pages; "": none, or it is this node
	SID         int    `json:"sid"`     // -1: none
	Self        bool   `json:"self"`
	State       string `json:"state"`            // serving, refusing, standby, silent or unknown
	Reason      string `json:"reason,omitempty"` // of a refusal
	Ceil        int64  `json:"ceil_unix_ms"`     // of its window, as it reported; 0: not known
	Reported    bool   `json:"reported"`         // the next one is known
	Rate        int64  `json:"ids_per_second"`
	Measured    bool   `json:"measured"` // the next ones are known
	Fresh       bool   `json:"fresh"`
	Offset      int64  `json:"offset_us"` // of its clock from the cluster's time, or from this node's while that is unknown
	Uncertainty int64  `json:"uncertainty_us"`
	Age         int64  `json:"age_us"`
	RTT         int64  `json:"rtt_us"`
	False       bool   `json:"false"`
	Since       int64  `json:"since_unix_ms"` // of False, as this node saw it; 0: not known
}

// Detail is the node that answers.
type Detail struct {
	Phase      string      `json:"phase"` // of the lease
	Problem    string      `json:"problem,omitempty"`
	Conditions []Condition `json:"conditions"`
}

// For how long what was read of etcd counts as current, in ms. It is read every two
// seconds while a page is open, and every five in a space with many sids.
const (
	staleAfter     = 4500
	wideStaleAfter = 8000
	wideSIDs       = 256
	reportAfter    = 4500 // the same of what a node reported of itself
)

// snapshot returns what the node knows now.
func (c *Console) snapshot(ctx context.Context) Snapshot { return c.Complete(c.cfg.Snapshot(ctx)) }

// Complete adds to what the node knows what follows from it for people.
func (c *Console) Complete(from status.Snapshot) Snapshot {
	s := Snapshot{Snapshot: from}
	after := int64(staleAfter)
	if len(from.SIDs) > wideSIDs {
		after = wideStaleAfter
	}
	s.Stale = from.Read == 0 || from.At-from.Read > after
	s.members(c.history.since())
	s.rows()
	s.Detail = detail(c.cfg.Node.Stats(), c.cfg.Conditions)
	s.Summary = summarize(&s)
	return s
}

// members fills in the nodes.
func (s *Snapshot) members(since map[string]int64) {
	self := s.Self
	var offset int64 // cluster's time minus this node's
	if k := self.Clock; k != nil && k.Known {
		offset = k.Offset
	}
	for _, n := range s.Nodes {
		m := Member{Name: cmp.Or(n.Name, n.Instance), Instance: n.Instance, Version: n.Version, GRPC: n.GRPC, HTTP: n.HTTP, Console: n.Console, SID: n.SID, Since: since[n.Instance]}
		if k := n.Clock; k != nil {
			m.Measured, m.Fresh, m.Offset, m.Uncertainty, m.Age, m.RTT, m.False = true, k.Fresh, k.Offset-offset, k.Error, k.Age, k.RTT, k.Falseticker
		}
		if !m.False {
			m.Since = 0
		}
		if n.Report != nil && n.Report.Age > reportAfter {
			n.Report = nil
		}
		if n.Report != nil {
			m.Reported, m.Rate, m.Ceil = true, n.Report.Rate, n.Report.Ceil
		}
		switch m.Self = n.Instance == self.Instance; {
		case m.Self:
			m.State, m.SID, m.Ceil, m.Console = "serving", self.SID, self.Ceil, ""
			if k := self.Clock; k != nil && k.Known {
				m.Uncertainty = k.Uncertainty
			}
			if !self.Ready {
				m.State, m.Reason = "refusing", self.Refusing.String()
			}
		case n.Clock == nil:
			m.State = "unknown"
		case !n.Clock.Fresh:
			m.State = "silent"
		case n.Clock.Verdict == clock.Skewed.String():
			m.State, m.Reason = "refusing", node.ClockSkew.String()
		case n.Clock.Verdict == clock.Unverified.String():
			m.State, m.Reason = "refusing", node.ClockUnverified.String()
		case n.Report != nil && n.Report.Refusing == node.NoSID, n.SID < 0:
			m.State = "standby"
		case n.Report != nil && n.Report.Refusing != 0:
			m.State, m.Reason = "refusing", n.Report.Refusing.String()
		default:
			m.State = "serving"
		}
		if m.SID < 0 && (m.State == "standby" || m.Reason == node.NoSID.String()) {
			s.Standbys = append(s.Standbys, m)
		}
		s.Members = append(s.Members, m)
	}
}

// rows fills in the sids.
func (s *Snapshot) rows() {
	s.Counts = map[string]int{}
	by := map[string]*Member{}
	for i := range s.Members {
		by[s.Members[i].Instance] = &s.Members[i]
	}
	for _, sid := range s.SIDs {
		r := Row{SID: sid, State: sid.State, Left: max(0, sid.Ceil-s.At), Rate: "–"}
		m := by[sid.Instance]
		if sid.State == "held" && m != nil {
			r.Verdict, r.Console = m.State, m.Console
			if m.Reported {
				r.Rate = thousands(m.Rate)
			}
			if m.Reason != "" {
				r.Verdict = m.Reason
			}
			if m.SID == sid.SID {
				r.Ceil = max(r.Ceil, m.Ceil) // confirmed since the read
				r.Left = max(0, r.Ceil-s.At)
			}
			switch {
			case m.Reason != "" && m.Reason != node.WindowExhausted.String():
				r.State = "refusing"
			case r.Left == 0:
				m.State, m.Reason = "refusing", node.WindowExhausted.String()
				r.State, r.Verdict = "exhausted", m.Reason
			}
			s.Counts["held"]++
		}
		if r.State != "held" {
			s.Counts[r.State]++
		}
		s.Window = max(s.Window, r.Left)
		s.Rows = append(s.Rows, r)
	}
}

func detail(st node.Stats, conditions func() []Condition) Detail {
	d := Detail{
		Phase: st.Lease.Phase.String(), Problem: st.Lease.Problem}
	if conditions != nil {
		d.Conditions = conditions()
	}
	return d
}

// summarize returns the sentence for a snapshot: the worst of what is wrong, or that
// nothing is.
func summarize(s *Snapshot) Summary {
	var skewed, exhausted, unverified, silent, others []string
	serving, holders := 0, 0
	shortest := int64(-1)
	for _, m := range s.Members {
		switch {
		case m.State == "serving":
			serving++
		case m.Reason == node.ClockSkew.String():
			skewed = append(skewed, m.Name)
		case m.Reason == node.WindowExhausted.String():
			exhausted = append(exhausted, m.Name)
		case m.Reason == node.ClockUnverified.String():
			unverified = append(unverified, m.Name)
		case m.Reason != "" && m.Reason != node.NoSID.String():
			others = append(others, m.Name+" with "+m.Reason)
		case m.State == "silent":
			silent = append(silent, m.Name)
		}
	}
	for _, r := range s.Rows {
		if r.State == "held" {
			holders++
			if shortest < 0 || r.Left < shortest {
				shortest = r.Left
			}
		}
	}
	serve := fmt.Sprintf("%s of %s serve.", strconv.Itoa(serving), count(len(s.Members), "node"))
	switch {
	case s.Detail.Phase == "rewound":
		return Summary{"bad", "etcd's history went back: nodes refuse until an operator begins a new era. " + serve, "how-to/restore-etcd.md#etcd-was-restored-from-a-backup"}
	case len(s.Members) == 0:
		return Summary{"warn", "No node is known yet: etcd has not been read.", "how-to/restore-etcd.md#etcd-does-not-answer"}
	case s.Stale && serving == 0:
		return Summary{"bad", "etcd does not answer, and the windows have ended: nobody issues.", "how-to/restore-etcd.md#etcd-does-not-answer"}
	case s.Stale && shortest >= 0:
		return Summary{"bad", fmt.Sprintf("etcd does not answer. Nodes issue until their windows end, the first in %s. %s", seconds(shortest), serve), "how-to/restore-etcd.md#etcd-does-not-answer"}
	case s.Stale:
		return Summary{"bad", "etcd does not answer, and the state of sids is not known. " + serve, "how-to/restore-etcd.md#etcd-does-not-answer"}
	case len(skewed) > 0 && serving == 0:
		return Summary{"bad", "The clocks disagree, and nobody issues: " + list(skewed) + ".", "how-to/repair-clocks.md#no-majority-agrees"}
	case len(skewed) > 0:
		return Summary{"bad", fmt.Sprintf("%s: the clock is wrong, so %s. %s", list(skewed), refuse(skewed), serve), "how-to/repair-clocks.md#one-clock-is-wrong"}
	case len(exhausted) > 0:
		return Summary{"bad", fmt.Sprintf("%s: the window has ended, so %s. %s", list(exhausted), refuse(exhausted), serve), "how-to/restore-etcd.md#etcd-does-not-answer"}
	case len(unverified) > 0:
		return Summary{"bad", fmt.Sprintf("%s: no majority confirms the clock, so %s. %s", list(unverified), refuse(unverified), serve), "how-to/repair-clocks.md#peers-do-not-answer"}
	case len(others) > 0:
		return Summary{"warn", "Refusing: " + list(others) + ". " + serve, "reference/refusals.md"}
	case len(silent) > 0:
		return Summary{"warn", "No reply from " + list(silent) + ". " + serve, "how-to/repair-clocks.md#peers-do-not-answer"}
	case s.Counts["quarantined"] > 0:
		return Summary{"warn", count(s.Counts["quarantined"], "sid") + " quarantined. " + serve, "how-to/repair-sids.md#a-record-is-corrupt-or-a-sid-quarantined"}
	case len(s.Standbys) > 0:
		return Summary{"warn", "No sid is left for " + names2(s.Standbys) + ". " + serve, "how-to/repair-sids.md#the-pool-is-exhausted"}
	}
	text := fmt.Sprintf("All is well: %s serve", count(serving, "node"))
	if serving == 1 {
		text = "All is well: 1 node serves"
	}
	if shortest >= 0 {
		text += ", every window lasts " + seconds(shortest) + " or longer"
	}
	return Summary{Level: "ok", Text: text + "."}
}

func names2(list []Member) string {
	var out []string
	for _, m := range list {
		out = append(out, m.Name)
	}
	return listOf(out)
}

func list(names []string) string { return listOf(names) }

// listOf joins names, of many the first three.
func listOf(names []string) string {
	if len(names) > 3 {
		return strings.Join(names[:3], ", ") + " and " + strconv.Itoa(len(names)-3) + " more"
	}
	if len(names) > 1 {
		return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
	}
	return strings.Join(names, "")
}

func refuse(names []string) string {
	if len(names) == 1 {
		return "it refuses"
	}
	return "they refuse"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// seconds returns ms as seconds with one decimal.
func seconds(ms int64) string { return strconv.FormatFloat(float64(ms/100)/10, 'f', 1, 64) + " s" }

// utc returns a Unix time in ms as people read it; "–" for 0.
func utc(ms int64) string {
	if ms == 0 {
		return "–"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05.000")
}

// functions are those of the templates.
var functions = map[string]any{
	"seconds": seconds,
	"utc":     utc,
	"offset":  func(us, uncertainty int64) string { return clock.FormatOffset(micros(us), micros(uncertainty)) },
	"micros":  func(us int64) string { return micros(us).String() },
	"percent": func(part, whole int64) int64 {
		if whole <= 0 {
			return 0
		}
		return min(100, part*100/whole)
	},
	"runbook":   func(page string) string { return runbook + page },
	"thousands": thousands,
}

// runbook is where the documents are.
const runbook = "https://github.com/flakelease/allocator/blob/main/docs/"

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// thousands writes n with a comma before each three digits.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
