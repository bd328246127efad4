package rig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// portPicker picks ports of loopback that nothing uses, each once. They are
// below those that the system gives to outgoing connections, so that a process
// that is started again finds its own free.
type portPicker map[int]bool

// Addresses returns n addresses of loopback that nothing uses, each once.
func Addresses(n int) (addrs []string, err error) {
	ports := portPicker{}
	for range n {
		port, err := ports.pick()
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addrs, nil
}

var errNoPort = errors.New("rig: no free port")

func (p portPicker) pick() (int, error) {
	for range 1000 {
		port := 20_000 + rand.IntN(12_000)
		if p[port] {
			continue
		}
		p[port] = true
		if free(port) {
			return port, nil
		}
	}
	return 0, errNoPort
}

func free(port int) bool {
	addr := fmt.Sprintf("127.0.0.1:%d", port)
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
