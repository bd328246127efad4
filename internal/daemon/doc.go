// Package daemon makes one node out of the parts, starts it and stops it.
//
// Starting: listen → answer (livez, refusals with STARTING) → connect to etcd →
// lease a sid → ready. Nothing that is missing ends the process: etcd that does
// not answer and a space that nobody initialised are waited for. Only what no
// wait can cure does: a port in use, a clock that cannot be right, a space with
// another layout or epoch.
//
// Stopping is in order, each step with a deadline:
//
//	readiness off → drain.delay → refuse (DRAINING) → finish requests in flight
//	(drain.timeout) → seal, give the sid back, revoke (stop.timeout) → close
//
// The admin port answers to the last, so that a stop can be watched.
package daemon
