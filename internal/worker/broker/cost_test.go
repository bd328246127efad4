package broker_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/worker"
	"github.com/flakelease/allocator/internal/worker/broker"
)

// TestThousandWorkers: 1,000 workers of three nodes that extend when they are told to for
// three minutes. Each costs at most 0.25 writes a second and, with the store in memory and
// its history, 20 kB.
func TestThousandWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t)
		const many, minutes = 1000, 3
		var nodes []*broker.Broker
		for range 3 {
			b, _ := c.node(lease.SIDRange{From: 24, To: 24 + many})
			nodes = append(nodes, b)
		}
		before := heap()
		all := make([]worker.Worker, many)
		client := broker.Client{Owner: "shop", Quota: many}
		for i := range all {
			var err error
			if all[i], err = nodes[i%3].Acquire(t.Context(), client, worker.Acquire{Name: fmt.Sprint("worker-", i)}); err != nil {
				t.Fatal(err)
			}
		}
		writes := func() int { return c.faulty.Calls("acquire") + c.faulty.Calls("extend") + c.faulty.Calls("rehold") }
		acquired, began := writes(), c.Now().Wall
		for c.Now().Wall < began+minutes*60_000 {
			for i, w := range all {
				if c.Now().Wall < w.ExtendAt {
					continue
				}
				var err error
				if all[i], err = nodes[(i+int(w.Now/1000))%3].Extend(t.Context(), client, worker.Extend{Handle: w.Handle, NotAfter: w.NotAfter}); err != nil {
					t.Fatalf("worker %d: %v", i, err)
				}
			}
			c.pass(time.Second)
		}
		rate := float64(writes()-acquired) / many / (minutes * 60)
		bytes := float64(heap()-before) / many
		t.Logf("%.3f writes a second and %.1f kB for each worker", rate, bytes/1000)
		if rate > 0.25 || rate < 0.03 {
			t.Errorf("%.3f writes a second for each worker, want at most 0.25", rate)
		}
		if bytes > 20_000 {
			t.Errorf("%.0f bytes for each worker, want at most 20,000", bytes)
		}
		runtime.KeepAlive(nodes)
	})
}

// heap returns the bytes that are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

var (
	_ broker.Store = (*etcdstore.Store)(nil)
	_ broker.Store = (*storetest.Memory)(nil)
)
