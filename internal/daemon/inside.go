package daemon

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/server/adminserver"
)

// Space reads the node's space from etcd. It may be called while the node runs.
func (d *Daemon) Space(ctx context.Context) (lease.View, error) { return d.etcd.Load(ctx) }

// AdminHandler returns what the admin port answers, for a node without one. It may
// be called once Listening is closed.
func (d *Daemon) AdminHandler() http.Handler {
	return adminserver.New(adminserver.Config{
		Node: d.node, Alive: d.alive, Clocks: d.watch.Report,
		Metrics: promhttp.HandlerFor(d.metrics.Gatherer(), promhttp.HandlerOpts{}),
		Profile: d.cfg.PProf,
	})
}
