// Outbox stores orders and their events in one transaction of PostgreSQL, and relays the
// events from there: each at least once, and those of an order in order.
//
//	outbox serve    POST /orders, POST /orders/{id}/pay
//	outbox relay    writes events to stdout, where you have a broker
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:]); err != nil {
		slog.Error("outbox failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	settings, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	// The locks of a program whose machine is gone end after a minute.
	settings.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "60s"
	db, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := createTables(ctx, db); err != nil {
		return fmt.Errorf("create tables: %w", err)
	}
	switch strings.Join(args, " ") {
	case "serve":
		return serve(ctx, db)
	case "relay":
		return relay(ctx, db, printer(os.Stdout))
	}
	return errors.New("want serve or relay")
}

func serve(ctx context.Context, db *pgxpool.Pool) error {
	ids, err := client.New(client.Options{
		Targets: strings.Split(cmp.Or(os.Getenv("NODES"), "127.0.0.1:9000"), ","),
		Timeout: 2 * time.Second, // orders are locked meanwhile
	})
	if err != nil {
		return err
	}
	defer ids.Close()
	server := &http.Server{
		Addr:         cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:8084"),
		Handler:      (&orders{db: db, ids: ids}).handler(),
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
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return server.Shutdown(within) // ../service shows readiness too
}

func (o *orders) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		id, err := o.create(ctx)
		if err != nil {
			fail(w, err)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]flake.ID{"id": id})
	})
	mux.HandleFunc("POST /orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		id, err := flake.Parse(r.PathValue("id"))
		if err == nil {
			err = o.change(ctx, id, "paid")
		}
		if err != nil {
			fail(w, err)
		}
	})
	return mux
}

// fail answers a request whose transaction was rolled back, or perhaps not, if its commit
// got no answer: paying twice does no harm.
func fail(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		http.Error(w, "no such order", http.StatusNotFound)
	case errors.Is(err, flake.ErrLength) || errors.Is(err, flake.ErrAlphabet) || errors.Is(err, flake.ErrRange):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default: // a refusal, or the database: come again
		slog.Error("request failed", "err", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}

// printer writes events as lines. In its place a broker's client waits until the broker
// has confirmed all of them.
func printer(out io.Writer) func(context.Context, []event) error {
	lines := json.NewEncoder(out)
	return func(_ context.Context, events []event) error {
		for _, e := range events {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
}
