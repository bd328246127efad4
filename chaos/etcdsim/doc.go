// Package etcdsim is an etcd in memory that speaks the real API over gRPC: the
// key-value, lease and watch services as far as etcdstore calls them, with
// revisions, compares, history, compaction and leases that end by themselves.
// It runs under testing/synctest, where hours pass in seconds, and each of its
// calls can fail as a test says: before its effect, after it, or late.
//
// One contract test holds it to the real etcd: whatever is relied on here is
// asked of both. What nobody here calls answers UNIMPLEMENTED.
//
// Only tests use it. It keeps nothing, and promises nothing.
package etcdsim
