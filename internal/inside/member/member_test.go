package member

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func peer(host string) string   { return "https://" + host + ":2380" }
func client(host string) string { return "https://" + host + ":2379" }

// voter is a member that has started.
func voter(id uint64, host string) Member {
	return Member{ID: id, Name: host, Peers: []string{peer(host)}, Clients: []string{client(host)}}
}

// begun is one with which a cluster began, and that has not started.
func begun(id uint64, host string) Member {
	return Member{ID: id, Name: host, Peers: []string{peer(host)}}
}

func learner(id uint64, host string) Member {
	return Member{ID: id, Peers: []string{peer(host)}, Learner: true}
}

func runs(cluster uint64, list ...Member) Answer { return Answer{Cluster: cluster, Members: list} }

func waits(host string, change ...func(*Waiting)) Answer {
	w := &Waiting{Host: host, Node: "node-" + host, Process: "process-" + host, Join: []string{"a", "b", "c"}}
	for _, f := range change {
		f(w)
	}
	return Answer{Waiting: w}
}

// ready waits and has written that it begins the cluster.
func ready(host string) Answer { return waits(host, func(w *Waiting) { w.Intends = true }) }

// fresh waits with data that a restore prepared.
func fresh(host string, change ...func(*Waiting)) Answer {
	return waits(host, append([]func(*Waiting){func(w *Waiting) { w.Token = "restored-1" }}, change...)...)
}

// ahead waits with a clock that was ahead by so much when the answer arrived.
func ahead(host string, by time.Duration) Answer {
	a := waits(host)
	a.Skew = by
	return a
}

// The cases are those that PD's join lists, and the inputs that no member may begin with.
func TestDecide(t *testing.T) {
	down := Answer{Err: errors.New("connection refused")}
	abc := []Member{voter(1, "a"), voter(2, "b"), voter(3, "c")}
	had := func(change ...func(*Data)) *Data {
		d := &Data{Host: "c", Peer: peer("c"), Cluster: 7, ID: 3, Version: "3.7.3"}
		for _, f := range change {
			f(d)
		}
		return d
	}
	for _, tc := range []struct {
		name   string
		data   *Data
		a, b   Answer
		ready  bool   // It has written that it begins the cluster.
		before Answer // It is of the address that Elsewhere returns.
		want   Action
		reason Reason
		says   string
	}{
		// Without data.
		{name: "first start, all wait", a: waits("a"), b: waits("b"), want: Intend},
		{name: "first start, the others intend", a: ready("a"), b: ready("b"), want: Intend},
		{name: "first start, one does not intend yet", a: waits("a"), b: ready("b"), ready: true, want: Wait, says: "a to see that no member has data"},
		{name: "first start, all intend", a: ready("a"), b: ready("b"), ready: true, want: Begin},
		{name: "first start, all intended and one is silent", a: ready("a"), b: down, ready: true, want: Wait, says: "b to answer"},
		{name: "first start, one has not come", a: waits("a"), b: down, want: Wait, says: "b to answer (connection refused)"},
		{name: "first start, nobody has come", a: Answer{}, b: Answer{}, want: Wait, says: "a to answer, b to answer"},
		{name: "first start, one began already", a: runs(7, begun(1, "a"), begun(2, "b"), begun(3, "c")), b: ready("b"), ready: true, want: Begin},
		{name: "first start, one began, and one has lost its data since", a: runs(7, begun(1, "a"), begun(2, "b"), begun(3, "c")), b: waits("b"), ready: true, want: Begin},
		{name: "first start, one began, and this lost its data since", a: runs(7, begun(1, "a"), begun(2, "b"), begun(3, "c")), b: ready("b"), reason: Lost},
		{name: "first start, both run", a: runs(7, voter(1, "a"), voter(2, "b"), begun(3, "c")),
			b: runs(7, voter(1, "a"), voter(2, "b"), begun(3, "c")), ready: true, want: Begin},
		{name: "another was restored", a: runs(9, voter(1, "a"), begun(2, "b"), begun(3, "c")), b: waits("b"), reason: Lost,
			says: "cluster 9 did not begin from etcd.join of c"},
		{name: "the others were restored, and wait", a: fresh("a"), b: fresh("b"), reason: Lost, says: "a waits with a restored snapshot"},
		{name: "another was restored, and waits", a: fresh("a"), b: waits("b"), reason: Lost, says: "restore\" here with the same"},
		{name: "data lost", a: runs(7, abc...), b: runs(7, abc...), reason: Lost, says: "allocator etcd replace c"},
		{name: "data lost, one answers", a: runs(7, abc...), b: down, reason: Lost},
		{name: "data lost, nobody answers", a: down, b: down, want: Wait},
		{name: "data lost, one waits without data too", a: waits("a"), b: down, want: Wait},
		{name: "new", a: runs(7, abc[:2]...), b: runs(7, abc[:2]...), want: Add},
		{name: "removed, and comes back empty", a: runs(7, abc[:2]...), b: down, want: Add},
		{name: "two join at once", a: runs(7, voter(1, "a"), voter(2, "b"), learner(9, "d")), b: down, want: Wait, says: "one at a time"},
		{name: "added, starts", a: runs(7, voter(1, "a"), voter(2, "b"), learner(9, "c")), b: down, want: Join},
		{name: "a vote, and no name yet", a: runs(7, voter(1, "a"), voter(2, "b"), Member{ID: 9, Peers: []string{peer("c")}}), b: down, reason: Lost},
		{name: "wrong list", a: waits("a", func(w *Waiting) { w.Join = []string{"a", "b"} }), b: waits("b"), reason: OtherList, says: "etcd.join=a,b"},
		{name: "began with another list", a: runs(7, begun(1, "a"), begun(3, "c")), b: down, reason: OtherList},
		{name: "equal names", a: waits("a"), b: waits("b", func(w *Waiting) { w.Node = "node-a" }), reason: SameName, says: "a and b have the same node.name"},
		{name: "own name", a: waits("a", func(w *Waiting) { w.Node = "node-c" }), b: waits("b"), reason: SameName},
		{name: "one machine twice", a: waits("a"), b: waits("a"), reason: SameHost, says: "b answers as a"},
		{name: "this machine twice", a: waits("a"), b: waits("b", func(w *Waiting) { w.Process = "process-c" }), reason: SameHost},
		{name: "clock ahead", a: ahead("a", 2*time.Hour), b: waits("b"), reason: Clocks, says: "2h0m0s"},
		{name: "clock behind", a: ahead("a", -MaxSkew-1), b: waits("b"), reason: Clocks},
		{name: "clock two minutes ahead", a: ahead("a", 2*time.Minute), b: waits("b"), reason: Clocks},
		{name: "clock at the limit", a: ahead("a", -MaxSkew), b: waits("b"), want: Intend},
		{name: "two clusters", a: runs(7, abc...), b: runs(8, abc...), reason: OtherCluster},
		// With data.
		{name: "starts again", data: had(), a: runs(7, abc...), b: runs(7, abc...), want: Start},
		{name: "starts again, one list is behind", data: had(), a: runs(7, abc[:2]...), b: runs(7, abc...), want: Start},
		{name: "starts again, the other list is behind", data: had(), a: runs(7, abc...), b: runs(7, abc[:2]...), want: Start},
		{name: "all start again", data: had(), a: down, b: down, want: Start},
		{name: "crashed at the first start", data: had(func(d *Data) { d.Cluster, d.ID = 0, 0 }),
			a: runs(7, begun(1, "a"), begun(2, "b"), begun(3, "c")), b: down, want: Start},
		{name: "removed, and comes back with data", data: had(), a: runs(7, abc[:2]...), b: down, reason: Removed, says: "move the directory"},
		{name: "replaced under its address", data: had(), a: runs(7, voter(1, "a"), voter(2, "b"), learner(9, "c")), b: down, reason: Removed},
		{name: "of another cluster", data: had(func(d *Data) { d.Cluster = 6 }), a: runs(7, abc...), b: down, reason: OtherCluster, says: "is of cluster 6"},
		{name: "changed address", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }),
			a: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "old")), b: down, want: Move},
		{name: "changed address, while another joins", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }),
			a: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "old"), Member{ID: 9, Name: "d", Peers: []string{peer("d")},
				Clients: []string{client("d")}, Learner: true}), b: down, want: Move},
		{name: "changed address after a crash at the first start", data: had(func(d *Data) { *d = Data{Host: "old", Peer: peer("old")} }),
			a: runs(7, voter(1, "a"), voter(2, "b"), begun(3, "old")), b: down, want: Move},
		{name: "a copy, and the member still runs", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }),
			a: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "old")), b: down,
			before: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "old")), reason: Copied, says: "https://old:2380 still runs"},
		{name: "a copy, and only the member answers", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }), a: down, b: down,
			before: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "old")), reason: Copied},
		{name: "a copy from before the member answered", data: had(func(d *Data) { *d = Data{Host: "old", Peer: peer("old")} }),
			a: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "old")), b: down,
			before: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "old")), reason: Copied},
		{name: "removed, and another member has its old address", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }),
			a: runs(7, voter(1, "a"), voter(2, "b"), voter(9, "old")), b: down,
			before: runs(7, voter(1, "a"), voter(2, "b"), voter(9, "old")), reason: Removed},
		{name: "changed address, and another cluster has the old one", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }),
			a: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "old")), b: down, before: runs(8, voter(1, "old")), want: Move},
		{name: "changed address, and another member has the old one", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }),
			a: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "c"), voter(9, "old")), b: down,
			before: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "c"), voter(9, "old")), want: Start},
		{name: "left behind by a member that moved", data: had(), a: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "new")), b: down,
			before: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "new")), reason: Copied, says: "https://new:2380 still runs"},
		{name: "left behind, by one list", data: had(), a: runs(7, abc...), b: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "new")),
			before: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "new")), reason: Copied},
		{name: "left behind, and nobody is there", data: had(), a: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "new")), b: down,
			before: down, want: Start},
		{name: "came back to its address, and one list is behind", data: had(), a: runs(7, append(abc[:3:3], voter(9, "new"))...),
			b: runs(7, voter(1, "a"), voter(2, "b"), voter(3, "new")), before: runs(7, voter(9, "new")), want: Start},
		{name: "changed address, nobody answers", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }), a: down, b: down, want: Start},
		{name: "changed address, known already", data: had(func(d *Data) { d.Host, d.Peer = "old", peer("old") }), a: runs(7, abc...), b: down, want: Start},
	} {
		t.Run(tc.name, func(t *testing.T) {
			own := Own{Host: "c", Node: "node-c", Process: "process-c", Join: []string{"a", "b", "c"}, Peer: peer("c"), Founds: 7, Intends: tc.ready, Before: tc.before}
			step, err := Decide(own, tc.data, map[string]Answer{"a": tc.a, "b": tc.b})
			var refusal *Refusal
			errors.As(err, &refusal)
			switch {
			case tc.reason == "" && err != nil, tc.reason != "" && (refusal == nil || refusal.Reason != tc.reason), step.Action != tc.want:
				t.Fatalf("got %+v, %v; want %q, %q", step, err, tc.want, tc.reason)
			case err != nil && !strings.Contains(err.Error(), tc.says), err == nil && !strings.Contains(step.Why, tc.says):
				t.Errorf("says %q, %v; want %q", step.Why, err, tc.says)
			}
			if step.Action == Move && (step.ID != 3 || !slices.Contains(step.Clients, client("a")) || slices.Contains(step.Clients, client("d"))) {
				t.Errorf("moves member %d by %v", step.ID, step.Clients)
			}
			if step.Action == Join && step.Initial != "a="+peer("a")+",b="+peer("b")+",c="+peer("c") {
				t.Errorf("starts with %s", step.Initial)
			}
		})
	}
}

// Restored data begin a cluster only with all of its members, and only if this one never started in it: a
// member that had, and lost its data, would forget for what it voted.
func TestDecideRestored(t *testing.T) {
	down := Answer{Err: errors.New("connection refused")}
	old := runs(7, voter(1, "a"), voter(2, "b"), voter(3, "c"))
	begins := runs(9, begun(21, "a"), begun(22, "b"), begun(23, "c"))
	without := runs(9, voter(21, "a"), voter(22, "b"), begun(23, "c"))
	with := runs(9, voter(21, "a"), voter(22, "b"), voter(23, "c"))
	joins := []string{"a", "b", "c"}
	for _, tc := range []struct {
		name   string
		join   []string
		a, b   Answer
		want   Action
		reason Reason
		says   string
	}{
		{name: "all are restored, and wait", join: joins, a: fresh("a"), b: fresh("b"), want: Begin},
		{name: "one has begun", join: joins, a: begins, b: fresh("b"), want: Begin},
		{name: "the others have begun", join: joins, a: without, b: without, want: Begin},
		{name: "one is silent", join: joins, a: fresh("a"), b: down, want: Wait, says: "b to answer (connection refused)"},
		{name: "one is silent, and the other has begun", join: joins, a: begins, b: down, want: Wait, says: "--etcd.join without it"},
		{name: "nobody answers", join: joins, a: down, b: Answer{}, want: Wait},
		{name: "the others are to be restored", join: joins, a: old, b: old, want: Wait, says: "a to answer (it runs in cluster 7: restore it too)"},
		{name: "one is to be restored", join: joins, a: begins, b: old, want: Wait},
		{name: "one is to be restored, without data", join: joins, a: fresh("a"), b: waits("b"), want: Wait, says: "b to be restored too"},
		{name: "restored again", join: joins, a: with, b: with, reason: Lost, says: "allocator etcd replace c"},
		{name: "restored again, one answers", join: joins, a: with, b: down, reason: Lost, says: "--again"},
		{name: "restored again, one list is behind", join: joins, a: without, b: with, reason: Lost},
		{name: "restored again, one waits again", join: joins, a: with, b: fresh("b"), reason: Lost},
		{name: "replaced since", join: joins, a: runs(9, voter(21, "a"), voter(22, "b"), learner(24, "c")), b: down, want: Join},
		{name: "removed since", join: joins, a: runs(9, voter(21, "a"), voter(22, "b")), b: down, want: Add},
		{name: "another snapshot", join: joins, a: fresh("a", func(w *Waiting) { w.Token = "restored-2" }), b: down, reason: OtherCluster,
			says: "a was restored with token restored-2"},
		{name: "one machine twice", join: joins, a: fresh("a"), b: fresh("a"), reason: SameHost},
		{name: "without a machine that is gone", join: []string{"a", "c"}, b: down, want: Begin,
			a: fresh("a", func(w *Waiting) { w.Join = []string{"a", "c"} })},
		{name: "alone", join: []string{"c"}, a: old, b: old, want: Begin},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data := &Data{Host: "c", Peer: peer("c"), Token: "restored-1", Restored: true}
			var initial []string
			seen := map[string]Answer{}
			for _, host := range tc.join {
				initial = append(initial, host+"="+peer(host))
				if a, asked := map[string]Answer{"a": tc.a, "b": tc.b}[host]; asked {
					seen[host] = a
				}
			}
			data.Initial = strings.Join(initial, ",")
			own := Own{Host: "c", Node: "node-c", Process: "process-c", Join: joins, Peer: peer("c"), Founds: 7}
			step, err := Decide(OfRestored(own, *data, 9), data, seen)
			var refusal *Refusal
			errors.As(err, &refusal)
			if (refusal == nil) != (tc.reason == "") || err != nil && refusal.Reason != tc.reason || step.Action != tc.want ||
				!strings.Contains(step.Why, tc.says) && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("got %+v, %v; want %q, %q, %q", step, err, tc.want, tc.reason, tc.says)
			}
			// Etcd has run in the data: they count.
			data.Restored, data.Cluster, data.ID = false, 9, 23
			if step, err := Decide(own, data, map[string]Answer{"a": with, "b": down}); err != nil || step.Action != Start {
				t.Errorf("later: %+v, %v", step, err)
			}
		})
	}
}

// A restore is refused while the cluster that it would begin knows the member as started, or another in its place.
func TestMayRestore(t *testing.T) {
	for _, tc := range []struct {
		name  string
		third []Member
		may   bool
	}{
		{"never started", []Member{begun(3, "c")}, true},
		{"started", []Member{voter(3, "c")}, false},
		{"being replaced", []Member{learner(9, "c")}, false},
		{"removed", nil, false},
	} {
		var list []Status
		for _, m := range append([]Member{voter(1, "a"), begun(2, "b")}, tc.third...) {
			list = append(list, Status{Member: m})
		}
		if err := MayRestore("c", peer("c"), list); (err == nil) != tc.may {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// The member of a directory may run where it was, and where the others were told that it is.
func TestElsewhere(t *testing.T) {
	down := Answer{Err: errors.New("down")}
	for _, tc := range []struct {
		name string
		data Data
		a, b Answer
		want string
	}{
		{"at its address", Data{Peer: peer("c"), ID: 3}, runs(7, voter(1, "a"), voter(3, "c")), down, ""},
		{"nobody answers", Data{Peer: peer("c"), ID: 3}, down, down, ""},
		{"not listed", Data{Peer: peer("c"), ID: 3}, runs(7, voter(1, "a"), voter(4, "d")), down, ""},
		{"it was elsewhere", Data{Peer: peer("old"), ID: 3}, down, down, peer("old")},
		{"it was told to be elsewhere", Data{Peer: peer("c"), ID: 3}, runs(7, voter(3, "new")), down, peer("new")},
		{"by one of two lists", Data{Peer: peer("c"), ID: 3}, runs(7, voter(3, "c")), runs(7, voter(3, "new")), peer("new")},
		{"it has not answered yet", Data{Peer: peer("c")}, runs(7, voter(3, "c")), down, ""},
	} {
		own := Own{Host: "c", Peer: peer("c")}
		if got := elsewhere(own, tc.data, map[string]Answer{"a": tc.a, "b": tc.b}); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// A member is known by its ID, and may have several addresses.
func TestOtherAddress(t *testing.T) {
	list := []Member{voter(1, "a"), {ID: 2}, {ID: 3, Peers: []string{peer("old"), peer("c")}}}
	for id, want := range map[uint64]string{1: peer("a"), 2: "", 3: "", 9: ""} {
		if got := OtherAddress(list, id, peer("c")); got != want {
			t.Errorf("member %d: %q, want %q", id, got, want)
		}
	}
}

// Whatever the others answer, a member with an empty directory intends to begin only if each of the others waits
// without data, and begins only if it intends to, and each of the others waits or knows it as one that has never
// started. The table is every combination.
func TestNobodyBeginsAgain(t *testing.T) {
	answers := map[string]Answer{
		"down": {Err: errors.New("down")}, "silent": {}, "waits": {}, "intends": {},
		"begun":  runs(7, begun(1, "a"), begun(2, "b"), begun(3, "c")),
		"ours":   runs(7, voter(1, "a"), voter(2, "b"), begun(3, "c")),
		"lost":   runs(7, voter(1, "a"), voter(2, "b"), voter(3, "c")),
		"gone":   runs(7, voter(1, "a"), voter(2, "b")),
		"added":  runs(7, voter(1, "a"), voter(2, "b"), learner(3, "c")),
		"others": runs(8, voter(1, "x"), voter(2, "y")),
		// The members are those of the list, and the cluster is not the one that it begins.
		"restored": runs(9, voter(1, "a"), begun(2, "b"), begun(3, "c")),
	}
	const waiting, running = 1, 2
	is := map[string]int{"waits": waiting, "intends": waiting, "begun": running, "ours": running}
	for na, a := range answers {
		for nb, b := range answers {
			for host, x := range map[string]*Answer{"a": &a, "b": &b} {
				switch map[string]string{"a": na, "b": nb}[host] {
				case "waits":
					*x = waits(host)
				case "intends":
					*x = ready(host)
				}
			}
			for _, intends := range []bool{false, true} {
				own := Own{Host: "c", Node: "node-c", Process: "process-c", Join: []string{"a", "b", "c"}, Peer: peer("c"), Founds: 7, Intends: intends}
				step, err := Decide(own, nil, map[string]Answer{"a": a, "b": b})
				var want Action
				switch {
				case is[na] == 0 || is[nb] == 0:
				case !intends && is[na]+is[nb] == 2*waiting:
					want = Intend
				case intends && (is[na]+is[nb] > 2*waiting || na == nb && na == "intends"):
					want = Begin
				}
				if begins := step.Action == Begin || step.Action == Intend; begins != (want != "") || begins && (err != nil || step.Action != want) {
					t.Errorf("a %s, b %s, it intends %v: %+v, %v; want %q", na, nb, intends, step, err, want)
				}
			}
		}
	}
}

func TestQuorum(t *testing.T) {
	states := func(spec string) (out []Status) { // u: up, d: down, l: learner
		for i, c := range spec {
			m := voter(uint64(i+1), string(rune('a'+i)))
			m.Learner = c == 'l'
			s := Status{Member: m}
			if c == 'd' {
				s.Err = errors.New("down")
			}
			out = append(out, s)
		}
		return out
	}
	for _, tc := range []struct {
		members string
		remove  string
		ok      bool
		says    string
	}{
		{"uuu", "c", true, "2 of 2"},
		{"uud", "c", true, "2 of 2 voting members answer, 2 are needed: the loss of one more"},
		{"uud", "a", false, "1 of 2 voting members answer, 2 are needed: there is no quorum"},
		{"udd", "c", false, "1 of 3"},
		{"uuuuu", "e", true, "4 of 4 voting members answer, 3 are needed: 1 more may fail"},
		{"uuudd", "a", false, "2 of 4"},
		{"uuudd", "e", true, "3 of 4"},
		{"u", "a", false, "0 of 0"},
		{"uul", "c", true, "2 of 2"},
		{"uul", "b", true, "1 of 1"},
		{"uu", "b", true, "1 of 1"},
		{"ud", "b", false, "1 of 2"},
	} {
		all := states(tc.members)
		gone, err := Find(all, tc.remove)
		if err != nil {
			t.Fatal(err)
		}
		before, after, err := Without(all, gone)
		if text := before.String() + after.String(); (err == nil) != tc.ok || errors.Is(err, ErrQuorum) == tc.ok || !strings.Contains(text, tc.says) {
			t.Errorf("%s without %s: %v; %v, then %v; want %v, %q", tc.members, tc.remove, err, before, after, tc.ok, tc.says)
		}
	}
	if _, err := Find(states("uuu"), "x"); !errors.Is(err, ErrNoMember) || !strings.Contains(err.Error(), "a, b, c") {
		t.Errorf("no member x: %v", err)
	}
	if m, err := Find(states("uuu"), "2"); err != nil || m.Name != "b" {
		t.Errorf("member 2: %+v, %v", m, err)
	}
	for url, want := range map[string]string{"https://a:1": "a", "http://[fd00::1]:2380": "fd00::1", "10.0.0.1:2": "10.0.0.1", "fd00::1": "fd00:", "": ""} {
		if got := HostOf(url); got != want {
			t.Errorf("host of %q: %q, want %q", url, got, want)
		}
	}
}

// TestAnswering: a removed host and a learner are no voters, and nothing is said where a voter has no endpoint.
func TestAnswering(t *testing.T) {
	list := []Member{voter(1, "a"), voter(2, "b"), voter(3, "c"), {ID: 4, Name: "d", Learner: true, Clients: []string{"https://d:2379"}}}
	for asked, want := range map[string]string{ // A capital does not answer.
		"abcd": "3 of 3", "abC": "2 of 3", "abcD": "3 of 3", "abcX": "3 of 3", "aBC": "1 of 3", "ab": "0 of 0", "aB": "0 of 0", "abX": "0 of 0", "": "0 of 0",
	} {
		all := []Status{{Endpoint: client("y"), Err: errors.New("down")}}
		for _, c := range asked {
			s := Status{Endpoint: strings.ToLower(string(c)) + ":2379", Err: errors.New("down")}
			if c >= 'a' { // It is asked at an address that the list does not have.
				s = Status{Endpoint: "https://10.0.0.1:2379", Member: Member{ID: uint64(c-'a') + 1}}
			}
			all = append(all, s)
		}
		q := Answering(list, all)
		if got := fmt.Sprintf("%d of %d", q.Healthy, q.Voters); got != want {
			t.Errorf("%q: %s, want %s", asked, got, want)
		}
	}
	if q := Answering(nil, []Status{{}}); q.Voters != 0 {
		t.Errorf("without a list: %v", q)
	}
}

func TestDefragment(t *testing.T) {
	three := []Status{
		{Endpoint: "c", Leader: true, Size: 100, InUse: 20},
		{Endpoint: "a", Leader: true, Leads: true, Size: 100, InUse: 20},
		{Endpoint: "b", Leader: true, Size: 100, InUse: 90},
	}
	got, err := Defragment(three, 50)
	if err != nil || !slices.Equal(got, []string{"c", "a"}) {
		t.Errorf("got %v, %v: want c, then the leader", got, err)
	}
	for name, away := range map[string]Status{
		"silent": {Err: errors.New("down"), Leader: true}, "no leader": {}, "learner": {Member: Member{Learner: true}, Leader: true},
	} {
		three[2] = away
		if got, err := Defragment(three, 50); err == nil {
			t.Errorf("%s: got %v while a member is away", name, got)
		}
	}
}

// The machine remembers what it did and heard, and asks again after each step.
func TestMachine(t *testing.T) {
	const (
		self, other = "a", "b"
		fails       = Action("wait, with an error")
	)
	waiting := func(intends bool) Heard {
		return Heard{other: waits(other, func(w *Waiting) { w.Intends, w.Join = intends, []string{self, other} })}
	}
	silent, broken := Answer{Err: errors.New("silent")}, Failed{errors.New("broken")}
	whole := runs(7, voter(1, self), voter(2, other))
	before := runs(7, voter(1, "c"), voter(2, other))
	added := runs(7, voter(2, other), learner(9, self))
	gone := Heard{"a majority": runs(7, voter(2, other))}
	own := Own{Host: self, Node: self, Process: self, Join: []string{self, other}, Peer: peer(self), Founds: 7}
	pod, restored := own, own
	pod.Replaces = true
	restored.Token, restored.Intends = "t", true
	moved := func() *Data { return &Data{Host: "c", Peer: peer("c"), Cluster: 7, ID: 1} }
	for name, tc := range map[string]struct {
		own  Own
		data *Data
		says []any // an event, and the action that it leads to
	}{
		"it begins once the other intends to": {own, nil, []any{Tick{}, Ask, waiting(false), Intend, Done{}, Ask, waiting(false), Wait, Tick{}, Ask,
			Heard{other: silent}, Wait, waiting(true), Begin}},
		"one that waited and is silent has begun": {own, nil, []any{waiting(true), Intend, Done{}, Ask, Heard{other: silent}, Begin}},
		"it has waited, and is a member now":      {own, nil, []any{waiting(true), Intend, Heard{other: whole}, fails}},
		"a pod that waited may have stopped":      {pod, nil, []any{waiting(true), Intend, Done{}, Ask, Heard{other: silent}, Wait}},
		"a step that failed is decided again":     {own, nil, []any{waiting(true), Intend, broken, fails, Tick{}, Ask, waiting(true), Intend}},
		"it joins by the list of a majority":      {own, nil, []any{Heard{other: added}, List, Listed(added), Join}},
		"the majority knows that it has started":  {own, nil, []any{Heard{other: added}, List, Listed(whole), fails}},
		"a pod has that list already":             {pod, nil, []any{Heard{"a majority": added}, Join}},
		"a pod discards the data of a removed one": {pod, &Data{Host: self, Peer: peer(self), ID: 5}, []any{gone, Discard, Done{}, Ask,
			gone, Add, Done{}, Wait, Tick{}, Ask}},
		"a pod discards those of another cluster": {pod, &Data{Host: self, Peer: peer(self), Cluster: 9, ID: 1}, []any{Heard{"a majority": whole}, Discard}},
		"a node keeps those of another cluster":   {own, &Data{Host: self, Peer: peer(self), Cluster: 9, ID: 1}, []any{Heard{other: whole}, fails}},
		"it runs at the address that it had":      {own, moved(), []any{Heard{other: before}, AskAt, There(before), fails, Tick{}, Ask}},
		"it ran there before":                     {own, moved(), []any{Heard{other: whole}, AskAt, There(before), fails, Heard{other: silent}, AskAt, There(silent), Start}},
		"a pod that has the volume of another":    {pod, moved(), []any{Heard{"a majority": before}, AskAt, There(before), fails}},
		"a pod of which the URL changed":          {pod, moved(), []any{Heard{"a majority": before}, AskAt, There(silent), Move, Done{}, Start}},
		"restored data are nowhere else":          {restored, moved(), []any{Heard{other: silent}, Wait}},
		"it tells its new address, and starts":    {own, moved(), []any{Heard{other: before}, AskAt, There(silent), Move, Done{}, Start}},
		"it could not tell its new address":       {own, moved(), []any{Heard{other: before}, AskAt, There(silent), Move, broken, fails, Tick{}, Ask}},
	} {
		m := NewMachine(tc.own, tc.data)
		for i := 0; i < len(tc.says); i += 2 {
			step := m.Step(tc.says[i].(Event))
			got := step.Action
			if step.Err != nil {
				got = fails
			}
			if want := tc.says[i+1]; got != want {
				t.Errorf("%s: after %#v: %+v, want %s", name, tc.says[i], step, want)
				break
			}
			if (got == Add || got == Move) && step.At != tc.own.Peer {
				t.Errorf("%s: %s of %s, want %s", name, got, step.At, tc.own.Peer)
			}
			if d := m.Data(); i > 0 && tc.says[i-1] == Move && got == Start && (d.Host != self || d.Peer != tc.own.Peer) {
				t.Errorf("%s: it starts as %+v", name, d)
			}
		}
	}
}
