package embed_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
)

func ExampleOpen() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a, err := embed.Open(ctx, embed.Config{
		Endpoints: []string{"https://etcd-0:2379", "https://etcd-1:2379", "https://etcd-2:2379"},
		Name:      "orders-7",
		Gossip:    "10.0.0.7:7948",
		SIDs:      "24-31",
		Reserve:   1, // for the program that takes this one's place
		Settings:  map[string]string{"etcd.tls.ca": "/etc/etcd/ca.pem", "gossip.key-file": "/etc/allocator/gossip.key"},
	})
	var pool *embed.PoolError
	switch {
	case errors.As(err, &pool):
		fmt.Println("too many programs:", err)
		return
	case err != nil:
		fmt.Println(err)
		return
	}
	defer a.Close() // the sid is free for the next program at once

	http.Handle("/ids/", http.StripPrefix("/ids", a.Handler())) // /ids/readyz, /ids/metrics

	id, err := a.Next(ctx)
	if errors.Is(err, &client.Refusal{Reason: client.WindowExhausted}) {
		fmt.Println("etcd has been away for longer than the window")
	}
	fmt.Println(id, err)
}

// A program's own IDs rise from call to call. For order with what another node
// issued, hand its ID in.
func ExampleAllocator_NextAfter() {
	reply := func(ctx context.Context, a *embed.Allocator, question flake.ID) (flake.ID, error) {
		return a.NextAfter(ctx, question)
	}
	_ = reply
}
