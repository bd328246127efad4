package main

import "time"

// table returns all situations.
func table() []situation {
	return []situation{
		{
			name: "one ID from one node", nodes: "serve",
			want: "ids 1", least: 1, most: 1,
		},
		{
			name: "5,000 IDs in one round trip", nodes: "serve",
			call: call{Op: "nextMany", Count: 5000},
			want: "ids 5000", least: 1, most: 1,
		},
		{
			name:  "two nodes refuse a skewed clock once",
			nodes: "refuse CLOCK_SKEW 50, serve | refuse CLOCK_SKEW 50, serve",
			want:  "ids 1", least: 2, most: 4,
		},
		{
			name: "no node would serve without a token", nodes: "refuse UNAUTHENTICATED | refuse UNAUTHENTICATED",
			options: options{TimeoutMs: 40_000},
			want:    "refused UNAUTHENTICATED", least: 1, most: 1, within: 20 * time.Second,
		},
		{
			name: "64 calls at once share requests", nodes: "late 50, serve",
			call: call{Op: "concurrent", Count: 64},
			want: "ids 64", least: 1, most: 16,
		},
	}
}
