// Package keeper is the shell around protocol.Machine: one goroutine feeds it
// events and carries its actions out, against a Store and a Generator.
//
// It adds what the machine does not have: deadlines, goroutines for calls to the
// store, a watch whose events are hints, logs and counters. It decides nothing.
package keeper
