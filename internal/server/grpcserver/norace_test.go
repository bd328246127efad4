//go:build !race

package grpcserver_test

const raced = false
