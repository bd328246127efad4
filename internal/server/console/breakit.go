package console

import (
	"context"
	"net/http"
	"strings"
)

// Breaker injects faults into a cluster that was started for a demonstration.
type Breaker interface {
	// Broken returns the state of all. It waits for no node.
	Broken() Broken
	// Break does one of the actions to a node, or to etcd.
	Break(ctx context.Context, action, target string) error
}

// Broken is what a Breaker did, and what its client sees.
type Broken struct {
	IDs        int64        `json:"ids"`        // issued to the client
	Duplicates int64        `json:"duplicates"` // This many of IDs had been issued to the client before.
	Rate       int64        `json:"rate"`       // IDs a second
	Etcd       string       `json:"etcd"`       // running, stopped, …
	Nodes      []BrokenNode `json:"nodes"`
}

// BrokenNode is a node of the demonstration.
type BrokenNode struct {
	Name    string `json:"name"`
	State   string `json:"state"`  // The node's process is running, paused, stopping, stopped or starting.
	Faults  string `json:"faults"` // in words; "": none
	Answer  string `json:"answer"` // The node's last answer was OK, a reason, or "no answer".
	Message string `json:"message"`
	IDs     int64  `json:"ids"`
	Rate    int64  `json:"rate"`
	Refused int64  `json:"refused"`
}

// Fault is an action on a node.
type Fault struct{ Action, Label, Help string }

// Faults are the actions on nodes, in the order of the buttons.
var Faults = []Fault{
	{"skew", "Skew by 1 s", "Its clocks jump ahead by 1 s, as on a machine that woke with a wrong time. It has " +
		"to refuse."},
	{"back", "Set back 1 h", "Its wall clock is set back by an hour. The others confirm its old time, and it goes on."},
	{"pause", "Pause", "Its process does not run, as with SIGSTOP. Its lease runs out after 15 s."},
	{"cut", "Cut off etcd", "It cannot reach etcd. It issues until its window ends."},
	{"kill", "Kill", "It stops at once and gives nothing back."},
}

func (c *Console) serveBreak(w http.ResponseWriter, r *http.Request) {
	c.show(w, r, http.StatusOK, "break", brokenView{c.cfg.Break.Broken(), Faults})
}

// brokenView is what the page shows of it.
type brokenView struct {
	Broken
	Faults []Fault
}

// serveBroken serves the state as JSON, or as the parts of the page that show it.
func (c *Console) serveBroken(w http.ResponseWriter, r *http.Request) {
	if state := c.cfg.Break.Broken(); strings.Contains(r.Header.Get("Accept"), "text/html") {
		sendHTML(w, http.StatusOK, c.execute("break", "broken", brokenView{state, Faults}))
	} else {
		sendJSON(w, http.StatusOK, state)
	}
}

func (c *Console) doBreak(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	if err := r.ParseForm(); err != nil {
		c.fail(w, r, http.StatusBadRequest, "the form could not be read")
		return
	}
	if err := c.cfg.Break.Break(r.Context(), r.PostForm.Get("action"), r.PostForm.Get("target")); err != nil {
		c.fail(w, r, http.StatusConflict, err.Error())
		return
	}
	if wantsJSON(r) {
		sendJSON(w, http.StatusOK, c.cfg.Break.Broken())
		return
	}
	http.Redirect(w, r, Path+"break", http.StatusSeeOther)
}
