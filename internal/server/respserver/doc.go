// Package respserver is the listener for Redis clients: IDs over the Redis protocol
// (RESP, versions 2 and 3), for languages without a client of ours.
//
// Like the other listeners it reads and refuses requests with package server; IDs are
// issued last, and a refusal that reaches a client has changed nothing (I7). An ID is
// always a bulk string and never an integer, since clients read integers into floating
// point.
//
//	server.go    accepting, checking and closing connections
//	conn.go      one connection: read, answer, write
//	ids.go       the commands for IDs
//	commands.go  the commands that clients send about the connection
//	refusal.go   refusals as error replies
//
// One goroutine serves a connection. Requests for one ID that are in the input buffer
// together share a block; their IDs rise in the order of the requests (I2). A block is
// issued only when the output buffer has room for its answers, so a client that does
// not read makes the node issue at most one buffer of IDs for it.
//
// There is no library of servers for it: reading a request safely is 250 lines, and
// limits, back-pressure and draining have to be those of the other listeners. The cost is
// a protocol to maintain: clients change their handshake, and chaos/real/interop has to follow.
package respserver
