// Package chaos runs real clusters, makes real faults happen to them, and checks
// the claims of docs/DESIGN.md on what they answered.
//
// The allocator processes are the unmodified program, started as an operator
// would. etcd is the real server in a process of its own. Nothing in the product
// knows that it is being tested.
package chaos
