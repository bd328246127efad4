// Service is an HTTP service that gives its orders IDs of an allocator cluster.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/prom"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx); err != nil {
		slog.Error("the service failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	delay, err := time.ParseDuration(cmp.Or(os.Getenv("DRAIN"), "3s"))
	if err != nil {
		return err
	}
	timeout, err := time.ParseDuration(cmp.Or(os.Getenv("TIMEOUT"), "2s"))
	if err != nil {
		return err
	}
	secure, err := authorities(os.Getenv("CA_FILE"))
	if err != nil {
		return err
	}
	// One client for the whole program: requests that wait share a call to a node.
	ids, err := client.New(client.Options{
		Targets:   strings.Split(cmp.Or(os.Getenv("NODES"), "127.0.0.1:9000"), ","),
		TLS:       secure,
		TokenFile: os.Getenv("TOKEN_FILE"), // "" where nodes require none
		Timeout:   timeout,                 // all attempts at all nodes together
	})
	if err != nil {
		return err
	}
	defer ids.Close() // after the server, whose last requests still need it

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(prom.New(ids, nil))
	var stopping atomic.Bool
	mux := http.NewServeMux()
	mux.Handle("/", newOrders(ids))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if stopping.Load() || !connected(ids) {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{
		Addr:         cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:8081"),
		Handler:      mux,
		ReadTimeout:  5 * time.Second,
		WriteTimeout: 10 * time.Second,
		IdleTimeout:  time.Minute,
	}

	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Fail the readiness probe first and go on serving, until no load balancer sends
	// requests here any more. Then let the last ones finish.
	stopping.Store(true)
	time.Sleep(delay)
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(within); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// authorities returns how to verify nodes; without a file, they have no TLS.
func authorities(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return &tls.Config{RootCAs: roots}, nil
}

// connected reports whether a node can be asked. Nodes that refuse count: requests then
// get an answer that says when to come again, which is better than none.
func connected(ids *client.Client) bool {
	for _, n := range ids.Stats().Nodes {
		if n.State == "ready" {
			return true
		}
	}
	return false
}
