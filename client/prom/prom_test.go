package prom_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/prom"
)

func TestMetrics(t *testing.T) {
	c, err := client.New(client.Options{Targets: []string{"127.0.0.1:1", "127.0.0.1:2"}, Timeout: 50 * time.Millisecond})
	fatal.If(t, err)
	defer c.Close()
	if _, err := c.Next(context.Background()); err == nil {
		t.Fatal("a node answered")
	}
	collector := prom.New(c, prometheus.Labels{"client": "test"})
	registry := prometheus.NewPedanticRegistry()
	fatal.If(t, registry.Register(collector))
	problems, err := testutil.CollectAndLint(collector)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	const want = `
# HELP allocator_client_connected 1 for nodes that are connected, 0 for others, by the node's address.
# TYPE allocator_client_connected gauge
allocator_client_connected{client="test",node="127.0.0.1:1"} 0
allocator_client_connected{client="test",node="127.0.0.1:2"} 0
# HELP allocator_client_dropped_ids_total IDs that no call returned: their callers had gone (abandoned), or they were older than MaxAge (stale).
# TYPE allocator_client_dropped_ids_total counter
allocator_client_dropped_ids_total{client="test",reason="abandoned"} 0
allocator_client_dropped_ids_total{client="test",reason="stale"} 0
# HELP allocator_client_ids_total IDs that calls returned.
# TYPE allocator_client_ids_total counter
allocator_client_ids_total{client="test"} 0
`
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want),
		"allocator_client_connected", "allocator_client_dropped_ids_total", "allocator_client_ids_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(collector); n != 1+1+1+2+2*5 {
		t.Errorf("%d metrics", n)
	}
}
