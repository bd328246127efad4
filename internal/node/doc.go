// Package node decides whether this process may issue IDs now, and issues them.
//
// It joins three things: the tenure (package gen) that the keeper begins, raises
// and seals; the verdict on the cluster's clocks; and whether the process is
// draining. A request sees all three through one atomic load, reads the clock
// once, and either gets a block or a [Refusal] that changed nothing (I7).
//
// Nothing here waits for etcd, for gossip or for a lock. [Node.Next] adds the
// only wait there is: for the clock to catch up with IDs that ran ahead of it.
package node
