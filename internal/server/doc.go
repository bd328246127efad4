// Package server turns a request into a call of the [node.Node], and a refusal
// into its form on the wire. The listeners are packages under it, one each:
//
//	grpcserver   gRPC: IDs, streams, decoding, the cluster, draining, health
//	httpserver   the HTTP API
//	adminserver  the operator's port: probes, metrics, profiles
//	respserver   the Redis protocol (RESP)
//
// A listener reads a request, calls the node and writes the block or the refusal.
// What they share is here: the checks of a request for IDs (order.go), the text
// forms of IDs (forms.go), the one map from reasons to the wire (refusal.go), who
// may call (access.go) and the counters (stats.go). So every listener gives the same
// answer to the same request. A refusal that reaches a client has changed nothing
// (I7): the node is called last, after every check of the request.
//
// No request for IDs waits for etcd. Package status answers what does: decoding an
// ID and the view of the cluster, both with deadlines.
//
// These packages open no port. Package daemon gives them their listeners.
package server
