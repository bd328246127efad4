// Package client gets IDs from allocator nodes.
//
//	c, err := client.New(client.Options{Targets: []string{"allocator-0:9000", "allocator-1:9000"}})
//	…
//	defer c.Close()
//	id, err := c.Next(ctx)
//
// "allocator dev" starts nodes to try it with: the target of the first is 127.0.0.1:9000.
//
// A Client is safe for concurrent use and meant to be shared: create one for the
// whole program.
//
// # Modes
//
//	Coalesce  the default. Callers that wait share one request. The next request
//	          forms while one is under way; no call is delayed to fill it. An ID
//	          is issued after the call for it began.
//	Direct    one request for each call. It uses no stream, where it would wait for others.
//	Prefetch  calls are served from blocks that were fetched before: a call costs
//	          nanoseconds, and its ID may be as old as Options.MaxAge.
//
// # Order
//
// A client sends the greatest ID it has returned with every request, so its IDs
// rise whichever node answers: a call that begins after another returned gets a
// greater ID. Calls that overlap have no order between them.
//
// A node whose clock is behind the client's last ID refuses with AFTER_TOO_FAR.
// The client then asks another node, or waits for the delay that the refusal names.
// A refusal without a delay means that waiting does not help: the last ID is further
// ahead than clocks of one space can be. Once all nodes have refused so, the call
// returns the *Refusal. The client stays usable, and its calls succeed when the
// clocks have caught up. With Options.Unordered there is no order, and none of this.
//
// # Failures
//
// The client connects to every target. It looks names up again as long as it lives,
// and connects to each address of a name: in Kubernetes use a headless service. A
// call goes to a node that is connected and has not refused lately. After a node's
// delay has passed, one call tries it for all. When a node refuses, is unreachable
// or does not answer within Options.AttemptTimeout, the call goes on to the next
// node, until it is served, its context ends or Options.Timeout has passed. A lost
// request may have been served: its IDs are then never used.
//
// Errors are a *Refusal, with the reason a node gave; ErrUnavailable, if no node
// answered; the context's; or ErrClosed. Errors of the caller, such as a count above
// the limit or a missing token, are returned at once.
//
// # What it does not do
//
// It writes no logs: Stats has counters, and package prom turns them into metrics.
// Traces come from Options.DialOptions, as the example of Options shows: a library that chose a provider of spans would
// choose for the program. Package clienttest has nodes in memory for the
// tests of a program.
//
// It does not use gRPC's own balancing, which chooses a connection for each call: that
// would go on sending to a healthy node that refuses, and IDs of one client would come
// from nodes in turn, where order costs lead. Behind a load balancer a client sees one
// address and cannot move on from a refusal. A client in Coalesce sends to one node at a
// time, for half a minute to a minute; two requests are outstanding on its stream, so that
// the node is not idle while answers are distributed.
package client
