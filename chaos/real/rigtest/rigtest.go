// Package rigtest starts a rig for a test: three nodes and etcd in processes of their own.
package rigtest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
)

// Programs is the directory that programs are built into.
var Programs string

// Main runs the tests of a package.
func Main(m *testing.M) {
	var err error
	if Programs, err = os.MkdirTemp("", "rigtest"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(Programs)
	os.Exit(code)
}

// programs builds the allocator and etcd once.
var programs = sync.OnceValues(func() (p struct{ allocator, etcd string }, err error) {
	if p.allocator, err = build.Allocator(context.Background(), Programs); err == nil {
		p.etcd, err = build.Etcd(context.Background(), Programs)
	}
	return p, err
})

// New returns a rig that is closed when the test ends. Its nodes are not started.
func New(t *testing.T, timing rig.Timing, clocks bool) *rig.Rig {
	t.Helper()
	p, err := programs()
	fatal.If(t, err)
	r, err := rig.New(rig.Config{
		Dir:       t.TempDir(),
		Nodes:     3,
		Etcd:      p.etcd,
		Allocator: p.allocator,
		Format:    flake.Default,
		Timing:    timing,
		Clocks:    clocks,
	})
	fatal.If(t, err)
	for _, why := range r.Cannot {
		t.Logf("not supported on this machine: %s", why)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		for _, n := range r.Nodes {
			Log(t, n.Process)
		}
	})
	return r
}

// Addresses are those of the nodes, for gRPC.
func Addresses(r *rig.Rig) (all []string) {
	for _, n := range r.Nodes {
		all = append(all, n.GRPC)
	}
	return all
}

// Log shows the end of a program's log, if the test has failed.
func Log(t *testing.T, p *rig.Process) {
	t.Helper()
	if log := p.Output(p.Run()); t.Failed() {
		t.Logf("--- end of %s's log\n%s", p.Name, log[max(0, len(log)-3000):])
	}
}

// Wait waits until d is over, or ctx ends.
func Wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
