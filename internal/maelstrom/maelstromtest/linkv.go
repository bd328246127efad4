package maelstromtest

import (
	"encoding/json"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/history"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/maelstrom"
)

// kvBody is a request to lin-kv, or its answer.
type kvBody struct {
	Type      string          `json:"type"`
	MsgID     *int64          `json:"msg_id,omitempty"`
	InReplyTo *int64          `json:"in_reply_to,omitempty"`
	Key       string          `json:"key,omitempty"`
	Value     *string         `json:"value,omitempty"`
	From      *string         `json:"from,omitempty"`
	To        *string         `json:"to,omitempty"`
	Create    bool            `json:"create_if_not_exists,omitempty"`
	Code      *maelstrom.Code `json:"code,omitempty"`
	Text      string          `json:"text,omitempty"`
}

func kvError(code maelstrom.Code, text string) kvBody {
	return kvBody{Type: "error", Code: &code, Text: text}
}

// serveKV carries out a request to lin-kv and sends the answer. c.mu is held.
func (c *Cluster) serveKV(from string, m message) {
	var req kvBody
	if err := json.Unmarshal(m.Body, &req); err != nil || req.MsgID == nil {
		c.t.Errorf("%s sent lin-kv %.200q", from, m.Body)
		return
	}
	answer, shown := kvBody{}, ""
	switch roll := c.rnd.Float64(); {
	case roll < c.faults.Confusion/3:
		answer = kvError(maelstrom.TemporarilyUnavailable, "not now") // definite: nothing is done
	case roll < c.faults.Confusion:
		if roll < c.faults.Confusion*2/3 {
			c.apply(from, req)
		}
		answer = kvError(maelstrom.Crash, "who knows")
		if c.rnd.IntN(2) == 0 {
			answer = kvError(maelstrom.Timeout, "who knows")
		}
	default:
		answer, shown = c.apply(from, req)
	}
	if c.faults.Deaf && req.Type == "cas" {
		c.lost++
		return
	}
	answer.InReplyTo = req.MsgID
	body, err := json.Marshal(answer)
	if err != nil {
		c.t.Errorf("lin-kv: %v", err)
		return
	}
	reply := message{Src: LinKV, Dest: m.Src, Body: body}
	c.carry(reply, func() {
		to := c.members[m.Src]
		if to == nil {
			return
		}
		if to.name == from { // its own answer, and not that of the process before it
			c.confirm(from, shown)
		}
		c.hand(to, reply)
	})
}

// apply does what a request asks for. shown is the value that the answer proves
// to its reader to be stored. c.mu is held.
func (c *Cluster) apply(from string, req kvBody) (answer kvBody, shown string) {
	old, exists := c.kv[req.Key]
	switch {
	case req.Type == "read" && !exists:
		return kvError(maelstrom.KeyDoesNotExist, "no such key"), ""
	case req.Type == "read":
		return kvBody{Type: "read_ok", Value: &old}, old
	case req.Type != "cas" || req.From == nil || req.To == nil:
		c.t.Errorf("%s asked lin-kv for %q", from, req.Type)
		return kvError(maelstrom.NotSupported, req.Type), ""
	case !exists && !req.Create:
		return kvError(maelstrom.KeyDoesNotExist, "no such key"), ""
	case exists && old != *req.From:
		return kvError(maelstrom.PreconditionFailed, "current value is "+old), ""
	}
	c.kv[req.Key] = *req.To
	c.wrote(from, old, *req.To)
	return kvBody{Type: "cas_ok"}, *req.To
}

// wrote records which windows a write changed. c.mu is held.
func (c *Cluster) wrote(from, old, now string) {
	before, err := maelstrom.View(old)
	if err != nil {
		c.t.Errorf("before a write of %s: %v", from, err)
	}
	after, err := maelstrom.View(now)
	if err != nil {
		c.t.Errorf("write of %s: %v", from, err)
	}
	for sid, s := range before.Sids {
		if s.Window.Exists() && !after.Sids[sid].Window.Exists() {
			c.t.Errorf("%s deleted the window of sid %d", from, sid)
		}
	}
	for sid, s := range after.Sids {
		if s.Window.Same(before.Sids[sid].Window) {
			continue
		}
		w := s.Window.Value
		c.history.Writes = append(c.history.Writes, history.Write{
			SID: sid, Rev: s.Window.Rev, Term: w.Term, Base: w.Base, Ceil: w.Ceil,
			Released: w.State == lease.Released,
		})
		if c.owners[w.Instance] == "" {
			c.owners[w.Instance] = from
		}
		if c.owners[w.Instance] != from {
			c.t.Errorf("%s wrote a window as %s, which is %s", from, w.Instance, c.owners[w.Instance])
		}
	}
}

// confirm records the windows of a process that an answer shows to it. c.mu is
// held.
func (c *Cluster) confirm(process, shown string) {
	if shown == "" {
		return
	}
	v, err := maelstrom.View(shown)
	if err != nil {
		c.t.Errorf("answer to %s: %v", process, err)
		return
	}
	for sid, s := range v.Sids {
		w := s.Window.Value
		if w.State != lease.Active || c.owners[w.Instance] != process {
			continue
		}
		g := history.Grant{Process: process, SID: sid, Base: w.Base, Ceil: w.Ceil}
		if !c.granted[g] {
			c.granted[g] = true
			g.At = c.now()
			c.history.Grants = append(c.history.Grants, g)
		}
	}
}

// Writes returns how many writes of windows lin-kv has applied, and the highest
// ceiling of them.
func (c *Cluster) Writes() (n int, highest clock.Millis) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.history.Writes {
		highest = max(highest, w.Ceil)
	}
	return len(c.history.Writes), highest
}
