package main

import "time"

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

// holdsNothing: a client sends nothing before it is asked, since what it is in may be copied until then.
func holdsNothing(t *stage) {
	time.Sleep(200 * time.Millisecond) // for a client that does
	if n := len(t.nodes[0].requests()); n > 0 {
		t.failf("%d requests were sent before the first call", n)
	}
	t.nodes[0].play("hang")
	t.expect(call{}, t.ask(call{Op: "nextNow"}), "empty")
	if n := len(t.nodes[0].requests()); n > 1 {
		t.failf("%d requests were sent for one call", n)
	}
}

func holds(t *stage) {
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
}

// holdsTexts takes held IDs in the form that the client holds.
func holdsTexts(t *stage) {
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
}

// drops checks that no held ID is given once a clock has moved, as op says.
func drops(move call) func(*stage) {
	return opened(func(t *stage) {
		t.fill()
		t.nodes[0].play("hang")
		a := t.ask(move)
		if a.Error != nil && a.Error.Kind == "unsupported" { // Package client reads real clocks.
			time.Sleep(time.Duration(move.Ms) * time.Millisecond)
		} else if a.Error != nil {
			t.failf("%s: %s", move.Op, a)
		}
		t.expect(call{}, t.ask(call{Op: "nextNow"}), "empty")
		t.nodes[0].play("serve")
		t.nodes[0].hangUp()
		t.one(call{})
	})
}

func forks(t *stage) {
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
}
