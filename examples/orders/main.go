// Orders is a service whose replicas each issue IDs themselves: every replica leases a sid
// of its own from etcd, and asks no server.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx); err != nil {
		slog.Error("the service failed", "err", err)
		os.Exit(1) // the supervisor starts it again
	}
}

func run(ctx context.Context) error {
	drain, err := time.ParseDuration(cmp.Or(os.Getenv("DRAIN"), "3s"))
	if err != nil {
		return err
	}
	ids, err := embed.Open(ctx, embed.Config{
		Endpoints: strings.Split(cmp.Or(os.Getenv("ETCD"), "http://127.0.0.1:2379"), ","),
		Name:      os.Getenv("NAME"), // "": the host's name and the process's number; no two replicas may share one
		// As many sids as there may be replicas, and some for those that died and come
		// again: their old sid is usable 30 s later. No other kind of node may have them.
		SIDs:   cmp.Or(os.Getenv("SIDS"), embed.DefaultSIDs),
		Gossip: os.Getenv("GOSSIP"), // ip:port where other nodes reach this one, to compare clocks
		Env:    os.Environ(),        // ALLOCATOR_ETCD_TLS_CA, ALLOCATOR_GOSSIP_KEY_FILE and all other settings
		Logger: slog.Default(),
	})
	if err != nil {
		return err // no sid is free, or etcd does not answer: it says which, and what to do
	}
	defer func() {
		// After the server. The next replica can have the sid at once.
		if err := ids.Close(); err != nil {
			slog.Error("the sid was not given back: it is free when its lease has run out", "err", err)
		}
	}()

	var stopping atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) { create(w, r, ids) })
	mux.Handle("GET /metrics", ids.Handler())
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		// A replica that would refuse is not ready: others have windows and clocks of their own.
		if err := ids.Ready(); err != nil || stopping.Load() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{
		Addr:         cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:8082"),
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
	case <-ids.Done(): // it will never issue again
		return errors.Join(errors.New("no more IDs"), server.Close(), ids.Close())
	case <-ctx.Done():
	}
	// Fail the readiness probe first and go on serving, until no load balancer sends
	// requests here any more. Then let the last ones finish.
	stopping.Store(true)
	time.Sleep(drain)
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(within); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// create answers with the ID of a new order. Here it would be stored.
func create(w http.ResponseWriter, r *http.Request, ids *embed.Allocator) {
	id, err := ids.Next(r.Context()) // some 40 ns; a refusal changes nothing
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]flake.ID{"id": id})
}

// refuse sends the caller away, and says when to come again. The load balancer or the
// caller may ask another replica at once. Do not make an ID in some other way meanwhile:
// nothing keeps such an ID from being used twice.
func refuse(w http.ResponseWriter, err error) {
	retry := time.Second
	if refusal, ok := errors.AsType[*client.Refusal](err); ok {
		slog.Warn("refused", "reason", refusal.Reason, "message", refusal.Message)
		retry = max(retry, refusal.RetryAfter)
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retry.Seconds()))))
	http.Error(w, "no ID can be had now", http.StatusServiceUnavailable)
}
