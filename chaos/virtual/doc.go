// Package virtual tests whole nodes in virtual time: daemons as they are built
// for production, with etcd's own client, gRPC on both sides and memberlist, on
// connections in memory, inside a synctest bubble. Hours pass in seconds, so
// stories can be long, and every call of a life can be made to fail in turn.
//
// All that is not real: the etcd (package etcdsim, which a contract test holds
// to the real one), the network, and the clocks of the machines.
package virtual
