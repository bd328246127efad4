// Package server answers requests: gRPC, HTTP, and the operator's own port.
//
// It is a thin shell around a [node.Node]. It reads a request, asks the node,
// and writes the block or the refusal; codes.go holds the one map from reasons
// to what goes over the wire. So every surface gives the same answer to the same
// request, and a refusal that reaches a client has changed nothing (I7): IDs are
// asked for last, after all that can be wrong with a request was looked at.
//
// No request for IDs waits for etcd. Decoding and the view of the cluster do,
// within deadlines, and say what they do not know where etcd is away.
//
// Only package daemon uses it. It opens no port: it gives the servers and
// handlers to whoever listens.
package server
