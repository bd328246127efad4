// Package loopback picks ports of 127.0.0.1 that stay free while the program that uses them
// is stopped and started again. Linux and others give port 0, and outgoing connections, ports
// from a range of their own, in which any connection may take a port that was freed.
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// Range is where the ports come from, below those of outgoing connections.
	Range = "127.0.0.1:10000-19999"
	// Any is an address that stands for any port that is free.
	Any       = "127.0.0.1:0"
	firstPort = 10_000
	blocks    = 100
	blockSize = 100
)

// A process gives away ports of blocks that are its own, so that no other process gives away the same. A block is
// owned by who has its first port open over UDP: until the process ends, however it ends.
var (
	picking sync.Mutex // It guards the rest.
	left    []int      // ports of owned blocks that were not given away
	owned   []net.PacketConn
)

// Address returns an address that nothing uses, over TCP or UDP, and gives each away once. If
// it finds none it returns Any. It may be called by several goroutines at once.
func Address() string { return address(Port()) }

// Port returns the port of an Address; 0: it found none.
func Port() int {
	picking.Lock()
	defer picking.Unlock()
	for len(left) > 0 || own() {
		port := left[0]
		if left = left[1:]; free(address(port)) {
			return port
		}
	}
	return 0
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// own makes a block that nobody owns this process' own, and reports whether there was one.
func own() bool {
	for _, b := range rand.Perm(blocks) {
		first := firstPort + b*blockSize
		c, err := net.ListenPacket("udp", address(first))
		if err != nil {
			continue
		}
		owned = append(owned, c)
		for port := first + 1; port < first+blockSize; port++ {
			left = append(left, port)
		}
		return true
	}
	return false
}

// Addresses returns n of them.
func Addresses(n int) (out []string) {
	for range n {
		out = append(out, Address())
	}
	return out
}

// free asks for a refusal, and does not listen itself: a child that is forked while the socket is open holds it until
// it executes its program, and the next to listen gets EADDRINUSE.
func free(addr string) bool { return refused("tcp", addr) && refused("udp", addr) }

// refused reports whether nobody listens. Over UDP the second empty datagram is told what became of the first.
func refused(network, addr string) bool {
	c, err := net.DialTimeout(network, addr, time.Second)
	if err == nil {
		_, _ = c.Write(nil)
		_, err = c.Write(nil)
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
