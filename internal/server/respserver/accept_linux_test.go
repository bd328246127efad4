package respserver_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/internal/server/respserver"
)

// TestAcceptedOptions: connections that a loop accepts have the options that package net gives them.
func TestAcceptedOptions(t *testing.T) {
	got := make(chan [3]int, 1)
	respserver.OnAccept(t, func(fd int) {
		noDelay, _ := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY)
		keepAlive, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		idle, _ := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		got <- [3]int{noDelay, keepAlive, idle}
	})
	newFixture(t).serve(nil).dial()
	if options := <-got; options != [3]int{1, 1, 15} {
		t.Errorf("no delay, keep-alive and its seconds are %v", options)
	}
}
