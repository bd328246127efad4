// Package loopback picks ports of 127.0.0.1 that stay free while the program that uses them
// is stopped and started again. Linux and others give port 0, and outgoing connections, ports
// from a range of their own, in which any connection may take a port that was freed.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The ports are below the range of outgoing connections, and apart from those of devetcd: an
// etcd that took the port of a stopped one would answer its clients.
const (
	firstPort = 10_000
	ports     = 10_000
	attempts  = 1000
)

// picked are the ports that this process gave away, each once.
var (
	picking sync.Mutex // It guards picked.
	picked  = map[int]bool{}
)

// Any is an address that stands for any port that is free.
const Any = "127.0.0.1:0"

// Address returns an address that nothing uses, over TCP or UDP, and gives each away once. If
// it finds none it returns Any. It may be called by several goroutines at once.
func Address() string {
	picking.Lock()
	defer picking.Unlock()
	for range attempts {
		port := firstPort + rand.IntN(ports)
		if addr := fmt.Sprintf("127.0.0.1:%d", port); !picked[port] && free(addr) {
			picked[port] = true
			return addr
		}
	}
	return Any
}

// Addresses returns n of them.
func Addresses(n int) (out []string) {
	for range n {
		out = append(out, Address())
	}
	return out
}

func free(addr string) bool {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	return u.Close() == nil
}
