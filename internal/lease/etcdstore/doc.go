// Package etcdstore keeps a space in etcd: it sends the transactions of package records, and has
// what etcd alone is asked: leases, watches, members and their upkeep. It is the only package that
// imports etcd's client.
package etcdstore
