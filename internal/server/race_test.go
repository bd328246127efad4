//go:build race

package server_test

// Under the race detector pools drop some of what they are given.
const raced = true
