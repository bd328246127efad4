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

	"github.com/flakelease/allocator/chaos/load"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/history"
)

// runLoad asks the nodes of --addr for IDs until ctx ends, and writes the history
// of it to out.
func runLoad(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	addr := fs.String("addr", "", "names of nodes, comma-separated: gRPC is at port 9000, HTTP at 8080")
	kind := fs.String("clients", "all", "all: pinned to nodes and in every way; or failover: clients of which each goes to the next node")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *addr == "" {
		return errors.New("load: --addr names no node")
	}
	began := time.Now()
	w := history.NewWriter(out, history.WriterConfig{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }, Limit: 2 << 30})
	names := strings.Split(*addr, ",")
	if _, err := w.Write(history.Op{Process: "harness", Type: history.Info, F: history.FSetup, Setup: &history.Setup{
		Layout: flake.Default.Layout.String(), EpochMs: flake.Default.Epoch, StartMs: began.UnixMilli(), Nodes: names}}); err != nil {
		return err
	}
	var mu sync.Mutex // guards broken
	var broken []error
	l := &load.Load{History: w, Format: flake.Default, Dial: (&net.Dialer{Timeout: time.Second}).DialContext,
		Broken: func(err error) { mu.Lock(); defer mu.Unlock(); broken = append(broken, err) }}

	var nodes []*load.Node
	for _, name := range names {
		// A container keeps its name when it is started again. Its IDs rise from one
		// process to the next, since all containers of a machine share its clock.
		n := &load.Node{Name: name, GRPC: name + ":9000", HTTP: name + ":8080"}
		n.MayAnswer = func() func() string { return func() string { return name } }
		nodes = append(nodes, n)
	}
	var all sync.WaitGroup
	for i, c := range clients(*kind, nodes) {
		all.Go(func() { l.Run(ctx, i+1, c) })
	}
	all.Wait()
	if err := w.Flush(); err != nil {
		return err
	}
	return errors.Join(broken...)
}

// clients are those of a kind. Pinned ones ask in every way; the others carry
// order from node to node, as a program would that needs it.
func clients(kind string, nodes []*load.Node) (out []load.Client) {
	if kind == "all" {
		for _, n := range nodes {
			for _, via := range []string{load.Unary, load.Stream, load.HTTP} {
				out = append(out, load.Client{Via: via, Counts: []int{1, 7, 100}, Nodes: []*load.Node{n}, Every: 10 * time.Millisecond})
			}
		}
	}
	for i := range 2 {
		out = append(out, load.Client{Via: load.Unary, Counts: []int{1, 1000}, Nodes: nodes, Session: fmt.Sprintf("s%d", i), Every: 10 * time.Millisecond})
	}
	return out
}
