// Package etcdstore keeps the records of a space in etcd. It is the only package
// that imports etcd's client or knows its keys:
//
//	/<root>/<space>/config               fingerprint of the space
//	/<root>/<space>/era                  era
//	/<root>/<space>/node/<instance>      registration, on the process's lease
//	/<root>/<space>/holder/<sid>         holder, on the process's lease
//	/<root>/<space>/window/<sid>         window, never deleted
//	/<root>/<space>/ledger/<sid>/<term>  ledger line, the last 64 of each sid
//
// A sid is decimal; a term has 20 digits, so that terms sort as text. Other keys
// under the prefix are ignored.
//
// I4 depends on one thing here: every write of a window compares both the revision
// and the bytes of the record it replaces. Only the response to a transaction
// shows its outcome; after an error a write may have been applied, or may still be.
package etcdstore
