package maelstromtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/history"
	"github.com/flakelease/allocator/internal/maelstrom"
)

// clients is how many clients share the load.
const clients = 10

// ask sends a request to a node and returns at once.
func (c *Cluster) ask(phase, node string, body map[string]any) *request {
	c.mu.Lock()
	c.last++
	id := c.last
	r := &request{node: node, phase: phase, begin: c.now(), init: phase == "init", done: make(chan struct{})}
	if m := c.members[node]; m != nil {
		r.process = m.name
	}
	c.asked[id] = r
	if !r.init {
		c.countsOf(phase, node).Asked++
	}
	c.mu.Unlock()
	body["msg_id"] = id
	raw, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send("", message{Src: fmt.Sprintf("%s%d", clientPrefix, id%clients), Dest: node, Body: raw})
	return r
}

// countsOf returns the counts of a phase and node. c.mu is held.
func (c *Cluster) countsOf(phase, node string) *Counts {
	if c.counts[phase] == nil {
		c.counts[phase] = map[string]*Counts{}
	}
	if c.counts[phase][node] == nil {
		c.counts[phase][node] = &Counts{Reasons: map[string]int{}}
	}
	return c.counts[phase][node]
}

// answered takes an answer to a client. c.mu is held.
func (c *Cluster) answered(m message) {
	var body struct {
		Type      string         `json:"type"`
		InReplyTo *int64         `json:"in_reply_to"`
		ID        *string        `json:"id"`
		Code      maelstrom.Code `json:"code"`
		Text      string         `json:"text"`
		Reason    string         `json:"reason"`
	}
	if err := json.Unmarshal(m.Body, &body); err != nil || body.InReplyTo == nil {
		c.t.Errorf("%s sent %s %.200q: %v", m.Src, m.Dest, m.Body, err)
		return
	}
	r := c.asked[*body.InReplyTo]
	if r == nil || r.node != m.Src {
		c.t.Errorf("%s answered %.200q, which it was not asked", m.Src, m.Body)
		return
	}
	if r.answered {
		c.t.Errorf("%s answered request %d twice", m.Src, *body.InReplyTo)
		return
	}
	r.answered = true
	close(r.done)
	if r.init {
		if body.Type != "init_ok" {
			c.t.Errorf("%s answered init with %.200q", m.Src, m.Body)
		}
		return
	}
	counts := c.countsOf(r.phase, r.node)
	switch {
	case body.Type == "error" && body.Code.Definite():
		counts.Refused++
		counts.Reasons[body.Reason]++
	case body.Type == "error":
		counts.Indefinite++
	case body.Type == "generate_ok" && body.ID != nil:
		id, err := flake.Parse(*body.ID)
		if err != nil {
			c.t.Errorf("%s issued %q: %v", r.process, *body.ID, err)
			return
		}
		counts.OK++
		c.history.Issues = append(c.history.Issues, history.Issue{
			Process: r.process, First: id, Count: 1, Stride: int64(flake.Scalable.Holders()),
			Begin: r.begin, End: c.now(),
		})
	default:
		c.t.Errorf("%s answered generate with %.200q", m.Src, m.Body)
	}
}

// Load asks the nodes for IDs in turn, rate times a second for that long, and
// waits for the answers of those that run. It returns what became of all requests
// of the phase so far, by node; those to nodes killed or paused are unanswered.
func (c *Cluster) Load(phase string, rate int, during time.Duration, nodes ...string) map[string]Counts {
	c.t.Helper()
	total := int(float64(rate) * during.Seconds())
	begin := time.Now()
	var all []*request
	for sent := 0; sent < total; {
		due := min(int(time.Since(begin).Seconds()*float64(rate)), total)
		for ; sent < due; sent++ {
			all = append(all, c.ask(phase, nodes[sent%len(nodes)], map[string]any{"type": "generate"}))
		}
		time.Sleep(time.Millisecond)
	}
	limit := time.After(patience)
	for _, r := range all {
		for done := false; !done && c.able(r); {
			select {
			case <-r.done:
				done = true
			case <-time.After(50 * time.Millisecond): // it may have become unable
			case <-limit:
				c.t.Fatalf("%s: %s did not answer; it logged: %s", phase, r.process, c.log(r.node))
			}
		}
	}
	out := map[string]Counts{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for node, n := range c.counts[phase] {
		n.Unanswered = n.Asked - n.OK - n.Refused - n.Indefinite
		copied := *n
		copied.Reasons = maps.Clone(n.Reasons)
		out[node] = copied
	}
	return out
}

// Check holds the run against I1 to I4, and logs what it consisted of. A run
// with fewer than atLeast IDs has shown nothing and fails.
func (c *Cluster) Check(atLeast int) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.history.Check() {
		c.t.Error(v)
	}
	if n := c.history.IDs(); n < atLeast {
		c.t.Errorf("only %d IDs were issued, want at least %d: the run shows nothing", n, atLeast)
	}
	for _, phase := range slices.Sorted(maps.Keys(c.counts)) {
		for _, node := range slices.Sorted(maps.Keys(c.counts[phase])) {
			n := c.counts[phase][node]
			c.t.Logf("%-12s %s: %d asked, %d IDs, %d refused %v, %d indefinite, %d unanswered",
				phase, node, n.Asked, n.OK, n.Refused, n.Reasons, n.Indefinite, n.Unanswered)
		}
	}
	c.t.Logf("%d IDs, %d grants, %d writes of windows, %d messages lost",
		c.history.IDs(), len(c.history.Grants), len(c.history.Writes), c.lost)
}
