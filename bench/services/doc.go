// Package services measures ways to get an ID from another process: this
// project's nodes, through each of their doors, beside what people use for the
// like, and beside servers that do nothing on the same libraries.
//
// Every server is a process of its own, and so is the client. All cases speak
// through the same clients, written for this where a library's would cost more
// than the server. Cases run in rounds, in another order in each, so that what
// else the machine does hits them alike: ratios within a run mean something,
// figures of two runs beside each other do not.
package services
