// Package describe reads an ID in any of its forms and returns what it contains.
//
// It is what the HTTP and gRPC surfaces and the command line share, so that one
// text means one thing everywhere and one mistake has one name. The codecs are
// packages flake and ulid; this one only chooses between them and names their
// errors. It upholds nothing and knows no cluster: who held a sid at the time of
// an ID is in the ledger.
//
// All functions are pure and safe for concurrent use.
package describe
