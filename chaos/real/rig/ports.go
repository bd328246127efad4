package rig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// picked are the ports that this process gave away, each once. They are below those that the
// system gives to outgoing connections and apart from those of devetcd, so that a process
// that is started again finds its own free.
var (
	picking sync.Mutex // It guards picked.
	picked  = map[int]bool{}
)

// Addresses returns n addresses of loopback that nothing uses.
func Addresses(n int) (addrs []string, err error) {
	for range n {
		port, err := pickPort()
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addrs, nil
}

var errNoPort = errors.New("rig: no free port")

func pickPort() (int, error) {
	picking.Lock()
	defer picking.Unlock()
	for range 1000 {
		if port := 26_000 + rand.IntN(6_000); !picked[port] && free(port) {
			picked[port] = true
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
