// Embedded is a program with an allocator of its own, for the harness: a node that
// is package embed in a process, and not `allocator serve`.
//
// It answers POST /v1/ids on one port as a server does, in text only, and metrics and
// probes on another. Its log names the instance, from which the harness knows which
// windows are its own.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
)

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(log); err != nil {
		log.Error("failed", "err", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	cfg := embed.Config{SIDs: embed.All, Logger: log, Settings: map[string]string{}, OpenTimeout: 10 * time.Minute}
	var ids, admin string
	flag.StringVar(&ids, "listen.http", "", "host:port of POST /v1/ids")
	flag.StringVar(&admin, "listen.admin", "", "host:port of metrics and probes")
	flag.StringVar(&cfg.Name, "node.name", "", "name")
	flag.StringVar(&cfg.Space, "space", "", "space")
	flag.StringVar(&cfg.Gossip, "listen.gossip", "", "host:port of gossip")
	flag.Func("etcd.endpoints", "URLs of etcd", func(s string) error {
		cfg.Endpoints = strings.Split(s, ",")
		return nil
	})
	flag.Func("set", "a setting, as key=value", func(s string) error {
		key, value, _ := strings.Cut(s, "=")
		cfg.Settings[key] = value
		return nil
	})
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	a, err := embed.Open(ctx, cfg)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/ids", func(w http.ResponseWriter, r *http.Request) { answer(w, r, a) })
	failed := make(chan error, 2)
	var servers []*http.Server
	for addr, h := range map[string]http.Handler{ids: mux, admin: a.Handler()} {
		s := &http.Server{Addr: addr, Handler: h, ReadHeaderTimeout: 5 * time.Second}
		servers = append(servers, s)
		go func() { failed <- s.ListenAndServe() }()
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	case <-a.Done(): // Close returns why
	}
	quiet, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, s := range servers {
		err = errors.Join(err, s.Shutdown(quiet))
	}
	return errors.Join(err, a.Close())
}

// answer writes IDs, one a line, or a refusal as a server writes it.
func answer(w http.ResponseWriter, r *http.Request, a *embed.Allocator) {
	count, err := strconv.Atoi(r.URL.Query().Get("count"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var after flake.ID
	if text := r.URL.Query().Get("after"); text != "" {
		if after, err = flake.Parse(text); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	b, err := a.BlockAfter(r.Context(), count, after)
	if err != nil {
		refusal, ok := errors.AsType[*client.Refusal](err)
		if !ok { // closed: the connection ends with the program
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refusal.RetryAfter.Seconds()))))
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{"reason": string(refusal.Reason), "detail": refusal.Message})
		return
	}
	out := make([]byte, 0, 21*b.Count)
	for i := range b.Count {
		out = fmt.Appendln(out, b.First+flake.ID(int64(i)*b.Stride))
	}
	_, _ = w.Write(out)
}
