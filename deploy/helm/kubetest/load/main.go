// Command load draws IDs with package client from several goroutines until it is
// told to end, and prints what came of it as one line of JSON.
//
//	load --dns 192.0.2.1:53 --target allocator-headless.default.svc.cluster.local:9000
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

const (
	callers = 4
	batch   = 10
	pause   = 10 * time.Millisecond // between calls of one caller: all IDs are kept until the end
	most    = 20_000_000            // IDs to keep: 160 MB
)

// result is what came of it.
type result struct {
	IDs        int            `json:"ids"`
	Calls      int            `json:"calls"`
	Failed     int            `json:"failed"`
	Failure    string         `json:"failure,omitempty"` // the first
	Duplicates int            `json:"duplicates"`
	Disorder   int            `json:"disorder"` // IDs not above what their caller had before
	Slowest    string         `json:"slowest"`
	BySID      map[string]int `json:"bySID"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "load: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	target := flag.String("target", "", "host:port; a name stands for all of its addresses")
	dns := flag.String("dns", "", "server to ask for it, host:port")
	limit := flag.Duration("for", 10*time.Minute, "end by itself after")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	o := client.Options{Targets: []string{*target}}
	if *dns != "" {
		o.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, *dns)
		}}
	}
	var mu sync.Mutex // guards res and seen
	res := result{BySID: map[string]int{}}
	seen := map[flake.ID]bool{}
	var slowest time.Duration
	var wg sync.WaitGroup
	// Several, for a client stays with one node while that serves it; and each for
	// several callers, as a program has it.
	var clients [2]*client.Client
	for i := range clients {
		c, err := client.New(o)
		if err != nil {
			return err
		}
		defer c.Close()
		clients[i] = c
	}
	for i := range callers {
		c := clients[i%len(clients)]
		wg.Go(func() {
			var last flake.ID
			ids := make([]flake.ID, batch)
			for ctx.Err() == nil {
				begun := time.Now()
				// Not of ctx: a call that we cut off would count as one that failed.
				err := c.NextN(context.Background(), ids)
				took := time.Since(begun)
				mu.Lock()
				res.Calls++
				slowest = max(slowest, took)
				if err != nil {
					if res.Failed++; res.Failed == 1 {
						res.Failure = err.Error()
					}
				} else {
					for _, id := range ids {
						if seen[id] {
							res.Duplicates++
						}
						if id <= last {
							res.Disorder++
						}
						seen[id], last = true, id
						res.BySID[fmt.Sprint(flake.Format{}.SID(id))]++ // the layout scalable
					}
					res.IDs += len(ids)
				}
				full := res.IDs > most
				mu.Unlock()
				if full {
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	wg.Wait()
	res.Slowest = slowest.Round(time.Microsecond).String()
	if err := json.NewEncoder(os.Stdout).Encode(res); err != nil {
		return err
	}
	if res.IDs == 0 {
		return errors.New("no ID was drawn")
	}
	return nil
}
