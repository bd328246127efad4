// Package virtual tests whole nodes in virtual time: daemons as they are built
// for production, with etcd's own client, gRPC on both sides and memberlist, on
// connections in memory, inside a synctest bubble. Hours pass in seconds, so
// scenarios can be long, and each call to etcd can fail in turn.
//
// Only these are not real: etcd (package etcdsim, which a contract test compares
// with the real one), the network, and the clocks of the machines.
package virtual
