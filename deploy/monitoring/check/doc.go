// Package check holds the checks of the alerts and the dashboard against nodes that
// run: each expression is read by Prometheus' own parser, and each series, label and
// value in it has to be one that nodes expose.
//
// It is a module of its own, so that the parser is not what the product needs. With
// -live it also runs a Prometheus, breaks things, and waits for the alerts; that is
// part of «make monitoring-test».
package check
