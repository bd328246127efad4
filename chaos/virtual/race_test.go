//go:build race

package virtual

// raced: the race detector costs five times the time and more, so less is done.
const raced = true
