package dev

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
)

// What dev prints of a node holds the clocks of all others, but those known to
// be false.
func TestOthers(t *testing.T) {
	peer := func(name string, offset, give time.Duration) clock.PeerReport {
		return clock.PeerReport{Name: name, Fresh: true, Offset: offset, Error: give}
	}
	silent := peer("c", time.Hour, 0)
	silent.Fresh = false
	r := clock.Report{Peers: []clock.PeerReport{silent, peer("d", time.Minute, 0)}}
	r.Gate.Judgement.Falsetickers = []string{"d"}
	if _, _, ok := others(r); ok {
		t.Error("clocks of a silent and a false node count")
	}
	r.Peers = append(r.Peers, peer("a", -2*time.Millisecond, time.Millisecond), peer("b", 4*time.Millisecond, time.Millisecond))
	if offset, within, ok := others(r); !ok || offset != time.Millisecond || within != 4*time.Millisecond {
		t.Errorf("got %v ±%v (known %v), want 1ms ±4ms", offset, within, ok)
	}
}

// etcd itself waits without a limit for data that another process has open.
func TestDataDirInUse(t *testing.T) {
	dir := t.TempDir()
	other, err := etcdserver.Start(t.Context(), etcdserver.Alone{Dir: dir, NoSync: true})
	fatal.If(t, err)
	var stderr strings.Builder
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(context.WithoutCancel(t.Context()), []string{"dev", "--data-dir", dir}, strings.NewReader(""), io.Discard, &stderr, nil, "", root)
	}()
	select {
	case code := <-ended:
		if code != cli.ExitInvalid || !strings.Contains(stderr.String(), "--data-dir "+dir+" is in use") {
			t.Errorf("exit code %d: %s", code, stderr.String())
		}
	case <-time.After(wait.Most):
		t.Error("still waiting")
	}
	_ = other.Close()
}
