// Command kubeload requests IDs with the Go SDK until it is signaled, and prints
// a summary as one line of JSON. chaos/kube runs it while it upgrades the chart, and
// deploy/compose-test.sh beside its faults; it is in this module since that of
// chaos/kube is bound to the versions of Kubernetes.
//
//	kubeload --dns 192.0.2.1:53 --target allocator-headless.default.svc.cluster.local:9000
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flakelease/allocator/chaos/load"
	"github.com/flakelease/allocator/client"
)

// summary is what chaos/kube reads.
type summary struct {
	IDs        int64         `json:"ids"`
	Calls      int64         `json:"calls"`
	Failed     int64         `json:"failed"`
	Failure    string        `json:"failure,omitempty"` // the first
	Duplicates int64         `json:"duplicates"`
	Unchecked  int64         `json:"unchecked"` // IDs that came too late to be compared
	Disorder   int64         `json:"disorder"`  // blocks not above what their caller had before
	Slowest    string        `json:"slowest"`
	BySID      map[int]int64 `json:"bySID"` // IDs
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kubeload: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	targets := flag.String("target", "", "host:port,…; a name stands for all of its addresses")
	dns := flag.String("dns", "", "DNS server to use, host:port")
	limit := flag.Duration("for", 10*time.Minute, "end after this time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	o := client.Options{Targets: strings.Split(*targets, ",")}
	if *dns != "" {
		net.DefaultResolver = &net.Resolver{
			PreferGo: true,
			Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, *dns)
			},
		}
	}
	var mu sync.Mutex // guards out
	out := summary{BySID: map[int]int64{}}
	observe := func(load.Target, load.Request) (func(client.Block, error) error, error) {
		return func(b client.Block, err error) error {
			mu.Lock()
			defer mu.Unlock()
			out.Calls++
			if err == nil {
				out.BySID[int(b.SID)] += int64(b.Count)
			} else if out.Failed++; out.Failed == 1 {
				out.Failure = err.Error()
			}
			return nil
		}, nil
	}
	// Two clients, since a client stays with one node while that serves it; and two
	// callers for each, as in a program. Requests are not cut off at the end: that
	// would count as a failure.
	p := load.Plan{Check: true, Finish: true}
	for range 2 {
		c, err := load.Config{}.OpenSDK(o)
		if err != nil {
			return err
		}
		defer c.Close()
		w := load.Worker{
			Targets: []load.Target{{Client: c}},
			Counts:  []int{10},
			Pause:   10 * time.Millisecond,
			Ordered: true,
			Observe: observe,
		}
		p.Workers = append(p.Workers, w, w)
	}
	r := load.New(p).Run(ctx)
	out.IDs, out.Duplicates, out.Unchecked, out.Disorder = r.IDs, r.Check.Duplicates, r.Check.Unchecked,
		r.Check.OutOfOrder
	out.Slowest = time.Duration(r.Latency.Max()).Round(time.Microsecond).String()
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return err
	}
	if out.IDs == 0 {
		return errors.New("no ID came")
	}
	return nil
}
