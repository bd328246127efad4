package main

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// one asks for one ID, and returns it; "" if there was none.
func (t *stage) one(c call) string {
	a := t.ask(c)
	t.expect(c, a, "ids 1")
	if len(a.IDs) != 1 {
		return ""
	}
	return a.IDs[0]
}

// fails checks how a call fails, and how soon.
func (t *stage) fails(c call, want string) {
	begun := time.Now()
	t.expect(c, t.ask(c), want)
	if took := time.Since(begun); took > soon {
		t.failf("the call ended after %v, and not within %v", took, soon)
	}
}

// opened is a play of a client that is open before it, and is closed after it.
func opened(play func(*stage)) func(*stage) {
	return func(t *stage) {
		if t.open() {
			play(t)
			t.close()
		}
	}
}

func inOrder(t *stage) {
	last := ""
	for range 20 {
		last = t.one(call{After: last})
	}
	before := t.one(call{})
	for range 20 {
		id := t.one(call{})
		if !above(id, before) {
			t.failf("%s came after %s", id, before)
		}
		before = id
	}
}

// above compares two IDs.
func above(id, than string) bool {
	a, err := anyID(id)
	b, err2 := anyID(than)
	return err == nil && err2 == nil && a > b
}

// orderAtAnother: each node in turn refuses, and only who sends its last ID gets IDs in order, since the nodes do not
// know of each other's.
func orderAtAnother(t *stage) {
	last := "0"
	for i := range 6 {
		t.nodes[i%2].play("refuse DRAINING 20")
		t.nodes[1-i%2].play("serve")
		for range 1 + i*10 {
			id := t.one(call{})
			if !above(id, last) {
				t.failf("%s came after %s", id, last)
			}
			last = id
		}
	}
}

func namesDelay(t *stage) {
	a := t.ask(call{})
	t.expect(call{}, a, "refused WINDOW_EXHAUSTED")
	if a.Error != nil && a.Error.RetryAfterMs != 200 {
		t.failf("the error says to come again after %d ms, and the node said 200", a.Error.RetryAfterMs)
	}
}

func nothingListens(t *stage) {
	defer t.vacate()()
	if t.open() {
		t.fails(call{}, "unavailable|timeout")
		t.fails(call{TimeoutMs: 300}, "timeout")
		t.close()
	}
	t.nodes = nil // stopped
}

// vacate has nothing listen at the addresses of the first node, until the function that it returns is called.
func (t *stage) vacate() (release func()) {
	release, err := t.nodes[0].vacate()
	if err != nil {
		t.failf("%v", err)
	}
	return release
}

func oneListens(t *stage) {
	defer t.vacate()()
	if t.open() {
		t.one(call{})
		t.one(call{})
		t.close()
	}
	t.nodes = t.nodes[1:]
}

// restart lets a node begin again, without what it has issued.
func (t *stage) restart(n *scripted) {
	if err := n.restart(); err != nil {
		t.failf("%v", err)
	}
}

func restarts(t *stage) {
	before := t.one(call{})
	for range 3 {
		t.restart(t.nodes[0])
		id := t.one(call{})
		if !above(id, before) {
			t.failf("%s came after %s: the node has forgotten, and the client sends its last ID", id, before)
		}
		before = id
	}
}

// asked waits until the node has had a number of requests.
func (t *stage) asked(n *scripted, count int) {
	for len(n.requests()) < count {
		select {
		case <-t.ctx.Done():
			t.failf("the node got %d requests, and not %d", len(n.requests()), count)
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func restartsDuring(t *stage) {
	_, from := t.begin(call{})
	t.asked(t.nodes[0], 1)
	t.nodes[0].play("serve")
	t.restart(t.nodes[0])
	t.expect(call{}, t.end(from), "ids 1")
}

func otherLayout(t *stage) {
	t.one(call{})
	for _, n := range t.nodes {
		n.play("layout")
	}
	t.fails(call{TimeoutMs: 2000}, "protocol")
}

func otherSpace(t *stage) {
	t.one(call{})
	for _, n := range t.nodes { // Etcd's data were lost, and the space goes on in a new etcd.
		n.play("unnamed")
	}
	t.one(call{})
	for _, n := range t.nodes {
		n.play("space")
	}
	c := call{TimeoutMs: 2000}
	a := t.ask(c)
	t.expect(c, a, "protocol")
	if a.Error != nil && (!strings.Contains(a.Error.Message, "000b") || !strings.Contains(a.Error.Message, "000a")) {
		t.failf("%s: it does not name both spaces", a)
	}
	t.fails(call{Op: "watermark", TimeoutMs: 600}, "protocol")
}

// twoSpaces: all IDs are of one of the two, whichever served first. The other is asked when that one refuses.
func twoSpaces(t *stage) {
	sid := func(text string) int {
		id, _ := anyID(text) // It was checked.
		return int(flake.Default.SID(id))
	}
	first := sid(t.one(call{}))
	own, other := t.nodes[(first+1)%2], t.nodes[first%2]
	own.play("refuse DRAINING 20")
	before := len(other.requests())
	_, from := t.begin(call{})
	t.asked(other, before+1)
	own.play([]string{"serve", "space"}[first-1])
	a := t.end(from)
	t.expect(call{}, a, "ids 1")
	if len(a.IDs) == 1 && sid(a.IDs[0]) != first {
		t.failf("%s came after one of the other space", a)
	}
}

// twice: the second answer is in the connection when the next request is sent, and must not be taken for its answer.
func twice(t *stage) {
	seen := map[string]bool{}
	for range 6 {
		id := t.one(call{})
		if seen[id] {
			t.failf("%s was given twice", id)
		}
		seen[id] = true
	}
}

func cancels(t *stage) {
	id, from := t.begin(call{})
	t.asked(t.nodes[0], 1)
	t.ask(call{Op: "cancel", Call: id})
	t.expect(call{}, t.end(from), "canceled")
	t.one(call{})
}

func cancelsOne(t *stage) {
	_, first := t.begin(call{})
	t.asked(t.nodes[0], 1)
	_, second := t.begin(call{})
	id, third := t.begin(call{})
	_, fourth := t.begin(call{})
	t.ask(call{Op: "cancel", Call: id})
	t.expect(call{}, t.end(third), "canceled|ids 1") // It may have been served first.
	var ids []string
	for _, from := range []<-chan answer{first, second, fourth} {
		a := t.end(from)
		t.expect(call{}, a, "ids 1")
		ids = append(ids, a.IDs...)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 3 {
		t.failf("not all of %s are distinct", strings.Join(ids, " "))
	}
}

func closes(t *stage) {
	if !t.open() {
		return
	}
	t.one(call{})
	t.close()
	t.fails(call{}, "closed")
	t.fails(call{Op: "nextMany", Count: 3}, "closed")
	t.close() // again
}

func closesDuring(t *stage) {
	if !t.open() {
		return
	}
	_, from := t.begin(call{})
	t.asked(t.nodes[0], 1)
	t.close()
	t.expect(call{}, t.end(from), "closed|canceled|unavailable|timeout")
}

func watermark(t *stage) {
	id := t.one(call{})
	a := t.ask(call{Op: "watermark"})
	if a.Error != nil || a.Watermark == "" {
		t.failf("watermark: %s", a)
	}
	first := a.Watermark
	a = t.ask(call{Op: "waitFor", After: id})
	if a.Error != nil || !above(a.Watermark, id) || !above(a.Watermark, first) {
		t.failf("the watermark was %s, the ID is %s, and waitFor ended with %s", first, id, a)
	}
}

// vectors compares the codecs with the answers that all implementations know.
func vectors(t *stage) {
	text, err := readVectors()
	var v struct {
		Good []struct {
			Int, Base32, Time string
			SID               int
		} `json:"flake_scalable"`
		Bad []struct{ Input string } `json:"flake_invalid_strings"`
	}
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil || len(v.Good) == 0 || len(v.Bad) == 0 {
		t.failf("the vectors: %d good, %d bad, %v", len(v.Good), len(v.Bad), err)
		return
	}
	answers := func(op, text, want string) {
		a := t.ask(call{Op: op, Text: text})
		if got := strings.Join(a.IDs, " ") + a.Value; a.Error != nil || got != want {
			t.failf("%s of %q: %s, and not %s", op, text, a, want)
		}
	}
	for _, g := range v.Good {
		answers("parse", g.Base32, g.Int)
		answers("parse", strings.ToLower(g.Base32), g.Int)
		answers("parse", g.Int, g.Int)
		answers("timeOf", g.Base32, g.Time)
		answers("sidOf", g.Int, strconv.Itoa(g.SID))
		id, err := flake.Parse(g.Base32)
		if err != nil {
			t.failf("%v", err)
			continue
		}
		if w, err := ulid.FromFlake(flake.Default, id, 1<<60+12345); err == nil {
			answers("parse", w.String(), g.Int)
			answers("parse", w.UUID(), g.Int)
		}
		first, err := flake.Default.Min(flake.Default.UnixMilli(id))
		a := t.ask(call{Op: "firstOf", Time: g.Time})
		if want := strconv.FormatInt(first.Int64(), 10); err != nil || len(a.IDs) != 1 || a.IDs[0] != want {
			t.failf("firstOf %s: %s, and not %s (%v)", g.Time, a, want, err)
		}
	}
	for _, b := range v.Bad {
		t.expect(call{}, t.ask(call{Op: "parse", Text: b.Input}), "invalid")
	}
	t.expect(call{}, t.ask(call{Op: "timeOf", Text: "b2f6a5a0-5b1e-4c3d-9f00-0123456789ab"}), "invalid") // a UUIDv4
}

// readVectors finds the file from the root of the repository and from this directory.
func readVectors() ([]byte, error) {
	const name = "testdata/vectors/vectors.json"
	text, err := os.ReadFile(name)
	if err != nil {
		text, err = os.ReadFile("../../" + name)
	}
	return text, err
}
