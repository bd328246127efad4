// Package etcdsim is an etcd in memory that speaks the real API over gRPC: the
// key-value, lease and watch services as far as etcdstore calls them, with
// revisions, compares, history, compaction and leases that expire.
// It runs under testing/synctest, where hours pass in seconds, and a test can make
// each call fail: before its effect, after it, or late.
//
// A contract test compares it with the real etcd: both get every request that tests
// rely on. Other requests answer UNIMPLEMENTED. Only tests use it.
package etcdsim
