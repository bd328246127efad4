// Package sqlid tests the IDs that databases make by themselves, with real nodes, etcd and PostgreSQL.
//
// It tests, and gives nothing to import.
package sqlid
