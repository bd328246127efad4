// Package records has the keys of a space and every transaction on them, as values: what each
// compares, writes and reads. Package etcdstore sends them to etcd; tests and the simulation
// carry the same ones out in memory.
//
//	/<root>/<space>/config               fingerprint of the space
//	/<root>/<space>/era                  era
//	/<root>/<space>/accepted-time        time that an operator accepted
//	/<root>/<space>/mark                 watermark
//	/<root>/<space>/act/<time>-<nonce>   what an operator did, on a lease of an hour
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
package records
