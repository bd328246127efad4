// Package console serves the pages that an operator leaves open: the pool of sids, the
// clocks, the node, IDs and events; and where they are enabled, pages that change
// something.
//
// Each page is a table without JavaScript. With it, one module keeps the page current
// from snapshots. All files are embedded, and nothing is requested from elsewhere.
//
// What a page shows is what the node knows; a value that was not read lately is marked
// as stale. Texts from other nodes and from etcd are text, never HTML: templates escape
// them, and the module sets textContent alone.
package console
