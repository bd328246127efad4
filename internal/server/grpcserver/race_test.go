//go:build race

package grpcserver_test

// Under the race detector everything takes more memory.
const raced = true
