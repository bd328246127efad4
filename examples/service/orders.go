package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// order is what clients send and get. In JSON the ID is a string: numbers of JavaScript
// have 53 bits.
type order struct {
	ID   flake.ID `json:"id"`
	Item string   `json:"item"`
}

type orders struct {
	ids *client.Client
	mu  sync.Mutex         // guards all
	all map[flake.ID]order // your database: see ../outbox
}

func newOrders(ids *client.Client) http.Handler {
	o := &orders{ids: ids, all: map[flake.ID]order{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", o.create)
	mux.HandleFunc("GET /orders/{id}", o.get)
	return mux
}

// create makes an order. With ?after=X its ID is greater than X, whichever node or
// replica of this service made X, and however their clocks differ. A caller that sends
// the last ID it has seen gets its orders in the order in which it made them. A caller
// that sends an ID from the future is refused, and nobody else is.
func (o *orders) create(w http.ResponseWriter, r *http.Request) {
	var made order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&made); err != nil || made.ID != 0 {
		http.Error(w, `want {"item": "…"}`, http.StatusBadRequest)
		return
	}
	var after flake.ID
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = flake.Parse(text); err != nil {
			http.Error(w, "after: "+err.Error(), http.StatusBadRequest)
			return
		}
	}
	var err error
	if made.ID, err = o.ids.NextAfter(r.Context(), after); err != nil {
		refuse(w, err)
		return
	}
	o.mu.Lock()
	o.all[made.ID] = made
	o.mu.Unlock()
	reply(w, http.StatusCreated, made)
}

func (o *orders) get(w http.ResponseWriter, r *http.Request) {
	id, err := flake.Parse(r.PathValue("id"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	found, ok := o.all[id]
	o.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	reply(w, http.StatusOK, found)
}

// refuse answers a call that got no ID. The client has already tried every node, for as
// long as Options.Timeout says. Nothing was stored, so the caller may just come again.
func refuse(w http.ResponseWriter, err error) {
	retry := time.Second
	if refusal, ok := errors.AsType[*client.Refusal](err); ok {
		if refusal.Reason == client.AfterTooFar && refusal.RetryAfter == 0 {
			http.Error(w, "after is in the future", http.StatusConflict)
			return
		}
		retry = max(retry, refusal.RetryAfter)
	}
	if errors.Is(err, context.Canceled) {
		return // the caller has gone
	}
	slog.Error("no ID", "err", err) // it tells which node refused, and why
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retry.Seconds()))))
	http.Error(w, "no ID can be had now", http.StatusServiceUnavailable)
}

func reply(w http.ResponseWriter, code int, o order) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}
