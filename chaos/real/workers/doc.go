// Package workers shows, with real processes, that a Snowflake library with a worker number
// makes no ID twice, and that it does where nobody asks and nothing stops it.
//
// Two fleets live through the same faults at once, each in a space of its own of one etcd.
// In the careful one, two programs ask package worker about each ID, one asks the file of
// its runner, and one asks nobody and is stopped by its runner. In the careless one the same
// programs make the same IDs, and neither ask nor have a runner: it must have duplicates,
// or the run shows nothing about the careful one.
package workers
