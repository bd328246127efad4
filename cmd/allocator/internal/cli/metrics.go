package cli

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
)

// MetricsFlag adds --metrics, and returns its value.
func MetricsFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("metrics", "",
		"`host:port` to serve /metrics and /healthz on, to everybody; unless given, none")
}

// Series is a series that is served of each T.
type Series[T any] struct {
	name, help string
	kind       prometheus.ValueType
	value      func(T) float64
}

// Gauge returns a series that rises and falls.
func Gauge[T any](name, help string, value func(T) float64) Series[T] {
	return Series[T]{name, help, prometheus.GaugeValue, value}
}

// Counter returns a series that only rises.
func Counter[T any](name, help string, value func(T) float64) Series[T] {
	return Series[T]{name, help, prometheus.CounterValue, value}
}

// Collector makes the series of all T at the time of a scrape.
type Collector[T any] struct {
	Labels []string
	Series []Series[T]
	All    func(yield func(of T, labels ...string)) // calls yield for each T, with the values of Labels
	Err    func(T) error                            // returns what failed of a T last time
	Other  error                                    // That another process does the work of a T is no failure.
}

// Describe implements prometheus.Collector.
func (c Collector[T]) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range c.Series {
		ch <- prometheus.NewDesc(s.name, s.help, c.Labels, nil)
	}
}

// Collect implements prometheus.Collector.
func (c Collector[T]) Collect(ch chan<- prometheus.Metric) {
	c.All(func(of T, labels ...string) {
		for _, s := range c.Series {
			ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(s.name, s.help, c.Labels, nil), s.kind, s.value(of),
				labels...)
		}
	})
}

// problem returns why the first T that is not healthy is not.
func (c Collector[T]) problem() (problem error) {
	c.All(func(of T, _ ...string) {
		if err := c.Err(of); !errors.Is(err, c.Other) {
			problem = cmp.Or(problem, err)
		}
	})
	return problem
}

// Serve serves /metrics and /healthz at an address until stop is called; at "" it serves nothing.
func (c Collector[T]) Serve(ctx context.Context, address string, log *slog.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, UsageError("--metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.problem(); err != nil {
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
