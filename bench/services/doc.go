// Package services measures ways to get an ID from another process: this
// project's nodes by each of their APIs, other services that people use for that,
// and servers that do nothing on the same libraries.
//
// Every server is a process of its own, and so is the client, whose loop and
// measurements are chaos/load's. Its connections are written for this where a
// library's would cost more than the server. Cases run in rounds, in another order
// in each, so that other load on the machine affects them alike: ratios within a
// run are meaningful, comparisons between two runs are not.
package services
