// Package lease has the words of the lease protocol, which decides who may use a sid
// and which milliseconds are theirs: the records in etcd, views of them, the guarded
// writes that change them, and the events and actions between a node's machine and
// its shell.
//
// Package protocol decides; packages keeper and etcdstore carry out. Nothing here reads a
// clock, sleeps or does I/O. Events and actions are here and not in protocol: session,
// history and marker use them too, and protocol imports these.
package lease
