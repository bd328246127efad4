// Package bench measures the ID formats of this project beside other libraries:
// one list of cases, each a loop over one operation.
//
// It is a module of its own, so that programs which compile the ID formats do not
// get the other libraries. `go test` checks that each case does its work, `go test
// -bench .` runs them one by one, and `go run ./run -peers` runs them in turns and
// compares. Compare ratios within a run; times of different runs or machines are
// not comparable.
package bench
