// Package bench measures the ID formats of this project beside the libraries
// people use for the like: one list of cases, each a loop over one operation.
//
// It is a module of its own, so that nobody who compiles against the ID formats
// gets the libraries too. «go test» checks that each case does its work, «go
// test -bench .» runs them one by one, and «go run ./ratios» runs them in turns
// and compares. Figures of different runs or machines say nothing about each
// other; ratios within a run do.
package bench
