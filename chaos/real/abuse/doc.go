// Command abuse attacks a node of the release build while honest callers use it,
// and judges what those see of it.
//
//	abuse [--short] [--only a,b] [--for 8s] [--memory 256]
//
// The node runs in a control group of so many MiB with the chart's GOMEMLIMIT, with TLS
// and tokens. Each attack is a process of its own, on other addresses of loopback
// than the honest callers. A result is judged beside two baselines of the same
// run: the machine at rest, and with every processor taken by a process that is
// not the node.
//
// Exit code 0: all attacks were within their budgets. 1: one
// was not. 2: wrong usage. 3: the run proves nothing.
package main
