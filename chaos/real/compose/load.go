package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/record"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/load"
)

// pause is the time between an answer and the next request, so that two cores
// carry all clients.
const pause = 10 * time.Millisecond

// callers share one client of the SDK.
const callers = 3

// runLoad requests IDs from the nodes of --addr until ctx ends, and writes the
// history to out.
func runLoad(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	addr := fs.String("addr", "", "names of nodes, comma-separated: gRPC is at port 9000, HTTP at 8080")
	kind := fs.String("clients", "all", "all: clients of each node by each API, and the SDK; or sdk: the SDK alone")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *addr == "" {
		return errors.New("load: --addr names no node")
	}
	began := time.Now()
	w := history.NewWriter(out,
		history.WriterConfig{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }, Limit: 2 << 30})
	names := strings.Split(*addr, ",")
	if _, err := w.Write(history.Op{
		Process: history.Harness,
		Type:    history.Info,
		F:       history.FSetup,
		Setup: &history.Setup{
			Layout:  flake.Default.Layout.String(),
			EpochMs: flake.Default.Epoch,
			StartMs: began.UnixMilli(),
			Nodes:   names,
		},
	}); err != nil {
		return err
	}
	var mu sync.Mutex // guards broken
	var broken []error
	r := &record.Recorder{
		History: w,
		Format:  flake.Default,
		Dial:    (&net.Dialer{Timeout: time.Second}).DialContext,
		Broken:  func(err error) { mu.Lock(); defer mu.Unlock(); broken = append(broken, err) },
	}

	var nodes []*record.Node
	for _, name := range names {
		// A container keeps its name when it is started again. Its IDs rise from one
		// process to the next, since all containers of a machine share its clock.
		nodes = append(nodes, &record.Node{
			Name:      name,
			GRPC:      name + ":9000",
			HTTP:      name + ":8080",
			MayAnswer: func() func() string { return func() string { return name } },
		})
	}
	var clients []record.Client
	if *kind == "all" {
		for _, n := range nodes {
			for _, via := range []string{load.GRPC, load.Stream, load.HTTP} {
				clients = append(clients,
					record.Client{Via: via, Counts: []int{1, 7, 100}, Nodes: []*record.Node{n}, Every: pause})
			}
		}
	}
	for _, mode := range []client.Mode{client.Coalesce, client.Direct} {
		// The SDK ends a request by itself when no node serves it in time.
		clients = append(clients, record.Client{
			Via:     load.SDK,
			Mode:    mode,
			Callers: callers,
			Counts:  []int{1, 100},
			Nodes:   nodes,
			Every:   pause,
			Session: fmt.Sprintf("sdk-%v", mode),
			Timeout: 3 * client.DefaultTimeout,
		})
	}
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() { r.Run(ctx, 1+callers*i, c) })
	}
	all.Wait()
	if err := w.Flush(); err != nil {
		return err
	}
	return errors.Join(broken...)
}
