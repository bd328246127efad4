package main

import (
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/node"
)

// soon bounds calls that end by themselves: the clients of such rows would go on for two minutes.
const soon = time.Minute

var (
	patient = options{TimeoutMs: 120_000, AttemptTimeoutMs: 5000} // A row that must end without it has within.
	hasty   = options{TimeoutMs: 120_000, AttemptTimeoutMs: 200}  // An attempt is given up soon.
	brief   = options{TimeoutMs: 1500, AttemptTimeoutMs: 500}     // The call is given up soon.
)

// Why rows are not for package client.
var (
	notBinary = map[string]string{"go": "its answers are binary messages, which gRPC parses and bounds"}
	notTyped  = map[string]string{"go": "an ID is an integer of 64 bits there"}
	notOpen   = map[string]string{"go": "secrets in Kubernetes are files that all in the container can read"}
	notForked = map[string]string{
		"go":   "a process with threads cannot fork",
		"node": "it has no fork that copies memory",
	}
	notAsync = map[string]string{"sync": "a thread cannot be canceled"}
	notClock = map[string]string{"go": "TestAgeInACopiedMemory of package client moves its clocks"}
)

// table returns all situations.
func table() (all []situation) {
	all = append(all, serving()...)
	all = append(all, refusing()...)
	all = append(all, failing()...)
	all = append(all, breaking()...)
	all = append(all, arguments()...)
	all = append(all, holding()...)
	all = append(all, leasing()...)
	return append(all, others()...)
}

func serving() []situation {
	return []situation{
		{name: "one ID from one node", nodes: "serve", want: "ids 1", least: 1, most: 1},
		{
			name: "5,000 IDs in one round trip", nodes: "serve",
			call: call{Op: "nextMany", Count: 5000},
			want: "ids 5000", least: 1, most: 1,
		},
		{
			name: "25,000 IDs in as many round trips as they need", nodes: "serve",
			call: call{Op: "nextMany", Count: 25_000},
			want: "ids 25000", least: 1, most: 3,
		},
		{
			// On a busy machine the threads of the 64 calls take half a second to begin.
			name: "64 calls at once share requests", nodes: "late 1000, late 50",
			options: patient, call: call{Op: "concurrent", Count: 64},
			want: "ids 64", least: 1, most: 16,
		},
		{name: "a flake", nodes: "serve", call: call{Form: "flake"}, want: "ids 1"},
		{name: "a ULID", nodes: "serve", call: call{Form: "ulid"}, want: "ids 1"},
		{name: "a UUID", nodes: "serve", call: call{Form: "uuid"}, want: "ids 1"},
		{name: "100 ULIDs", nodes: "serve", call: call{Op: "nextMany", Count: 100, Form: "ulid"}, want: "ids 100"},
		{name: "100 UUIDs", nodes: "serve", call: call{Op: "nextMany", Count: 100, Form: "uuid"}, want: "ids 100"},
		{
			name: "an ID above another that the caller has", nodes: "serve",
			call: call{After: "145000000000000000"},
			want: "ids 1", least: 1, most: 1,
		},
		{name: "calls that follow each other get IDs in order", nodes: "serve | serve", do: opened(inOrder)},
		{name: "the order goes on at another node", nodes: "serve | serve", do: opened(orderAtAnother)},
		{name: "an answer that takes its time", nodes: "late 300", options: patient, want: "ids 1", least: 1, most: 1},
	}
}

// permanent are the reasons that no other node and no later time change.
var permanent = []string{"INVALID_COUNT", "INVALID_FORMAT", "INVALID_ID", "UNAUTHENTICATED", "PERMISSION_DENIED"}

// ofWorkers are the reasons that no request for IDs is refused with.
var ofWorkers = []string{"WORKERS_OFF", "NO_WORKER", "UNKNOWN_WORKER", "WORKER_QUOTA", "CALLER_CLOCK"}

func refusing() (all []situation) {
	reasons := strings.Join(append(permanent, ofWorkers...), " ")
	for r := node.Reason(1); int(r) < node.NumReasons; r++ {
		name := r.String()
		if strings.Contains(" "+reasons+" ", " "+name+" ") {
			continue
		}
		all = append(all, situation{
			name:    name + " passes",
			nodes:   "refuse " + name + " 50, serve | refuse " + name + " 50, serve",
			options: patient, want: "ids 1", least: 2, most: 8,
		})
	}
	for _, name := range permanent {
		all = append(all, situation{
			name:    name + " is the same at every node and time",
			nodes:   "refuse " + name + " | refuse " + name,
			options: patient, want: "refused " + name, least: 1, most: 1, within: soon,
		})
	}
	return append(all, []situation{
		{
			name:    "a node that drains names no delay, and another serves",
			nodes:   "refuse DRAINING | serve",
			options: patient, want: "ids 1", least: 1, most: 4, within: soon,
		},
		{
			name:    "all nodes refuse until the call's time is over",
			nodes:   "refuse CLOCK_SKEW 100 | refuse CLOCK_SKEW 100",
			options: options{TimeoutMs: 2000, AttemptTimeoutMs: 5000},
			want:    "refused CLOCK_SKEW", least: 2, most: 50, within: soon,
		},
		{
			name:    "a refusal says when to come again",
			nodes:   "refuse WINDOW_EXHAUSTED 200",
			options: options{TimeoutMs: 1500, AttemptTimeoutMs: 5000},
			do:      opened(namesDelay),
		},
		{
			name:    "no node can serve an ID that is too far ahead",
			nodes:   "refuse AFTER_TOO_FAR | refuse AFTER_TOO_FAR",
			options: patient, call: call{After: "145000000000000000"},
			want: "refused AFTER_TOO_FAR", least: 1, most: 2, within: soon,
		},
		{
			name:    "an after of another layout",
			nodes:   "refuse INVALID_ID | refuse INVALID_ID",
			options: patient, call: call{After: "1990000000000000000"},
			want: "refused INVALID_ID", least: 1, most: 1, within: soon,
		},
		{
			name:    "a reason of a later version, and another node serves",
			nodes:   "unknown, serve | unknown, serve",
			options: patient, want: "ids 1", least: 2, most: 8, within: soon,
		},
		{
			name:    "64 calls do not ask a refusing node 64 times",
			nodes:   "refuse CLOCK_SKEW 1000, late 50",
			options: patient, call: call{Op: "concurrent", Count: 64},
			want: "ids 64", least: 2, most: 20,
		},
	}...)
}

func failing() []situation {
	return []situation{
		{name: "a node is silent once", nodes: "hang, serve", options: hasty, want: "ids 1", least: 2, within: soon},
		{
			name: "one of two nodes is silent", nodes: "hang | serve",
			options: hasty, want: "ids 1", least: 1, within: soon,
		},
		{
			name: "a node is silent", nodes: "hang",
			options: brief, want: "unavailable|timeout", least: 1, after: 150 * time.Millisecond, within: soon,
		},
		{
			// On a slow machine the deadline may be over before the request is sent.
			name: "a caller's own deadline", nodes: "hang",
			options: options{TimeoutMs: 2000, AttemptTimeoutMs: 1000}, call: call{TimeoutMs: 300},
			want: "timeout", most: 1, after: 250 * time.Millisecond, within: soon,
		},
		{
			name: "the connection is lost before the answer", nodes: "drop, serve",
			options: patient, want: "ids 1", least: 2, most: 4, within: soon,
		},
		{
			name: "the connection is lost in the middle of the answer", nodes: "cut, serve",
			options: patient, want: "ids 1", least: 2, most: 4, within: soon,
		},
		{
			name: "every answer is cut", nodes: "cut",
			options: brief, want: "unavailable|timeout", least: 1, within: soon,
		},
		{
			name: "5,000 IDs whose answer is cut", nodes: "cut, serve",
			options: patient, call: call{Op: "nextMany", Count: 5000},
			want: "ids 5000", least: 2, most: 4, within: soon,
		},
		{name: "nothing listens", nodes: "serve", options: brief, do: nothingListens},
		{name: "nothing listens at one of two addresses", nodes: "serve | serve", options: patient, do: oneListens},
		{name: "a node restarts between two calls", nodes: "serve", options: patient, do: opened(restarts)},
		{name: "a node restarts during a call", nodes: "hang", options: hasty, do: opened(restartsDuring)},
		{
			name: "a proxy without a node, once", nodes: "html 502, serve",
			options: patient, want: "ids 1", least: 2, within: soon,
		},
		{
			name: "a proxy without a node", nodes: "html 502",
			options: brief, want: "unavailable|protocol|timeout", least: 1, within: soon,
		},
	}
}

func breaking() (all []situation) {
	three := call{Op: "nextMany", Count: 3, After: "145000000000000000"}
	for _, f := range []struct {
		act, name string
		not       map[string]string
	}{
		{"fewer", "fewer IDs than asked for", nil},
		{"more", "more IDs than asked for", nil},
		{"lower", "IDs from the past", nil},
		{"same", "one ID again and again", nil},
		{"falling", "IDs in falling order", nil},
		{"layout", "IDs of another layout", map[string]string{"go": "the first answer says which layout a space has"}},
		{"text", "no JSON", notBinary},
		{"numbers", "JSON numbers, which have lost digits", notBinary},
		{"huge", "an answer without an end", notBinary},
	} {
		all = append(all, situation{
			name: f.name, nodes: f.act, not: f.not,
			options: options{TimeoutMs: 3000, AttemptTimeoutMs: 5000}, call: three,
			want: "protocol", least: 1, within: soon,
		}, situation{
			name: f.name + ", once", nodes: f.act + ", serve", not: f.not,
			options: patient, call: three,
			want: "ids 3", least: 2, most: 4, within: soon,
		})
	}
	return append(all,
		situation{
			name:    "a client keeps to the layout of the first answer",
			nodes:   "serve | serve",
			options: patient, do: opened(otherLayout),
		},
		situation{
			name:    "a client keeps to the space of the first answer",
			nodes:   "serve | serve",
			options: patient, do: opened(otherSpace),
		},
		situation{
			name:    "one of two nodes is of another space",
			nodes:   "serve | space",
			options: patient, do: opened(twoSpaces),
		},
		situation{name: "an answer that comes twice", nodes: "twice, serve", options: patient, do: opened(twice)},
	)
}

func arguments() []situation {
	invalid := func(name string, c call) situation {
		return situation{
			name: name, nodes: "serve",
			options: patient, call: c, want: "invalid", most: -1, within: soon,
		}
	}
	return []situation{
		invalid("no IDs", call{Op: "nextMany", Count: 0}),
		invalid("a negative number of IDs", call{Op: "nextMany", Count: -1}),
		invalid("an after that is no ID", call{After: "U00000000000U"}),
		invalid("a negative after", call{After: "-1"}),
		invalid("an after of more than 63 bits", call{After: "18446744073709551615"}),
		{
			name: "an after that has lost digits as a number", nodes: "serve", not: notTyped,
			options: patient, call: call{Op: "number"}, want: "invalid", most: -1, within: soon,
		},
		{name: "a list of nodes that is wrong", nodes: "serve", do: wrongNodes},
		{name: "options that are wrong", nodes: "serve", do: wrongOptions},
		{name: "a token file that others can read", nodes: "serve", not: notOpen, do: openToken},
		{name: "a token is sent, and read again from its file", nodes: "serve", options: patient, do: tokens},
		{
			name: "TLS by an authority of one's own", nodes: "serve",
			secure: true, options: options{TimeoutMs: 3000}, do: trusted,
		},
		{name: "TLS by an authority that is not trusted", nodes: "serve", secure: true, options: brief, do: untrusted},
		{name: "plaintext to a node with TLS", nodes: "serve", secure: true, options: brief, do: plaintext},
		{name: "TLS to a node without", nodes: "serve", options: brief, do: noTLS},
	}
}

func holding() (all []situation) {
	held := options{TimeoutMs: 120_000, AttemptTimeoutMs: 5000, Prefetch: 64, PrefetchMaxAgeMs: 60_000}
	old := held
	old.PrefetchMaxAgeMs = 400
	for _, form := range []string{"flake", "ulid", "uuid"} {
		o := held
		o.PrefetchForm = form
		all = append(all, situation{name: "held IDs as " + form, nodes: "serve", options: o, do: opened(holdsTexts)})
	}
	return append(all, []situation{
		{
			name: "no ID is held without prefetch", nodes: "serve",
			call: call{Op: "nextNow"}, want: "empty|invalid", most: -1,
		},
		{
			name: "no ID is held before a request", nodes: "serve",
			options: held, do: opened(holdsNothing),
		},
		{name: "held IDs are distinct, and above earlier ones", nodes: "serve", options: held, do: opened(holds)},
		{
			name: "held IDs that are too old are dropped", nodes: "serve",
			options: old, do: drops(call{Op: "pause", Ms: 600}),
		},
		{
			name: "held IDs are dropped when the clock leaps", nodes: "serve", not: notClock,
			options: held, do: drops(call{Op: "leap", WallMs: 3_600_000}),
		},
		{
			name: "a forked child does not have its parent's IDs", nodes: "serve",
			options: held, do: opened(forks), not: notForked,
		},
	}...)
}

func others() []situation {
	return []situation{
		{
			name: "a call is canceled", nodes: "hang, serve",
			options: options{TimeoutMs: 120_000, AttemptTimeoutMs: 1000}, do: opened(cancels), not: notAsync,
		},
		{
			name: "one of two calls that share a request is canceled", nodes: "late 400",
			options: patient, do: opened(cancelsOne),
		},
		{name: "a client that is closed", nodes: "serve", options: patient, do: closes},
		{
			name: "close during a call", nodes: "hang",
			options: options{TimeoutMs: 1500, AttemptTimeoutMs: 1000}, do: closesDuring,
		},
		{name: "the watermark", nodes: "serve", options: patient, do: opened(watermark)},
		{name: "the parts of known IDs", nodes: "serve", do: vectors},
	}
}
