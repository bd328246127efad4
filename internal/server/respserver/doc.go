// Package respserver is the listener for Redis clients: IDs over the Redis protocol
// (RESP, versions 2 and 3), for languages without a client of ours.
//
// Like the other listeners it reads and refuses requests with package server; IDs are
// issued last, and a refusal that reaches a client has changed nothing (I7). An ID is
// always a bulk string and never an integer, since clients read integers into floating
// point.
//
//	server.go      accepting, checking and closing connections
//	conn.go        one connection without its I/O: bytes in, bytes out
//	routine.go     a goroutine as the shell of a connection: with TLS, and outside of Linux
//	loop_linux.go  an event loop as the shell of many connections
//	sock_linux.go  the socket of one of them
//	ids.go         the commands for IDs
//	commands.go    the commands that clients send about the connection
//	refusal.go     refusals as error replies
//
// What decides is in conn, which never waits. Requests for one ID that were read together share
// a block; their IDs rise in the order of the requests (I2). A block is issued only when the
// output buffer has room for its answers, so a client that does not read makes the node issue
// at most one buffer of IDs for it.
//
// There is no library of servers for it, nor of event loops: reading a request safely is 250
// lines, a loop 400, and limits, back-pressure and draining have to be those of the other
// listeners. The cost is a protocol to maintain: clients change their handshake, and
// chaos/real/interop has to follow.
package respserver
