// Package quota bounds what the connections of clients cost a node, whether or not
// anybody has been identified on them.
//
// There are three bounds, and each has one rule:
//
//   - Memory. Every connection holds a fixed amount, and what its unfinished calls hold
//     is added (frames.go counts it for HTTP/2), and answers until they are read. When all
//     of them together exceed the budget, connections with unfinished calls or unread
//     answers are closed: those with most, of the source that holds most.
//   - Work. A connection, a frame, a failed call: each costs its source tokens, and a
//     valid call pays for eight. A connection without tokens is not read until its
//     source has some again. So a client whose calls are valid is never delayed, and
//     everything else is read at the rate of its source.
//   - Places. A listener and each source have a maximum of connections. When it is
//     reached, the oldest connection on which no call has been valid makes room. Some
//     places are kept for loopback and for sources with valid calls, and some for sources
//     with few connections.
//
// A source is an IPv4 address, the /64 of an IPv6 address, or at a Unix socket a user. What counts as a valid
// call is decided by the listeners, which call Conn.Valid.
package quota
