//go:build race

package sim_test

// One goroutine has no races, and looking for them costs tenfold.
const defaultSeeds = 12
