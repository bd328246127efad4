package cli

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ServeMetrics serves /metrics and /healthz at an address until stop is called; at "" it serves nothing.
func ServeMetrics(
	ctx context.Context, address string, of prometheus.Collector, healthy func() error, log *slog.Logger,
) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(of, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{
		Handler:        NoSniff(mux),
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   10 * time.Second,
		MaxHeaderBytes: 8 << 10,
	}
	log.Info("serves metrics", "address", l.Addr().String())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // It ends when it is closed.
	}()
	return func() { _ = server.Close(); <-ended }, nil
}
