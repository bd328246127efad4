package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// situation is a row of the table: what happens, and what the caller sees.
type situation struct {
	name    string
	nodes   string // what each node does, divided by |: see newScripted
	options options
	call    call              // the only call; without an op: next
	want    string            // what it ends with: "ids N", or kinds and reasons of errors, divided by |
	most    int               // requests to all nodes together; 0: any number, -1: none
	least   int               // requests to all nodes together
	after   time.Duration     // the call takes no less
	within  time.Duration     // nor more; 0: whole. It tells two behaviors apart, and is no measure of speed.
	not     map[string]string // why the row is not for a language
	secure  bool              // The nodes have TLS.
	do      func(*stage)      // It is in place of call, where more than one is made.
}

// stage is what a situation runs on.
type stage struct {
	ctx      context.Context
	s        situation
	d        *driver
	nodes    []*scripted
	client   string
	scheme   string // URLs begin with it.
	dir      string // Files of the row are in it.
	ca       string // the file of the authority that nodes with TLS have
	problems []string
}

// failf notes what a client did wrong.
func (t *stage) failf(format string, args ...any) {
	t.problems = append(t.problems, fmt.Sprintf(format, args...))
}

// run carries the situation out, and returns what the client did wrong.
func (s situation) run(ctx context.Context, d *driver) []string {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return []string{err.Error()}
	}
	t := &stage{ctx: ctx, s: s, d: d, client: s.name, scheme: "http://", dir: dir}
	defer func() {
		for _, n := range t.nodes {
			n.stop()
		}
		_ = os.RemoveAll(dir)
	}()
	var secure *tls.Config
	if s.secure {
		t.scheme, t.ca = "https://", t.authority("node")
		pair, err := tls.LoadX509KeyPair(dir+"/node/node.pem", dir+"/node/node.key")
		if err != nil {
			return []string{err.Error()}
		}
		secure = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	for i, script := range strings.Split(s.nodes, "|") {
		n, err := newScripted(i+1, script, secure)
		if err != nil {
			return []string{err.Error()}
		}
		t.nodes = append(t.nodes, n)
	}
	if s.do != nil {
		s.do(t)
		return t.problems
	}
	if !t.open() {
		return t.problems
	}
	begun := time.Now()
	a := t.ask(s.call)
	took := time.Since(begun)
	t.expect(s.call, a, s.want)
	t.count(took)
	t.close()
	return t.problems
}

// open makes the client, with all nodes.
func (t *stage) open() bool {
	c := call{Op: "open", Options: t.s.options}
	for _, n := range t.nodes {
		c.Nodes, c.GRPC = append(c.Nodes, t.scheme+n.http), append(c.GRPC, n.rpc)
	}
	a := t.ask(c)
	if a.Error != nil {
		t.failf("open: %s", a)
	}
	return a.Error == nil
}

func (t *stage) close() {
	if a := t.ask(call{Op: "close"}); a.Error != nil {
		t.failf("close: %s", a)
	}
}

// begin begins a call.
func (t *stage) begin(c call) (int, <-chan answer) {
	if c.Op == "" {
		c.Op = "next"
	}
	c.Client = t.client
	id, from, err := t.d.send(t.ctx, c)
	if err != nil {
		t.failf("%s: %v", c.Op, err)
	}
	return id, from
}

// end returns the answer of a call.
func (t *stage) end(from <-chan answer) answer {
	a, err := t.d.wait(t.ctx, from)
	if err != nil {
		t.failf("%v", err)
		return answer{Error: &failure{Kind: "none", Message: err.Error()}}
	}
	return a
}

// ask is begin and end.
func (t *stage) ask(c call) answer {
	_, from := t.begin(c)
	return t.end(from)
}

// String returns the answer for a person.
func (a answer) String() string {
	if f := a.Error; f != nil {
		return fmt.Sprintf("%s: %s", strings.TrimSpace(f.Kind+" "+f.Reason), f.Message)
	}
	if n := len(a.IDs); n > 0 {
		return fmt.Sprintf("ids %d, from %s", n, a.IDs[0])
	}
	return strings.TrimSpace("done " + a.Value + a.Watermark)
}

// expect compares how a call ended with want, which are the answers that are right, divided by |.
func (t *stage) expect(c call, a answer, want string) {
	for w := range strings.SplitSeq(want, "|") {
		if f := a.Error; f != nil && w == strings.TrimSpace(f.Kind+" "+f.Reason) {
			if f.Message == "" {
				t.failf("the error %s has no message", w)
			}
			return
		}
		var n int
		if _, err := fmt.Sscanf(w, "ids %d", &n); err == nil && a.Error == nil {
			if len(a.IDs) != n {
				t.failf("%d IDs came, and not %d", len(a.IDs), n)
			}
			t.checkIDs(c, a.IDs)
			return
		}
	}
	t.failf("the caller saw %q, and not %q", a, want)
}

// checkIDs checks that IDs have the form that was asked for, are above after, and rise.
func (t *stage) checkIDs(c call, ids []string) {
	lengths := map[string]int{"flake": 13, "ulid": 26, "uuid": 36}
	var last int64
	if c.After != "" {
		id, err := anyID(c.After)
		if err != nil {
			t.failf("%v", err)
		}
		last = id.Int64()
	}
	if c.Op == "concurrent" {
		ids = slices.Clone(ids)
		slices.SortFunc(ids, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	}
	for i, text := range ids {
		id, err := anyID(text)
		want := lengths[c.Form]
		switch {
		case err != nil:
			t.failf("ID %d: %q: %v", i, text, err)
			return
		case want != 0 && len(text) != want, want == 0 && (len(text) == 13 || len(text) > 19):
			t.failf("ID %d: %q is not of the form %q", i, text, c.Form)
			return
		case id.Int64() <= last:
			t.failf("ID %d: %q is not above %d", i, text, last)
			return
		}
		last = id.Int64()
	}
}

// count checks the number of requests, and the time. On a busy machine a client gives attempts up whose answers it
// had no time to read: one in the time of an attempt is allowed.
func (t *stage) count(took time.Duration) {
	asked := 0
	for _, n := range t.nodes {
		asked += len(n.requests())
		n.mu.Lock()
		if n.wrote > 64<<20 {
			t.failf("the client read %d bytes of an answer", n.wrote)
		}
		n.mu.Unlock()
	}
	attempt := 2 * time.Second
	if ms := t.s.options.AttemptTimeoutMs; ms > 0 {
		attempt = time.Duration(ms) * time.Millisecond
	}
	switch {
	case t.s.most < 0 && asked > 0:
		t.failf("%d requests were sent, and none was to be", asked)
	case t.s.most > 0 && asked > t.s.most+int(took/attempt):
		t.failf("%d requests were sent in %v, and not at most %d", asked, took, t.s.most)
	}
	if asked < t.s.least {
		t.failf("%d requests were sent, and not at least %d", asked, t.s.least)
	}
	if took < t.s.after || t.s.within > 0 && took > t.s.within {
		t.failf("the call ended after %v, and not between %v and %v", took, t.s.after, t.s.within)
	}
}
