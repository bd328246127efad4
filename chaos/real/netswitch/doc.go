// Package netswitch is a network in which each program has a machine's worth of
// addresses and ports to itself, and whose wires can be cut, slowed and made to
// lie, one direction and one port at a time.
//
// A [Host] is a network namespace of Linux with a loopback, one TUN device and one
// address. All that a program in it sends to another host comes out of its device
// into this process, which looks at the packet, does to it what the faults say that
// apply, and puts what is left into the other host's device. The programs are
// unmodified; so is the kernel's TCP between them. No packet leaves this process
// for the machine's own network: the hosts have no route to it.
//
// It needs Linux, /dev/net/tun and the right to make network namespaces. Root has
// it, and so has a user who may make user namespaces: [Enter] moves the program into one.
// Elsewhere it returns [ErrUnsupported] with the reason, and faults of the network
// cannot be run; loopback is then what is left.
//
// # Faults
//
// A [Fault] is an [Effect] on the packets of some ordered pairs of hosts that a
// [Match] admits. Faults add up: a packet suffers those of its pair in the order in
// which they were applied, until one of them takes it away. Each counts what it has
// done: one with a zero count has not been a test of anything.
//
// Chance is drawn from the switch's seed, for each ordered pair apart: the n-th
// packet of a pair has the same luck in each run, as far as the programs send the
// same packets in the same order.
//
// # Threads
//
// A namespace belongs to a thread. [Host.Do] runs a function on one inside the
// host; what it starts there (with a hook on its clocks or without) and what sockets it
// opens there stay there. That thread lives until Close, and so may be the parent
// that a process with Pdeathsig dies with.
package netswitch
