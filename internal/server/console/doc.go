// Package console serves the pages that an operator leaves open: the pool of sids, the
// clocks, the node, IDs and events; and where they are enabled, pages that change
// something.
//
// Each page is a table without JavaScript. With it, the server sends the elements that
// changed as its templates write them, and one module puts each where the one with its ID
// is: there is no second form of a table, and none of how a number is written. Lines over
// time and the timeline are drawn from data. All files are embedded, and nothing is
// requested from elsewhere.
//
// What a page shows is what the node knows; a value that was not read lately is marked
// as stale. Texts from other nodes and from etcd are text, never HTML: templates escape
// them, and nothing runs that a template did not write: the policy of each page forbids it.
package console
