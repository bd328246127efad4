package player

import (
	"time"

	"github.com/flakelease/allocator/chaos/sim"
)

func acts(text string) []sim.Act {
	list, err := sim.ParseActs(text)
	if err != nil {
		panic(err) // a constant
	}
	return list
}

const second = time.Second

// opening is when a scene has something to show: the nodes have started, and issue.
const opening = 4 * second

// Scenes are the guided tour. In those of four nodes and three sids one node stands by.
var Scenes = []Scene{
	{
		Name: "crash", Title: "A node crashes", Seed: 1, Nodes: 4, SIDs: 3,
		Acts: acts("kill:12s:n1:60s"), From: opening, Ends: 62 * second,
		Says: []Line{
			{opening, "Four nodes, and three sids. A sid is a part of each ID, so a node that has one of its " +
				"own needs to ask nobody."},
			{6 * second, "The bars are windows: etcd has confirmed to the node that it may issue IDs of " +
				"these seconds. It asks for more every 5 s."},
			{8 * second, "n2 stands by: it has no sid, and refuses. That is better than to share one."},
			{12 * second, "n1 is killed. It gives nothing back, and nobody knows what it issued last."},
			{20 * second, "Its lease in etcd ends after 15 s. But the lease is not what protects IDs."},
			{30 * second, "n2 has acquired the sid. Its window begins where the old one ends: above all " +
				"that n1 can have issued."},
			{43 * second, "From there on n2 issues. No ID comes twice, and IDs of the sid rise from one " +
				"holder to the next."},
		},
		Then: "Kill another node, or all of them at once. The counter of duplicates stays at 0.",
	},
	{
		Name: "pause", Title: "A pause of 40 s", Seed: 1, Nodes: 4, SIDs: 3,
		Acts: acts("pause:12s:n1:40s"), From: opening, Ends: 75 * second,
		Says: []Line{
			{opening, "A process can stop anywhere, for any time: a virtual machine is moved, memory is " +
				"collected. It does not notice."},
			{12 * second, "n1 stops for 40 s, in the middle of its work."},
			{27 * second, "Its lease has ended. To the others it is gone."},
			{42 * second, "Its window has ended too. Another node holds the sid now, from there on."},
			{52 * second, "n1 continues, and believes that it holds the sid. Its first request compares " +
				"its clock with the window: it refuses."},
			{60 * second, "It learns from etcd that the sid is another's, and stands by. A lock would " +
				"have let it go on."},
		},
		Then: "Leave the rule \"Issue below the ceiling alone\" out: then a node that is cut off goes " +
			"on, beside the next holder.",
	},
	{
		Name: "clock", Title: "A clock a minute ahead", Seed: 1, Nodes: 4,
		Acts: acts("step:12s:n1:60s;step:40s:n1:-60s"), From: opening, Ends: 65 * second,
		Says: []Line{
			{opening, "Each node has a clock, and measures the clocks of the others over gossip."},
			{12 * second, "Somebody sets the clock of n1 a minute ahead."},
			{15 * second, "The short hand is the wall clock, the long one what n1 issues by. A majority " +
				"disagrees with the step, so n1 does not follow it."},
			{28 * second, "Had it followed, its IDs would be a minute ahead of all others, and would stay so."},
			{40 * second, "The clock is set right. Nothing had to be repaired."},
		},
		Then: "Let all clocks step, one after the other: the majority decides what time it is. " +
			"Uniqueness does not rest on it.",
	},
	{
		Name: "etcd", Title: "etcd is gone", Seed: 1, Nodes: 4,
		Acts: acts("etcd:12s::50s"), From: opening, Ends: 80 * second,
		Says: []Line{
			{opening, "Nodes issue from memory. etcd is asked for the next seconds, well ahead of time."},
			{12 * second, "etcd has no leader: no request is carried out."},
			{20 * second, "Nothing changes for callers. Each node has between 25 and 30 s left."},
			{38 * second, "The windows end. Nodes refuse now: WINDOW_EXHAUSTED. They would rather refuse " +
				"than guess."},
			{62 * second, "etcd is back. Nodes read what happened, extend their windows, and go on with " +
				"the same sids."},
		},
		Then: "Take etcd away for 20 s: no caller notices.",
	},
	{
		Name: "restore", Title: "A restored backup", Seed: 1, Nodes: 4,
		Acts: acts("restore:50s::;recover:75s::"), From: opening, Ends: 150 * second,
		Says: []Line{
			{opening, "A backup of etcd is made every 15 s."},
			{50 * second, "etcd is restored from the backup of a while ago. It has forgotten windows " +
				"that it had confirmed."},
			{56 * second, "Nodes see that the history went back, and stop: HISTORY_REWOUND. To go on " +
				"from old records could issue IDs again."},
			{75 * second, "An operator runs \"allocator admin recover\". A new era begins, above all " +
				"that was ever confirmed."},
			{85 * second, "Nodes wait until their clocks reach the floor of the era, and issue above it."},
		},
		Then: "Restore a backup and recover again. Recover before you start a killed node: a process that starts " +
			"on the restored history does not know what was forgotten, and may issue it again.",
	},
}

// cutOff is the scene of rules that a node breaks that etcd does not hear.
func cutOff(seed uint64) Scene {
	return Scene{
		Name: "cut", Title: "A node is cut off from etcd", Seed: seed, Nodes: 4, SIDs: 3,
		Acts: acts("cut:12s:n1:70s"), From: 10 * second, Ends: 60 * second,
	}
}

// Rules are what a visitor may leave out.
var Rules = []Rule{
	{
		Name: "ceiling", Title: "Issue below the ceiling " +
			"alone", Bug: "window-off", Claim: "I3", Section: "the-generator",
		Sentence: "The ceiling is checked last: a block that would reach it is refused with WINDOW_EXHAUSTED.",
		Scene:    cutOff(2),
	},
	{
		Name: "compare", Title: "Compare the record with each write", Bug: "compare-window-gone", Claim: "I4",
		Section: "records",
		Sentence: "Every transaction compares window/<sid> with the record last seen, by revision and by " +
			"value.",
		Scene: Scene{
			Name: "trouble", Title: "A seed of the campaigns, with all kinds of " +
				"faults", Mode: sim.Unclocked, Seed: 146,
			From: 15 * second, Ends: 40 * second,
		},
	},
	{
		Name: "start", Title: "Start above the old window", Bug: "start-at-own-clock", Claim: "I4",
		Section: "why-no-id-comes-twice", Sentence: "ACQUIRE sets base ≥ the ceiling before " +
			"it.", Scene: cutOff(1),
	},
	{
		Name: "confirmed", Title: "Use what is confirmed alone", Bug: "ceiling-before-confirmed", Claim: "I3",
		Section: "what-counts-as-knowledge", Sentence: "Only a response of etcd does.", Scene: cutOff(1),
	},
	{
		Name: "unknown", Title: "Take no answer for unknown", Bug: "unknown-is-applied", Claim: "I3",
		Section:  "what-counts-as-knowledge",
		Sentence: "An error of any kind means unknown: the write may have been applied, or may still be.",
		Scene:    cutOff(1),
	},
	{
		Name: "record", Title: "Record the window in etcd first", Bug: "window-in-memory", Claim: "I4",
		Section: "records", Sentence: "One record is the base of uniqueness: window/<sid>, which is on " +
			"no lease and is never deleted.",
		Scene: cutOff(1),
	},
	{
		Name: "generator", Title: "Never go back within a " +
			"window", Bug: "guard-off", Claim: "I1", Section: "the-generator",
		Sentence: "Out of entropy, the word carries into the next millisecond. It never goes back.",
		Scene: Scene{Name: "busy", Title: "Clocks that go " +
			"back", Mode: sim.Unclocked, Seed: 34, Ends: 20 * second},
	},
	{
		Name: "majority", Title: "Follow a step on a majority's word " +
			"alone", Bug: "step-followed-at-once", Claim: "I5",
		Section: "agreement", Sentence: "A node cannot know from its own clock whether it is right, and " +
			"may not trust one peer.",
		Scene: Scene{
			Name: "clock", Title: "A clock a minute " +
				"ahead", Seed: 1, Nodes: 4, Acts: acts("step:12s:n1:60s"), Ends: 40 * second,
		},
	},
	{
		Name: "gate", Title: "Keep the gate shut while peers are silent", Bug: "gate-opens-on-silence", Claim: "I5",
		Section:  "agreement",
		Sentence: "Silence does not open it: who is silent and registered still disagrees, if its last answer did.",
		Scene: Scene{
			Name: "silence", Title: "A node that started a minute ahead hears nobody any more", Seed: 1, Nodes: 4,
			Acts: acts("step:10s:n1:60s;kill:12s:n1:3s;gossip:30s:n1:70s"), From: 8 * second, Ends: 60 * second,
		},
	},
}
