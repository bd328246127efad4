// Package protocol is one process's side of the lease protocol: [Machine.Step] takes
// what happened and the time, and returns what to do.
//
// A node takes a sid by writing its window record to etcd: a half-open range of
// milliseconds [base, ceil). It raises the ceiling while it lives and lowers it
// to the last ID issued when it leaves. Every write compares the record it
// replaces with the one last seen, and that compare alone keeps windows of one
// sid disjoint and rising (I4). A millisecond is used only once the write of a
// ceiling above it has been confirmed to this process (I3). Together they make
// IDs unique (I1), whatever clocks, leases and pauses do.
//
// The package is pure. Package keeper carries the actions out, and package
// etcdstore knows how etcd is asked. Nothing here reads a clock, sleeps or does I/O.
package protocol
