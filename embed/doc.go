// Package embed makes a Go program a node of its own: it leases a sid and issues
// IDs in process, in some tens of nanoseconds and with no server in between.
//
//	a, err := embed.Open(ctx, embed.Config{
//		Endpoints: []string{"https://etcd-0:2379", "https://etcd-1:2379", "https://etcd-2:2379"},
//		Gossip:    "10.0.0.7:7948",
//	})
//	…
//	defer a.Close()
//	id, err := a.Next(ctx)
//
// Everything that holds for a node holds here, I1 to I8 of docs/DESIGN.md: it is
// the same code. An ID is issued only in time that etcd has confirmed to this
// process, so IDs are unique across all programs and servers of the space,
// whatever crashes, pauses and clocks do; and calls are refused, with the reasons
// that servers give, where they could not be.
//
// # What it costs
//
// Each program holds one of the space's sids: there are 32, or 1,024 in layout
// fleet, for servers and programs together. So
//
//   - programs have a range of sids of their own, 24-31 where nothing else is
//     said. Give servers the rest: sid-range 0-23. Then programs cannot use up
//     the sids of servers, nor servers those of programs;
//   - Open fails with a [*PoolError], which says who holds what, if no sid becomes
//     free in time, and with Config.Reserve before the last ones are taken;
//   - a program that ends without [Allocator.Close] keeps its sid until the lease
//     runs out (15 s), and that sid's next holder starts when the window has
//     passed (30 s after it was last extended). Close frees both at once.
//
// Ranges that overlap by mistake cost order in the pool, never an ID. The default name has
// the process's number, since under one name the second of two live processes would reclaim
// the first one's sid. A program is one more node in every respect: writes, watch, gossip,
// some 40 goroutines and 10 MB. "allocator admin recover" cannot ask it for its highest
// ceiling, and reports that.
//
// Short-lived programs, functions that scale by hundreds, and whatever is
// started more often than once a minute ask servers instead: package client has
// the same methods.
//
// # Other generators
//
// [Allocator.Workers] gives worker numbers to Snowflake libraries of the same program, for
// package worker.
//
// # Clocks
//
// A node compares its clock with the others' by gossip, which is what keeps IDs
// of different nodes in the order of time (I5). With [NoGossip] the program's
// clock is not compared with any: IDs stay unique, and in order among themselves,
// but one whose clock is wrong by an hour issues IDs that are wrong by an hour
// and nobody notices. Beside other nodes it is unconfirmed, whatever they do: it
// serves unverified or, as clock.policy says, not at all after a minute, and
// follows no step of its wall clock until it is opened again. The others do not
// count it when they judge their clocks, but one that is left with no other to
// hear is unconfirmed as well. So keep gossip on where there is more than one node.
//
// # What it does not do
//
// It listens on no port but gossip's, reads no environment unless told to, and
// writes no logs unless given a logger. Metrics and probes are a handler to be
// mounted where the program wishes: [Allocator.Handler].
package embed
