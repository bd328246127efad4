// Package respserver is the door for Redis clients: IDs over RESP, the protocol of Redis
// (versions 2 and 3), for languages without a client of ours.
//
// It is a thin shell like package server, on which it stands: requests are read
// and refused by the same words, IDs are asked for last, and a refusal that
// reaches a client has changed nothing (I7). What looks like an ID is a bulk
// string everywhere and an integer nowhere, since clients read integers into
// floating point.
//
//	request.go  bytes to requests: pure, and fuzzed
//	reply.go    replies to bytes: pure
//	conn.go     one connection: read, answer, write
//	ids.go      the commands for IDs
//	client.go   the commands that clients send to find their way
//	server.go   accepting, watching and closing connections
//
// One goroutine serves a connection, from one buffer into another. Requests that
// lie in the buffer together and ask for one ID each share a block; their IDs rise
// in the order in which they were asked for (I2). A block is asked for only when
// there is room for its answers, so a client that does not read makes the node
// issue no more than one buffer full for it.
//
// Only package daemon uses it. It opens no port.
package respserver
