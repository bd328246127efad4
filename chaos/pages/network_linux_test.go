package pages

import (
	"net"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

func TestOwnNetwork(t *testing.T) {
	prepared, ok := OwnNetwork(t, func() string { return "made outside" })
	if !ok {
		return
	}
	if prepared != "made outside" {
		t.Errorf("prepared is %q", prepared)
	}
	if all, err := net.Interfaces(); err != nil || len(all) != 1 || all[0].Flags&net.FlagUp == 0 {
		t.Errorf("interfaces: %v, %v", all, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:9000")
	fatal.If(t, err)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
