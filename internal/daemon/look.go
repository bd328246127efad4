package daemon

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/server"
)

// Look reads the space that cfg names without being a node of it. ctx must have a
// deadline. The errors are the store's.
func Look(ctx context.Context, cfg config.Config, log *slog.Logger) (lease.View, error) {
	store, done, err := openStore(cfg, log)
	if err != nil {
		return lease.View{}, err
	}
	defer done()
	return store.Load(ctx)
}

// openStore connects to etcd for a single purpose; done ends that.
func openStore(cfg config.Config, log *slog.Logger) (store *etcdstore.Store, done func(), err error) {
	dial, err := DialConfig(cfg.Etcd, log)
	if err != nil {
		return nil, nil, err
	}
	client, err := etcdstore.Dial(dial)
	if err != nil {
		return nil, nil, err
	}
	done = func() { _ = client.Close() }
	if store, err = etcdstore.New(client, cfg.Root, cfg.Space); err != nil {
		done()
		return nil, nil, err
	}
	return store, done, nil
}

// Space reads the node's space from etcd. It may be called while the node runs.
func (d *Daemon) Space(ctx context.Context) (lease.View, error) { return d.etcd.Load(ctx) }

// AdminHandler returns what the admin port answers, for a node without one. It may
// be called once Listening is closed.
func (d *Daemon) AdminHandler() http.Handler {
	return d.server.AdminHTTP(server.Admin{
		Alive:   d.alive,
		Metrics: promhttp.HandlerFor(d.metrics.Gatherer(), promhttp.HandlerOpts{}),
		Profile: d.cfg.PProf,
	})
}
