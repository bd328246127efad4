// Package rig is a cluster of real processes for fault injection: three etcd
// members, allocator nodes of the release build, and what is needed to see and
// to break them.
//
// Nothing in the processes knows of it. Each runs in a [Place]: the machine's
// loopback, or a network namespace of its own behind a software switch; and, if
// the machine allows it, behind a hook that shows it other clocks. What a machine
// does not allow is named in Rig.Cannot, and a fault that needs it does not count as
// passed.
//
// A Rig ends every process that it started when it is closed; should the harness
// die first, the kernel does.
package rig
