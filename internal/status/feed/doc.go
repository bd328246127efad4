// Package feed turns what the core of a node reports into events for people, and keeps
// the latest of them for streams.
//
// [Transitions] is a pure function of two states: an event is what differs between them.
// Nothing is read from logs. A state has counters beside flags, so that what began and
// ended between two observations is still seen.
//
// A [Feed] is bounded in entries, bytes and streams. A stream has no queue: it reads the
// entries of all, so a slow one costs the others nothing, and is told how many it missed.
// It does no I/O and waits for nothing; listeners write to clients.
package feed
