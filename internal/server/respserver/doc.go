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
// There is no library of servers for it, nor of event loops: limits, back-pressure and draining have to be those of
// the other listeners. A request costs the loop 8.2 µs of processor time, 0.53 at depth 16; package net 10.9 and 0.72,
// gnet 11.3 and 0.71, Redis 8.3 and 0.90. To read all connections before the first write, as Redis does, saved nothing:
// 0.89 and 0.56 of Redis' time with both, in 4 rounds. io_uring and busy polling were not tried: the best gain known is
// 6.5 %, in C. If Go's runtime polls the sockets too, each byte wakes a thread, so they leave package net. A slow
// command delays its loop, by 4 KiB of requests or 16 KiB of answers.
package respserver
