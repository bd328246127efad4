package loopback

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
)

// TestAddress: each address is free, below the ports of outgoing connections, and given once,
// whoever asks.
func TestAddress(t *testing.T) {
	var mu sync.Mutex // It guards seen.
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				a := Address()
				mu.Lock()
				if seen[a] {
					t.Errorf("%s was given twice", a)
				}
				seen[a] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for a := range seen {
		at, err := net.ResolveTCPAddr("tcp", a)
		if err != nil || at.Port < 10_000 || at.Port >= 20_000 || !at.IP.IsLoopback() {
			t.Errorf("%q, %v: want a port of loopback from 10000 to 19999", a, err)
		}
	}
}

// TestTaken: what a program listens on is not free, over either protocol.
func TestTaken(t *testing.T) {
	tcp, udp := Address(), Address()
	l, err := net.Listen("tcp", tcp)
	fatal.If(t, err)
	defer l.Close()
	u, err := net.ListenPacket("udp", udp)
	fatal.If(t, err)
	defer u.Close()
	if free(tcp) || free(udp) {
		t.Error("an address that is in use is called free")
	}
}

// TestForks: a probe leaves nothing at the port, while other goroutines start processes.
func TestForks(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var forking sync.WaitGroup
	for range 4 {
		forking.Go(func() {
			for ctx.Err() == nil {
				_ = exec.Command(os.Args[0], "-test.run", "^$").Run()
			}
		})
	}
	addr, held := Address(), 0
	for range 3000 {
		if !free(addr) {
			held++
		}
	}
	stop()
	forking.Wait()
	if held > 0 {
		t.Errorf("of 3000 probes %d found the port in use", held)
	}
}

// TestProcesses: processes that pick at the same time pick different ports.
func TestProcesses(t *testing.T) {
	const picker, each = "PICKER", 500
	if os.Getenv(picker) != "" {
		os.Stdout.WriteString(strings.Join(Addresses(each), "\n") + "\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // until all have picked
		return
	}
	by := map[string]int{}
	for i := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestProcesses$")
		cmd.Env = append(os.Environ(), picker+"=1")
		in, err := cmd.StdinPipe()
		fatal.If(t, err)
		defer in.Close()
		for _, addr := range strings.Fields(proc.Run(t, cmd).Prints(t, fmt.Sprintf(`^(127\.0\.0\.1:1\d+\n){%d}`, each))[0]) {
			if other, taken := by[addr]; taken {
				t.Errorf("process %d picked %s, as process %d did", i, addr, other)
			}
			by[addr] = i
		}
	}
}
