// Package daemon makes one node from its parts, starts it and stops it.
//
// Start: listen → answer (livez, refusals with STARTING) → connect to etcd → lease a sid →
// ready. The node waits for etcd and for a space that is not initialized. It fails only
// if waiting cannot help: a port in use, a clock that is certainly wrong, a space with
// another layout or epoch.
//
// Stop, one step after the other, each with a timeout:
//
//	readiness off → drain.delay → refuse (DRAINING) → finish requests in flight
//	(10 s) → seal, release the sid, revoke (5 s) → leave gossip → close
//
// Daemon.Run lists the parts in the order of the start; the stop is the reverse. The admin
// port answers almost to the end, so that a stop can be observed.
package daemon
