// Package clienttest sends what Redis clients send to the door for them: go-redis,
// redis-cli, redis-benchmark and a client for Node.js.
//
// It is a module of its own, so that no client of another server is in the module
// graph of those who compile against ours. It tests, and gives nothing to import.
package clienttest
