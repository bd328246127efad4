// Package maelstromtest is the other side of Maelstrom's protocol: it starts
// nodes, carries their messages, offers the service lin-kv, asks for IDs as
// clients do, breaks the network, and checks what came of it with package
// history. It stands in for the real Maelstrom, which needs a JVM; what it does
// beyond that one is to cut nodes off from lin-kv, to lose messages on the way
// there, to have lin-kv give indefinite answers, and to kill and pause nodes.
//
// Only tests import it.
package maelstromtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/history"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/maelstrom"
)

// LinKV is the name of the service, and what names of clients begin with.
const (
	LinKV        = "lin-kv"
	clientPrefix = "c"
)

// Process is a node that runs. In and Out are its stdin and stdout.
type Process struct {
	In  io.WriteCloser
	Out io.Reader
	// Kill ends it at once, without a word to it. Pause and Resume stop its time.
	Kill, Pause, Resume func()
	// Stop asks it to end in order, and returns how it did.
	Stop func() error
	// Log returns the end of what it wrote to stderr.
	Log func() string
}

// Config says what a cluster is like.
type Config struct {
	Seed    uint64        // of latencies and losses
	Latency time.Duration // the longest that a message ordinarily takes
	// Start starts the node of that ID.
	Start func(id string) (*Process, error)
}

// Faults are what is wrong with lin-kv and the way there. Shares are of 1.
type Faults struct {
	Loss      float64       // of messages to and from lin-kv
	Late      float64       // of these messages, the share that takes up to LateBy
	LateBy    time.Duration // longer than anybody waits for an answer
	Confusion float64       // of requests, the share answered with an error, most of them applied or not
	Deaf      bool          // writes are carried out and never answered
}

// Counts is what became of requests.
type Counts struct {
	Asked, OK  int
	Refused    int // a definite error
	Indefinite int // an error that is not definite
	Unanswered int
	Reasons    map[string]int // of refusals
}

// Cluster is a run. Its methods fail the test, and are for its goroutine alone
// unless they say otherwise.
type Cluster struct {
	t     testing.TB
	cfg   Config
	began time.Time

	mu      sync.Mutex // guards all below
	rnd     *rand.Rand
	cut     map[[2]string]bool // from, to
	faults  Faults
	members map[string]*member
	starts  map[string]int
	kv      map[string]string
	owners  map[lease.Instance]string // process that wrote windows as that instance
	granted map[history.Grant]bool    // without At
	history history.History
	asked   map[int64]*request
	last    int64 // msg_id of requests
	counts  map[string]map[string]*Counts
	lost    int  // messages
	over    bool // the test has ended: nothing arrives any more
}

// member is a process that is, or was, a node.
type member struct {
	*Process
	name  string // node and start, such as n1#2
	queue chan []byte
	gone  chan struct{}

	paused bool // guarded by Cluster.mu
}

// request is one that a client made.
type request struct {
	node, process, phase string
	begin                clock.Mono
	init                 bool
	done                 chan struct{} // closed by the answer
	answered             bool
}

// New returns a cluster without nodes. Whatever it starts ends with the test.
func New(t testing.TB, cfg Config) *Cluster {
	c := &Cluster{
		t: t, cfg: cfg, began: time.Now(),
		rnd: rand.New(rand.NewPCG(cfg.Seed, 1)),
		cut: map[[2]string]bool{}, members: map[string]*member{}, starts: map[string]int{},
		kv: map[string]string{}, owners: map[lease.Instance]string{}, granted: map[history.Grant]bool{},
		history: history.History{Format: flake.Default},
		asked:   map[int64]*request{}, counts: map[string]map[string]*Counts{},
	}
	t.Cleanup(c.end)
	return c
}

// end stops all nodes, in order where they can.
func (c *Cluster) end() {
	c.Heal()
	c.mu.Lock()
	all := maps.Clone(c.members)
	c.mu.Unlock()
	var ending sync.WaitGroup
	for id, m := range all {
		ending.Go(func() {
			if m.Resume != nil {
				m.Resume()
			}
			if err := m.Process.Stop(); err != nil {
				c.t.Errorf("%s ended with %v; it logged: %s", id, err, c.log(id))
			}
		})
	}
	ending.Wait()
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	for id := range all {
		c.Kill(id)
	}
}

func (c *Cluster) now() clock.Mono { return clock.Mono(time.Since(c.began)) }

// Start starts nodes and waits until each has answered init.
func (c *Cluster) Start(ids ...string) {
	c.t.Helper()
	var inits []*request
	for _, id := range ids {
		p, err := c.cfg.Start(id)
		if err != nil {
			c.t.Fatalf("start %s: %v", id, err)
		}
		c.mu.Lock()
		c.starts[id]++
		m := &member{
			Process: p, name: fmt.Sprintf("%s#%d", id, c.starts[id]),
			queue: make(chan []byte, 1<<16), gone: make(chan struct{}),
		}
		c.members[id] = m
		c.mu.Unlock()
		go c.write(m)
		go c.read(id, m)
	}
	for _, id := range ids {
		inits = append(inits, c.ask("init", id, map[string]any{"type": "init", "node_id": id, "node_ids": ids}))
	}
	for i, r := range inits {
		select {
		case <-r.done:
		case <-time.After(patience):
			c.t.Fatalf("%s did not answer init; it logged: %s", ids[i], c.log(ids[i]))
		}
	}
}

// patience is what a busy machine may take for what ought to be done at once.
const patience = 30 * time.Second

func (c *Cluster) log(id string) string {
	c.mu.Lock()
	m := c.members[id]
	c.mu.Unlock()
	if m == nil || m.Log == nil {
		return "(nothing)"
	}
	return m.Log()
}

// write feeds a node's stdin.
func (c *Cluster) write(m *member) {
	for {
		select {
		case line := <-m.queue:
			if _, err := m.In.Write(line); err != nil {
				return // it is gone; what it should have got is lost
			}
		case <-m.gone:
			return
		}
	}
}

// read takes a node's stdout.
func (c *Cluster) read(id string, m *member) {
	r := bufio.NewReaderSize(m.Out, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var msg message
		if err := json.Unmarshal(line, &msg); err != nil || msg.Src != id || msg.Body == nil {
			c.t.Errorf("%s wrote a line that is no message of its: %.200q", m.name, line)
			continue
		}
		c.send(m.name, msg)
	}
}

// message is a message as the network sees it.
type message struct {
	Src  string          `json:"src"`
	Dest string          `json:"dest"`
	Body json.RawMessage `json:"body"`
}

// send carries a message: it arrives later, in any order, or never. from is the
// process that sent it, if a node did.
func (c *Cluster) send(from string, m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.carry(m, func() {
		switch {
		case m.Dest == LinKV:
			c.serveKV(from, m)
		case strings.HasPrefix(m.Dest, clientPrefix):
			c.answered(m)
		case c.members[m.Dest] != nil:
			c.hand(c.members[m.Dest], m)
		default:
			c.lost++ // to a node that is gone
		}
	})
}

// carry calls arrive after the message's latency, with c.mu held, unless it is
// lost. c.mu is held.
func (c *Cluster) carry(m message, arrive func()) {
	kv := m.Src == LinKV || m.Dest == LinKV
	if kv && c.rnd.Float64() < c.faults.Loss {
		c.lost++
		return
	}
	longest := c.cfg.Latency
	if kv && c.rnd.Float64() < c.faults.Late {
		longest = c.faults.LateBy
	}
	wait := time.Duration(0)
	if longest > 0 {
		wait = time.Duration(c.rnd.Int64N(int64(longest)))
	}
	time.AfterFunc(wait, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.over {
			return
		}
		if c.cut[[2]string{m.Src, m.Dest}] { // where it arrives, as in Maelstrom
			c.lost++
			return
		}
		arrive()
	})
}

// hand gives a line to a node. c.mu is held.
func (c *Cluster) hand(to *member, m message) {
	line, err := json.Marshal(m)
	if err != nil {
		c.t.Errorf("message %v: %v", m, err)
		return
	}
	select {
	case to.queue <- append(line, '\n'):
	default:
		c.lost++ // it has not read for a long time
	}
}

// Cut stops messages between a and b, both ways.
func (c *Cluster) Cut(a, b string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[[2]string{a, b}], c.cut[[2]string{b, a}] = true, true
}

// Heal lets all messages through again, and lin-kv be itself.
func (c *Cluster) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.cut)
	c.faults = Faults{}
}

// Break has those faults happen until Heal.
func (c *Cluster) Break(f Faults) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = f
}

// Kill ends a node at once.
func (c *Cluster) Kill(id string) {
	c.mu.Lock()
	m := c.members[id]
	delete(c.members, id)
	c.mu.Unlock()
	if m != nil {
		m.Process.Kill()
		close(m.gone)
		_ = m.In.Close()
	}
}

// Stop asks a node to end, which can still talk meanwhile.
func (c *Cluster) Stop(id string) {
	c.t.Helper()
	c.mu.Lock()
	m := c.members[id]
	c.mu.Unlock()
	if err := m.Process.Stop(); err != nil {
		c.t.Errorf("%s ended with %v; it logged: %s", id, err, c.log(id))
	}
	c.Kill(id)
}

// Pause stops a node's time, and Resume lets it go on.
func (c *Cluster) Pause(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[id].paused = true
	c.members[id].Process.Pause()
}

// Resume ends a Pause.
func (c *Cluster) Resume(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[id].paused = false
	c.members[id].Process.Resume()
}

// able reports whether who was asked can still answer.
func (c *Cluster) able(r *request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[r.node]
	return m != nil && m.name == r.process && !m.paused
}

// View returns what lin-kv has.
func (c *Cluster) View() lease.View {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, value := range c.kv {
		v, err := maelstrom.View(value)
		if err != nil {
			c.t.Fatal(err)
		}
		return v
	}
	return lease.View{}
}
