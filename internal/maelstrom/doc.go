// Package maelstrom runs a node of the unique-ids workload of Maelstrom
// (https://github.com/jepsen-io/maelstrom), a workbench that starts programs,
// carries their messages and breaks the network between them.
//
// The node is the one that serves users: package node issues, package keeper
// leases a sid and reserves windows. Only what is around them differs. Requests
// come as lines of JSON on stdin, and the store is Maelstrom's linearizable
// key-value service, lin-kv, instead of etcd: [Store] is a keeper.Store that
// passes the same contract test as the one on etcd.
//
// # How a space lives under one key
//
// lin-kv compares and sets single keys. A transaction of the protocol compares
// several records, so the whole space is one value: every record by its key, a
// revision that counts as etcd's does, and the leases. A write reads the value,
// checks all compares against it, and sets the new value if the old one is
// still there. No value ever comes twice (each counts the writes before it), so
// a request that arrives late finds something else and does nothing, unless
// nothing at all was written meanwhile. What became of a request without an
// answer is unknown, and reported as such: the keeper reads back, as with etcd.
//
// # How a lease ends without a clock
//
// lin-kv knows no time. A holder renews its lease by counting up a number in
// it. Every other node notes when it first saw that number, by its own
// monotonic clock; one that asks again after the lease's time to live and finds
// the same number ends the lease, together with its own next renewal. No two
// clocks are compared, and a space that nobody looks at keeps its leases.
// As everywhere in this program that is housekeeping: a lease that ends early
// or late makes sids free early or late, and uniqueness (I1) rests on the
// compare of window records (I4) and on confirmed ceilings (I3) alone.
//
// # What is not here
//
// Nodes do not compare clocks: there is no gossip, and IDs count as unverified.
// Maelstrom itself needs a JVM and libraries that our tests do not have, and it
// was not run by us. Package maelstromtest speaks the same protocol from the
// other side, and has faults Maelstrom's own partition does not: it cuts nodes
// off from lin-kv too.
//
// Only cmd/allocator starts a node.
package maelstrom
