// Package check holds the checks of the alerts and the dashboard against running
// nodes: Prometheus' own parser reads each expression, and nodes must expose each
// series, label and value in it.
//
// With -live it also runs a Prometheus, injects faults, and waits for the alerts; `make
// chart` does that.
package check
