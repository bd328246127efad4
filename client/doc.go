// Package client asks allocator nodes for IDs.
//
//	c, err := client.Dial("allocator-0:9000", "allocator-1:9000")
//	…
//	defer c.Close()
//	id, err := c.Next(ctx)
//
// A Client is safe for concurrent use, and meant to be shared: make one for a
// program.
//
// # Modes
//
//	Coalesce  the default. Callers that wait share one request; the next one
//	          forms while one is under way, and nobody is held back to fill it.
//	          An ID is issued after the call for it began.
//	Direct    one request a call.
//	Prefetch  calls are served from blocks that were fetched before: a call costs
//	          nanoseconds, and its ID may be as old as Options.MaxAge.
//
// # Order
//
// A client carries the greatest ID it has given with every request, so its IDs
// rise whichever node answers: a call that begins after another returned gets a
// greater ID. Calls that overlap have no order between them. A node whose clock
// is behind the client's last ID says AFTER_TOO_FAR; another node is asked, or
// the delay that the node gives is waited out. Without a delay, waiting does not
// help: the last ID is further ahead than clocks of one space ever are, and once
// all nodes have said so the call returns the *Refusal. The client stays usable,
// and its calls succeed when time has caught up. Options.Unordered gives all of
// this up.
//
// # Failures
//
// Every target is connected to, and names are looked up again while the client
// lives, one node for each address: with Kubernetes use a headless service. A
// call goes to a node that is connected and has not refused lately; when that time is
// over, one call finds out for all whether the node serves again. When a node
// refuses, cannot be reached or does not answer within Options.AttemptTimeout,
// the call moves on to the next one, until it is served, its context ends or
// Options.Timeout has passed. A request that was lost may have been served: its
// IDs are then nobody's, which harms nothing.
//
// Errors are a *Refusal, with the reason a node gave; ErrUnavailable, where no
// node answered; the context's; or ErrClosed. Faults of the caller, such as a
// count above the limit or a missing token, are returned at once.
//
// # What it does not do
//
// It writes no logs: Stats tells what happened, and package prom turns that into
// metrics. Traces come from Options.DialOptions.
package client
