package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/certs"
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

func inOrder(t *stage) {
	if !t.open() {
		return
	}
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
	t.close()
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
	if !t.open() {
		return
	}
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
	t.close()
}

func namesDelay(t *stage) {
	if !t.open() {
		return
	}
	a := t.ask(call{})
	t.expect(call{}, a, "refused WINDOW_EXHAUSTED")
	if a.Error != nil && a.Error.RetryAfterMs != 200 {
		t.failf("the error says to come again after %d ms, and the node said 200", a.Error.RetryAfterMs)
	}
	t.close()
}

func nothingListens(t *stage) {
	defer t.vacate()()
	if t.open() {
		t.fails(call{}, "unavailable|timeout")
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
	if !t.open() {
		return
	}
	before := t.one(call{})
	for range 3 {
		t.restart(t.nodes[0])
		id := t.one(call{})
		if !above(id, before) {
			t.failf("%s came after %s: the node has forgotten, and the client sends its last ID", id, before)
		}
		before = id
	}
	t.close()
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
	if !t.open() {
		return
	}
	_, from := t.begin(call{})
	t.asked(t.nodes[0], 1)
	t.nodes[0].play("serve")
	t.restart(t.nodes[0])
	t.expect(call{}, t.end(from), "ids 1")
	t.close()
}

func otherLayout(t *stage) {
	if !t.open() {
		return
	}
	t.one(call{})
	for _, n := range t.nodes {
		n.play("layout")
	}
	t.fails(call{}, "protocol")
	t.close()
}

// twice: the second answer is in the connection when the next request is sent, and must not be taken for its answer.
func twice(t *stage) {
	if !t.open() {
		return
	}
	seen := map[string]bool{}
	for range 6 {
		id := t.one(call{})
		if seen[id] {
			t.failf("%s was given twice", id)
		}
		seen[id] = true
	}
	t.close()
}

// refused checks that no client is made.
func (t *stage) refused(what string, c call) {
	c.Op = "open"
	a := t.ask(c)
	if a.Error == nil {
		t.close()
	}
	if a.Error == nil || a.Error.Kind != "invalid" || a.Error.Message == "" {
		t.failf("%s: %q, and not invalid with a message", what, a)
	}
}

func wrongNodes(t *stage) {
	good, rpc := "http://"+t.nodes[0].http, t.nodes[0].rpc
	for _, w := range []struct{ what, url, rpc string }{
		{"no URL", "allocator", "allocator"},
		{"empty", "", ""},
		{"no scheme", "127.0.0.1:8080", "127.0.0.1:"},
		{"no host", "http://", ":9000"},
		{"another scheme", "ftp://127.0.0.1:8080", "127.0.0.1:port"},
		{"no port of TCP", "http://127.0.0.1:99999", "127.0.0.1:99999"},
	} {
		t.refused(w.what, call{Nodes: []string{w.url}, GRPC: []string{w.rpc}})
		t.refused(w.what+" after a node", call{Nodes: []string{good, w.url}, GRPC: []string{rpc, w.rpc}})
	}
	t.refused("no nodes", call{})
}

func wrongOptions(t *stage) {
	c := call{Nodes: []string{"http://" + t.nodes[0].http}, GRPC: []string{t.nodes[0].rpc}}
	for what, o := range map[string]options{
		"a negative time for attempts": {AttemptTimeoutMs: -1},
		"a negative age":               {Prefetch: 64, PrefetchMaxAgeMs: -1},
		"no token file":                {TokenFile: "/nonexistent/token"},
		"no file of an authority":      {CAFile: "/nonexistent/ca.pem"},
	} {
		c.Options = o
		t.refused(what, c)
	}
}

// file writes a file into the directory of the row, in one step.
func (t *stage) file(name, text string, mode os.FileMode) string {
	path := filepath.Join(t.dir, name)
	err := os.WriteFile(path+".new", []byte(text), mode)
	err = errors.Join(err, os.Chmod(path+".new", mode), os.Rename(path+".new", path))
	if err != nil {
		t.failf("%v", err)
	}
	return path
}

// authority makes an authority of its own, with a certificate for 127.0.0.1 and each name, and returns its file.
func (t *stage) authority(name string) string {
	dir := filepath.Join(t.dir, name)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		_, err = certs.Authority{Dir: dir, Now: time.Now()}.Sign([]string{name}, time.Hour, false)
	}
	if err != nil {
		t.failf("%v", err)
	}
	return filepath.Join(dir, "ca.pem")
}

func openToken(t *stage) {
	c := call{Nodes: []string{"http://" + t.nodes[0].http}, GRPC: []string{t.nodes[0].rpc}}
	c.Options.TokenFile = t.file("token", "secret\n", 0o644)
	t.refused("a token file of mode 0644", c)
}

func tokens(t *stage) {
	t.s.options.TokenFile = t.file("token", "first\n", 0o600)
	if !t.open() {
		return
	}
	sent := func(want string) {
		t.one(call{})
		if r := t.nodes[0].requests(); len(r) == 0 || r[len(r)-1].token != want {
			t.failf("the node was not shown the token %s: %+v", want, r)
		}
	}
	sent("first")
	sent("first")
	t.file("token", "second-one\n", 0o600)
	t.nodes[0].hangUp() // A stream shows its token when it begins.
	sent("second-one")
	t.close()
}

func trusted(t *stage) {
	t.s.options.CAFile = t.ca
	if t.open() && t.one(call{}) != "" {
		t.one(call{})
		t.close()
	}
}

func untrusted(t *stage) {
	t.s.options.CAFile = t.authority("other")
	if t.open() {
		t.fails(call{}, "unavailable|timeout")
		t.close()
	}
	if n := len(t.nodes[0].requests()); n > 0 {
		t.failf("%d requests went to a server that nobody vouches for", n)
	}
}

func plaintext(t *stage) {
	t.scheme = "http://"
	if t.open() {
		t.fails(call{}, "unavailable|timeout|protocol")
		t.close()
	}
}

func noTLS(t *stage) {
	t.scheme, t.s.options.CAFile = "https://", t.authority("other")
	if t.open() {
		t.fails(call{}, "unavailable|timeout")
		t.close()
	}
}

// fill calls next until an ID is held, and returns all IDs that came.
func (t *stage) fill() (ids []string) {
	for t.ctx.Err() == nil {
		ids = append(ids, t.one(call{}))
		if a := t.ask(call{Op: "nextNow"}); a.Error == nil {
			return append(ids, a.IDs...)
		} else if a.Error.Kind != "empty" {
			t.failf("nextNow: %s", a)
			return ids
		}
	}
	t.failf("no ID was ever held")
	return ids
}

func holds(t *stage) {
	if !t.open() {
		return
	}
	ids := t.fill()
	for range 300 {
		a := t.ask(call{Op: "nextNow"})
		if a.Error != nil && a.Error.Kind == "empty" {
			a = t.ask(call{})
		}
		t.expect(call{}, a, "ids 1")
		ids = append(ids, a.IDs...)
	}
	for i := 1; i < len(ids); i++ {
		if !above(ids[i], ids[i-1]) {
			t.failf("%s was given after %s", ids[i], ids[i-1])
			break
		}
	}
	asked := 0
	for _, r := range t.nodes[0].requests() {
		asked += min(r.count, 1)
	}
	if asked > len(ids)/2 {
		t.failf("%d requests for %d IDs: none was held", asked, len(ids))
	}
	t.close()
}

// holdsTexts takes held IDs in the form that the client holds.
func holdsTexts(t *stage) {
	if !t.open() {
		return
	}
	form := t.s.options.PrefetchForm
	before := ""
	for range 10 {
		c := call{Op: "nextNow", Form: form}
		a := t.ask(c)
		if a.Error != nil && a.Error.Kind == "empty" { // nothing was fetched yet
			c.Op = "next"
			a = t.ask(c)
		}
		t.expect(c, a, "ids 1")
		if len(a.IDs) != 1 || before != "" && !above(a.IDs[0], before) {
			t.failf("%s came after %s", a, before)
			return
		}
		before = a.IDs[0]
	}
	t.close()
}

func ages(t *stage) {
	if !t.open() {
		return
	}
	t.fill()
	t.nodes[0].play("hang")
	time.Sleep(time.Duration(t.s.options.PrefetchMaxAgeMs+200) * time.Millisecond) // this is what the row is about
	t.expect(call{}, t.ask(call{Op: "nextNow"}), "empty")
	t.nodes[0].play("serve")
	t.nodes[0].hangUp()
	t.one(call{})
	t.close()
}

func leaps(t *stage) {
	if !t.open() {
		return
	}
	t.fill()
	t.nodes[0].play("hang")
	if a := t.ask(call{Op: "leap", WallMs: 3_600_000}); a.Error != nil {
		t.failf("leap: %s", a)
	}
	t.expect(call{}, t.ask(call{Op: "nextNow"}), "empty")
	t.nodes[0].play("serve")
	t.nodes[0].hangUp()
	t.one(call{})
	t.close()
}

func forks(t *stage) {
	if !t.open() {
		return
	}
	// What a child does to the connections that it has from its parent is not to reach those of the parent: the other
	// client gives no attempt up, so it would see that.
	other := &stage{ctx: t.ctx, d: t.d, nodes: t.nodes, scheme: t.scheme, client: t.client + ", beside"}
	other.s.options = options{TimeoutMs: 10_000, AttemptTimeoutMs: 60_000}
	if !other.open() {
		t.failf("%q", other.problems)
		return
	}
	defer func() { t.problems = append(t.problems, other.problems...) }()
	seen := map[string]bool{other.one(call{}): true}
	for _, id := range t.fill() {
		seen[id] = true
	}
	a := t.ask(call{Op: "fork", Count: 3})
	id := other.one(call{})
	if seen[id] {
		t.failf("%s was given twice", id)
	}
	seen[id] = true
	other.close()
	if a.Error != nil || len(a.IDs) < 6 {
		t.failf("fork: %s", a)
	}
	for _, id := range a.IDs {
		if seen[id] {
			t.failf("%s was given twice", id)
		}
		seen[id] = true
	}
	t.close()
}

func cancels(t *stage) {
	if !t.open() {
		return
	}
	id, from := t.begin(call{})
	t.asked(t.nodes[0], 1)
	t.ask(call{Op: "cancel", Call: id})
	t.expect(call{}, t.end(from), "canceled")
	t.one(call{})
	t.close()
}

func cancelsOne(t *stage) {
	if !t.open() {
		return
	}
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
	t.close()
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
	if !t.open() {
		return
	}
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
	t.close()
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
		if a := t.ask(call{Op: "parse", Text: b.Input}); a.Error == nil || a.Error.Kind != "invalid" {
			t.failf("parse of %q: %s, and not invalid", b.Input, a)
		}
	}
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
