package clock

import "time"

// Report is what a node knows about its own clock and its peers', for people
// and metrics. It is a copy.
type Report struct {
	Now     Millis // issuing time when the report was made, Unix ms
	Gate    GateStats
	Anchor  AnchorStats
	Kernel  Kernel
	Peers   []PeerReport // by name: whom the clock is judged by, whether they answered or not
	Gossip  int          // live members in gossip, this node included
	Address string       // This node has this address in gossip; empty: it has none.

	// Discontinuities counts samples that contradicted those before, of all
	// peers, also of those that are gone.
	Discontinuities uint64
}

// PeerReport is one peer, as seen from this node.
type PeerReport struct {
	Name     string
	Instance string
	Fresh    bool          // it answered lately: the estimate counts
	Offset   time.Duration // the peer's issuing clock minus ours …
	Error    time.Duration // … give or take this
	Wall     time.Duration // its wall clock minus our issuing clock
	RTT      time.Duration // The last exchange took this long, without the time the peer held it.
	Age      time.Duration // The last exchange is this old.
	SID      int           // The peer reports to hold this sid; -1: none.
	Term     int64
	Verdict  State // its own
	Kernel   Sync
	Stats    PeerStats
}
