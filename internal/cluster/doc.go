// Package cluster finds the other nodes of a space and measures their clocks.
//
// It is a shell around hashicorp/memberlist, which carries membership and our
// datagrams. The clock readings are our own timestamped echo: a [Cluster] sends
// every peer a ping each two seconds and passes every reply to [Config.OnExchange], with
// the two local readings that bound it. memberlist's own probes are not used for that:
// they visit one peer a second, and their callback hides how long a reply lay around
// before it is called, an error that no round trip bounds.
//
// Anybody can send to the port of gossip. What comes is checked before memberlist reads
// it, and framing.go has what is known of its wire format for that.
//
// Nothing here keeps IDs apart (I1); it serves how close they are to real time
// (I5). What a peer reports is a hint: readings are bounded by our own round trip,
// and reports of a sid, an era or a revision only make somebody read the store.
//
// Package daemon runs it; it turns each [Exchange] into a sample of package clock.
package cluster
