package clock_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

const limit = 250 * time.Millisecond

// peers returns an opinion for each word: "300" stands 300 ms from us, give or
// take 1 ms; "100~200" give or take 200 ms; "?" never answered, and "300?" is silent since. A trailing "!" says
// the kernel is unsynchronized, "+" that it is synchronized, and a trailing "h" that it
// issues with our time, and only its wall clock is there. They are named b, c, … in
// order.
func peers(text string) []clock.Opinion {
	var out []clock.Opinion
	for i, w := range strings.Fields(text) {
		o := clock.Opinion{Name: string(rune('b' + i))}
		if w, unsync := strings.CutSuffix(w, "!"); unsync {
			o.Kernel = clock.Unsynchronized
		} else if _, sync := strings.CutSuffix(w, "+"); sync {
			o.Kernel = clock.Synchronized
		}
		w, silent := strings.CutSuffix(strings.TrimRight(w, "!+"), "?")
		w, o.Ran = strings.CutSuffix(w, "r")
		w, idle := strings.CutSuffix(w, "i")
		w, held := strings.CutSuffix(w, "h")
		if w != "" {
			var at, half int64
			if n, _ := fmt.Sscanf(w, "%d~%d", &at, &half); n < 2 {
				half = 1
			}
			o.Fresh, o.Issues = !silent, !idle
			o.Issuing = iv{(at - half) * ms, (at + half) * ms}
			o.Wall = o.Issuing
			if held {
				o.Issuing = iv{-ms, ms}
			}
		}
		out = append(out, o)
	}
	return out
}

// TestSituations is the table of what a cluster can look like from one node.
func TestSituations(t *testing.T) {
	const hour = "3600000"
	for _, c := range []struct {
		name   string
		peers  string
		kernel clock.Sync
		want   clock.Finding
		false_ string // falsetickers
		offset int64  // ms, of the cluster's time if known
		known  bool
	}{
		{name: "alone", want: clock.Agreed},
		{name: "two agree", peers: "10", want: clock.Agreed, known: true, offset: 5},
		{name: "two, one not heard", peers: "?", want: clock.Unconfirmed},
		{name: "two differ", peers: "900", want: clock.ClusterSplit, offset: 900},
		{name: "two differ, neither kernel synchronized", peers: "900!", kernel: clock.Unsynchronized, want: clock.ClusterSplit, offset: 900},
		{name: "two differ, both synchronized", peers: "900+", kernel: clock.Synchronized, want: clock.ClusterSplit, offset: 900},
		{name: "two differ, ours is the synchronized one", peers: "900!", kernel: clock.Synchronized, want: clock.Agreed, false_: "b", offset: 900},
		{name: "two differ, theirs is the synchronized one", peers: "900+", kernel: clock.Unsynchronized, want: clock.SelfFalse, offset: 900},
		{name: "two differ, the peer's kernel does not say", peers: "900", kernel: clock.Synchronized, want: clock.ClusterSplit, offset: 900},
		{name: "two differ, our kernel does not say", peers: "900!", want: clock.ClusterSplit, offset: 900},
		{name: "two, too vague to tell", peers: "200~100", want: clock.Unconfirmed, known: true},

		{name: "three, all well", peers: "3 -4", want: clock.Agreed, known: true},
		{name: "three, another is bad", peers: "3 " + hour, want: clock.Agreed, false_: "c", known: true, offset: 1},
		{name: "three, we are bad", peers: "-900 -902", want: clock.SelfFalse, known: true, offset: -901},
		{name: "three, each for itself", peers: "-900 900", want: clock.ClusterSplit, offset: -900},
		{name: "three, one liar and one silent", peers: hour + " ?", want: clock.Unconfirmed, offset: 3_600_000},
		{name: "three, cut off alone", peers: "? ?", want: clock.Unconfirmed},
		{name: "three, cut off with one", peers: "3 ?", want: clock.Agreed, known: true, offset: 1},
		{name: "three, bad and heard by one only", peers: "900 ?", want: clock.Unconfirmed, offset: 900},

		{name: "four, half and half", peers: "3 900 901", want: clock.ClusterSplit, offset: 900},
		{name: "four, we are bad", peers: "900 901 902", want: clock.SelfFalse, known: true, offset: 901},
		{name: "four, cut in halves", peers: "3 ? ?", want: clock.Unconfirmed, offset: 3},
		{name: "five, one liar", peers: "3 -2 1 " + hour, want: clock.Agreed, false_: "e", known: true},
		{name: "five, two liars", peers: "3 -2 -" + hour + " " + hour, want: clock.Agreed, false_: "d e", known: true},
		{name: "five, two liars and one silent", peers: "3 ? -" + hour + " " + hour, want: clock.Unconfirmed, offset: -3_600_000},
		{name: "five, we are bad and one blesses it", peers: "0 900 901 902", want: clock.SelfFalse, false_: "b", known: true, offset: 901},
		{name: "five, no two alike", peers: "900 1800 -900 -1800", want: clock.ClusterSplit, offset: -1800},
		{name: "five, gossip blocked", peers: "? ? ? ?", want: clock.Unconfirmed},
		{name: "all stepped together", peers: "1 2 3 4", want: clock.Agreed, known: true, offset: 2},

		{name: "three, the others 240 ms apart", peers: "900 1140", want: clock.SelfFalse, known: true, offset: 1020},
		{name: "three, the others 300 ms apart", peers: "900 1200", want: clock.ClusterSplit, offset: 900},
		{name: "three, off but vaguely", peers: "300~100 300~100", want: clock.Unconfirmed, known: true, offset: 300},
		{name: "five, one vaguely off is not false", peers: "3 -2 1 300~200", want: clock.Agreed, known: true},
		{name: "at the limit", peers: "249 249", want: clock.Agreed, known: true, offset: 249},
		{name: "over the limit by a hair", peers: "250 250", want: clock.Unconfirmed, known: true, offset: 250},
		{name: "wholly over the limit", peers: "252 252", want: clock.SelfFalse, known: true, offset: 252},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := clock.Input{Peers: peers(c.peers), Kernel: c.kernel, MaxSkew: limit}
			j := clock.Judge(in)
			if j.Finding != c.want {
				t.Errorf("found %v, want %v: %+v", j.Finding, c.want, j)
			}
			if got := strings.Join(j.Falsetickers, " "); got != c.false_ {
				t.Errorf("falsetickers %q, want %q", got, c.false_)
			}
			// The tolerance is halved as long as a quorum holds, so the middle is that of
			// a quorum within a factor of two of the tightest.
			if diff := j.Offset - time.Duration(c.offset*ms); diff < -4*time.Millisecond || diff > 4*time.Millisecond {
				if c.want != clock.Unconfirmed || c.known && c.offset != 0 {
					t.Errorf("offset %v, want %d ms", j.Offset, c.offset)
				}
			}
			if j.Known != c.known {
				t.Errorf("known is %v, want %v", j.Known, c.known)
			}
			consistent(t, in, j)
		})
	}
}

// consistent checks what holds of every judgement.
func consistent(t *testing.T, in clock.Input, j clock.Judgement) {
	t.Helper()
	n := len(in.Peers) + 1
	for _, rule := range []struct {
		what string
		ok   bool
	}{
		{"everybody is counted once", j.Registered == n && j.Agree+j.Disagree+j.Ambiguous+j.Silent == n},
		{"a quorum is a majority", 2*j.Quorum > n && 2*(j.Quorum-1) <= n},
		{"agreed or the tie-break of two, or no quorum", (j.Finding == clock.Agreed) == (j.Agree >= j.Quorum || n == 2 && j.Disagree == 1 && len(j.Falsetickers) == 1)},
		{"the bound is what agreement goes by", in.MaxSkew == math.MaxInt64 || (j.Bound <= max(in.MaxSkew, 0)) == (j.Agree >= j.Quorum)},
		{"calm is agreed", !j.Calm || j.Finding == clock.Agreed},
		{"disagreement needs that many", j.Finding != clock.SelfFalse && j.Finding != clock.ClusterSplit || j.Disagree >= n-j.Quorum+1},
		{"self-false is where a quorum knows better", n == 2 || j.Finding != clock.SelfFalse || j.Known},
		{"split is where none does", j.Finding != clock.ClusterSplit || !j.Known},
		{"alone, nothing is known", n > 1 || !j.Known},
		{"uncertainty is no less than nothing", j.Uncertainty >= 0},
		{"names are as many as were counted", len(j.Disagreeing) == j.Disagree},
	} {
		if !rule.ok {
			t.Errorf("not so: %s: %+v of %+v", rule.what, j, in)
		}
	}
}

func TestCalm(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "100 100": true, "124 900": false, "123 900": true, "-123 900": true, "200 200": false, "100~30": false, "900": false,
	} {
		if j := clock.Judge(clock.Input{Peers: peers(text), MaxSkew: limit}); j.Calm != want {
			t.Errorf("%q: calm is %v, want %v: bound %v", text, j.Calm, want, j.Bound)
		}
	}
}

// TestFalsePeerConfirmsNobody: whatever one liar says of its clock, in a cluster of three
// or more good nodes and itself nobody's finding changes: good clocks are
// agreed with, and with five or more a bad one is not.
func TestFalsePeerConfirmsNobody(t *testing.T) {
	for _, n := range []int{3, 4, 5, 7, 9} {
		for lie := int64(-2000); lie <= 2000; lie += 50 {
			good := clock.Judge(clock.Input{Peers: peers(strings.Repeat("1 ", n-2) + fmt.Sprint(lie)), MaxSkew: limit})
			if good.Finding != clock.Agreed {
				t.Errorf("%d nodes, liar at %d ms: a good clock is %v", n, lie, good.Finding)
			}
			if n < 5 {
				continue // a liar and a bad clock are two faults: too many for three or four
			}
			bad := clock.Judge(clock.Input{Peers: peers(strings.Repeat("900 ", n-2) + fmt.Sprint(lie)), MaxSkew: limit})
			if bad.Finding != clock.SelfFalse {
				t.Errorf("%d nodes, liar at %d ms: a bad clock is %v", n, lie, bad.Finding)
			}
		}
	}
}

// TestStartedUnderWrongSource: while a step ahead is held, who issues nothing and has the time
// of that step neither agrees nor disagrees. A node that issues with it does, and so do those
// of another time, and all where nothing is held.
func TestStartedUnderWrongSource(t *testing.T) {
	const held = 3600000 * time.Millisecond
	for _, c := range []struct {
		name  string
		peers string
		held  time.Duration
		want  clock.Finding
	}{
		{"1 of 2", "3600002i", held, clock.Unconfirmed},
		{"1 of 2, which issues", "3600002", held, clock.ClusterSplit},
		{"1 of 2, and nothing is held", "3600002i", 0, clock.ClusterSplit},
		{"1 of 2, with another time", "3500000i", held, clock.ClusterSplit},
		{"1 of 2, too vague to tell", "3600002~300i", held, clock.ClusterSplit},
		{"1 of 3", "3600002i 3", held, clock.Agreed},
		{"2 of 3", "3600002i 3600001i", held, clock.Unconfirmed},
		{"2 of 3, one issues", "3600002i 3600001", held, clock.Unconfirmed},
		{"2 of 5", "3600002i 3600001i 3 -3", held, clock.Agreed},
		{"we were paused, beside standbys", "3600002ir 3600001ir 3600000ir", held, clock.SelfFalse},
		{"4 of 5", "3600002i 3600001i 3600000i 3600000i", held, clock.Unconfirmed},
		{"4 of 5, three issue", "3600002i 3600001 3600000 3600000", held, clock.SelfFalse},
		{"it went silent", "3600002i? 3", held, clock.Agreed},
		{"a step that a clock may agree with both sides of", "400i", 400 * time.Millisecond, clock.ClusterSplit},
	} {
		j := clock.Judge(clock.Input{Peers: peers(c.peers), MaxSkew: limit, Held: c.held})
		if j.Finding != c.want || j.Agree+j.Disagree+j.Ambiguous+j.Silent != j.Registered {
			t.Errorf("%s: %v, want %v: %+v", c.name, j.Finding, c.want, j)
		}
	}
	j := clock.Judge(clock.Input{Peers: peers("3600002i? 3600001i 3600000 3"), MaxSkew: limit, Held: held})
	if j.Dissent != 1 || j.Started != 2 {
		t.Errorf("one silent, one fresh, one that issues: %+v", j)
	}
}

func TestArbitrate(t *testing.T) {
	for _, c := range []struct {
		name     string
		peers    string
		old, new int64 // ms
		want     clock.Vote
	}{
		{"alone", "", 0, 3600000, clock.VoteAlone},
		{"two, for the old", "2", 0, 3600000, clock.VoteOld},
		{"two, for the new", "3600002h", 0, 3600000, clock.VoteNew},
		{"two, the other issues with it", "3600002", 0, 3600000, clock.VoteIssued},
		{"five, two issue with it", "3600002h 3600001 3600003 3600000h", 0, 3600000, clock.VoteIssued},
		{"five, one issues with it", "3600002h 3600001 3600003h 3600000h", 0, 3600000, clock.VoteNew},
		{"1 of 2 restarted", "3600002i", 0, 3600000, clock.VoteNew},
		{"1 of 3 restarted", "3600002i 3600000h", 0, 3600000, clock.VoteNew},
		{"2 of 5 restarted", "3600002i 3600001i 3600003h 3600000h", 0, 3600000, clock.VoteNew},
		{"we were paused, beside standbys", "3600002 3600001ir 3600003ir 3600000ir", 0, 3600000, clock.VoteIssued},
		{"two of the standbys restarted", "3600002 3600001ir 3600003i 3600000i", 0, 3600000, clock.VoteIssued},
		{"all of them", "3600002 3600001i 3600003i 3600000i", 0, 3600000, clock.VoteNew},
		{"standbys that keep their time", "3600002i 3600001hr 3600003hr 3600000hr", 0, 3600000, clock.VoteNew},
		{"all others restarted", "3600002i 3600001i 3600003i 3600000i", 0, 3600000, clock.VoteNew},
		{"scaled from 2 to 3", "3600000h 3600001i", 0, 3600000, clock.VoteNew},
		{"two of three issue with it, one started", "3600002 3600001 3600003i 3600000h", 0, 3600000, clock.VoteIssued},
		{"two, for neither", "900000", 0, 3600000, clock.VoteNone},
		{"two, silent", "?", 0, 3600000, clock.VoteNone},
		{"three, for the old", "2 -3", 0, 3600000, clock.VoteOld},
		{"three, one heard", "2 ?", 0, 3600000, clock.VoteOld},
		{"three, one each", "2 3600000", 0, 3600000, clock.VoteNone},
		{"five, one liar", "2 1 0 3600000", 0, 3600000, clock.VoteOld},
		{"five, one liar, one silent", "2 1 ? 3600000", 0, 3600000, clock.VoteOld},
		{"five, too few heard", "2 ? ? ?", 0, 3600000, clock.VoteNone},
		{"back, for the new", "-1003 -998", 0, -1000, clock.VoteNew},
		{"back, for the old", "3 8", 0, -1000, clock.VoteOld},
		{"small, for the new", "28h 34h", 0, 30, clock.VoteNew},
		{"small, for the old", "-28 4", 0, 30, clock.VoteOld},
		{"small and back, for the new", "-28 -34", 0, -30, clock.VoteNew},
		{"small, too vague to tell", "20~36 20~36", 0, 30, clock.VoteNone},
		{"in between", "15 15", 0, 30, clock.VoteNone},
		{"no step", "0 0", 0, 0, clock.VoteNone},
		{"the ends of the range", "0 0", math.MinInt64 / ms, math.MaxInt64 / ms, clock.VoteNone},
		{"the old is not nought", "2000 2001", 2000, 0, clock.VoteOld},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := clock.Arbitrate(peers(c.peers), c.old*ms, c.new*ms, limit); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	stale := peers("3600000 3600000")
	stale[0].Fresh, stale[1].Fresh = false, false
	if got := clock.Arbitrate(stale, 0, 3600000*ms, limit); got != clock.VoteNone {
		t.Errorf("peers not heard chose %v", got)
	}
}

// TestNamesWithoutGossipDoNotVote: who has no gossip is left out, unless nobody else is there.
func TestNamesWithoutGossipDoNotVote(t *testing.T) {
	heard := func(name string, since int64) clock.Member {
		return clock.Member{Name: name, Instance: fmt.Sprint(name, since), Since: since}
	}
	silent := func(name string, since int64) clock.Member {
		m := heard(name, since)
		m.NoGossip = true
		return m
	}
	for _, c := range []struct {
		what string
		in   []clock.Member
		want string
	}{
		{"half of them without gossip", []clock.Member{heard("a", 1), heard("b", 2), heard("c", 3), silent("x", 4), silent("y", 5), silent("z", 6)}, "b2 c3"},
		{"one turned without gossip", []clock.Member{heard("a", 1), heard("b", 2), heard("c", 3), silent("c", 4)}, "b2"},
		{"one no longer without gossip", []clock.Member{heard("a", 1), silent("b", 2), heard("b", 3), silent("c", 4)}, "b3"},
		{"we are without gossip", []clock.Member{silent("a", 1), heard("b", 2), silent("c", 3)}, "b2"},
		{"all others without gossip", []clock.Member{heard("a", 1), silent("b", 2), silent("c", 3)}, "b2 c3"},
		{"all without gossip", []clock.Member{silent("a", 1), silent("b", 2), silent("b", 3)}, "b3"},
		{"alone and without gossip", []clock.Member{silent("a", 1)}, ""},
	} {
		var got []string
		for _, m := range clock.Voters("a", c.in) {
			got = append(got, m.Instance)
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: judged by %q, want %q", c.what, got, c.want)
		}
	}

	// A jury is drawn of those who can be heard, however many are without gossip.
	var all []clock.Member
	for i := range int64(100) {
		all = append(all, silent(fmt.Sprint("silent", i), i), heard(fmt.Sprint("heard", i), i))
	}
	for _, m := range clock.Voters("heard0", all) {
		if m.NoGossip {
			t.Errorf("%s is in the jury", m.Name)
		}
	}
	if got := len(clock.Voters("heard0", all[:128])); got != 63 {
		t.Errorf("of 64 that are heard and as many without gossip, %d judge; want all 63 others", got)
	}
}

func TestVoters(t *testing.T) {
	got := clock.Voters("a", []clock.Member{
		{"c", "c1", 5, false}, {"b", "b1", 3, false}, {"a", "a1", 1, false}, {"b", "b2", 9, false}, {"b", "b3", 7, true}, {"a", "a2", 8, false},
	})
	if want := []clock.Member{{"b", "b2", 9, false}, {"c", "c1", 5, false}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := clock.Voters("a", nil); len(got) != 0 {
		t.Errorf("nobody is registered: got %v", got)
	}

	all := make([]clock.Member, 65)
	for i := range all {
		all[i] = clock.Member{Name: fmt.Sprintf("allocator-%d", i), Instance: "x", Since: int64(i)}
	}
	self := func(i int) string { return all[i].Name }
	if got := clock.Voters(self(0), all[:64]); len(got) != 63 {
		t.Errorf("of 64, %d judge; want all 63 others", len(got))
	}
	chosen, both := map[string]int{}, 0
	for i := range all {
		jury := clock.Voters(self(i), all)
		if len(jury) != 31 || !slices.IsSortedFunc(jury, func(a, b clock.Member) int { return strings.Compare(a.Name, b.Name) }) {
			t.Fatalf("%s has %d jurors, sorted or not: %v", self(i), len(jury), jury)
		}
		for _, m := range jury {
			if m.Name == self(i) {
				t.Fatalf("%s is a juror of itself", self(i))
			}
			chosen[m.Name]++
		}
		for j := 10; j < 64; j += 2 { // names alike in all but the last letter
			if slices.Contains(jury, all[j]) && slices.Contains(jury, all[j+1]) {
				both++
			}
		}
		// One that leaves changes one juror at most, and in any order of the list.
		fewer := slices.Delete(slices.Clone(all), (i+1)%65, (i+1)%65+1)
		fewer = append(fewer, clock.Member{Name: "another", Instance: "y"})
		slices.Reverse(fewer)
		kept := 0
		for _, m := range clock.Voters(self(i), fewer) {
			if slices.Contains(jury, m) {
				kept++
			}
		}
		if kept < 29 {
			t.Errorf("%s keeps %d of 31 jurors as one node comes and one goes, want at least 29", self(i), kept)
		}
	}
	if want := 65 * 27 * 31 * 31 / (64 * 64); both < want*9/10 || both > want*11/10 {
		t.Errorf("neighbors are chosen together %d times, want about %d", both, want)
	}
	for name, n := range chosen { // 31 on average, give or take 4
		if n < 12 || n > 52 {
			t.Errorf("%s is a juror of %d, want about 31: the hash does not spread", name, n)
		}
	}
}

// FuzzJudge: any opinions have one judgement, and it is consistent.
func FuzzJudge(f *testing.F) {
	word := func(xs ...int64) (out []byte) {
		for _, x := range xs {
			out = binary.LittleEndian.AppendUint64(out, uint64(x))
		}
		return out
	}
	f.Add(int64(limit), uint8(0), word(0, ms))
	f.Add(int64(limit), uint8(255), word(math.MinInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MinInt64, math.MinInt64))
	f.Add(int64(math.MaxInt64), uint8(3), word(5, -5, 900*ms, 901*ms))
	f.Add(int64(-1), uint8(9), word(0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, maxSkew int64, bits uint8, data []byte) {
		in := clock.Input{MaxSkew: time.Duration(maxSkew), Kernel: clock.Sync(bits % 4)}
		for i := 0; len(data) >= 16 && i < 40; i, data = i+1, data[16:] {
			o := clock.Opinion{Name: fmt.Sprint(i)}
			o.Fresh = bits>>(i%8)&1 == 0
			o.Kernel = clock.Sync(bits >> 2 % 4)
			o.Issuing = iv{int64(binary.LittleEndian.Uint64(data)), int64(binary.LittleEndian.Uint64(data[8:]))}
			o.Wall = o.Issuing
			in.Peers = append(in.Peers, o)
		}
		j := clock.Judge(in)
		consistent(t, in, j)
		if again := clock.Judge(in); fmt.Sprint(again) != fmt.Sprint(j) {
			t.Errorf("judged twice: %+v, then %+v", j, again)
		}
		clock.Arbitrate(in.Peers, maxSkew, int64(bits), in.MaxSkew)
	})
}

func BenchmarkJudge(b *testing.B) {
	for _, n := range []int{3, 32, 64} {
		in := clock.Input{Peers: peers(strings.Repeat("3 ", n/2) + strings.Repeat("-9 ", n-1-n/2)), MaxSkew: limit}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				clock.Judge(in)
			}
		})
	}
}
