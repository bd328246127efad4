package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/load"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// runLoad asks the nodes of --addr for IDs until ctx ends, and writes the history
// of it to out.
func runLoad(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	addr := fs.String("addr", "", "names of nodes, comma-separated: gRPC is at port 9000, HTTP at 8080")
	kind := fs.String("clients", "all", "all: pinned to each node and in every way, and the library's; or library: those alone")
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
	number := 0
	if *kind == "all" {
		for _, n := range nodes {
			for _, via := range []string{load.Unary, load.Stream, load.HTTP} {
				number++
				process := number
				c := load.Client{Via: via, Counts: []int{1, 7, 100}, Nodes: []*load.Node{n}, Every: pause}
				all.Go(func() { l.Run(ctx, process, c) })
			}
		}
	}
	for i, mode := range []client.Mode{client.Coalesce, client.Direct} {
		o := client.Options{Mode: mode}
		for _, n := range nodes {
			o.Targets = append(o.Targets, n.GRPC)
		}
		c, err := client.New(o)
		if err != nil {
			return err
		}
		defer c.Close()
		for range callers {
			number++
			u := user{c, w, strconv.Itoa(number), fmt.Sprintf("library-%d", i)}
			all.Go(func() { u.run(ctx) })
		}
	}
	all.Wait()
	if err := w.Flush(); err != nil {
		return err
	}
	return errors.Join(broken...)
}

// pause lies between an answer and the next call, so that two cores carry all this.
const pause = 10 * time.Millisecond

// callers share one client of the library.
const callers = 3

// viaLibrary is how the history calls them.
const viaLibrary = "library"

// user is a caller of the library, which does not tell it what nodes said: what is
// written is what the caller saw.
type user struct {
	client  *client.Client
	history *history.Writer
	process string
	session string // of all callers of a client, whose IDs rise from call to call
}

func (u user) run(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		op := history.Op{Process: u.process, Type: history.Invoke, F: history.FAllocate, Session: u.session, Via: viaLibrary,
			Block: history.Block{Count: int64(1 + 99*(i%2))},
			After: u.client.Last()} // the library asks for no less
		if _, err := u.history.Write(op); err != nil {
			return
		}
		// Not of ctx: the call in hand when the load ends is finished.
		b, err := u.client.Block(context.Background(), int(op.Block.Count))
		op.After, op.Type, op.Block = 0, history.OK, history.Block{First: b.First, Count: int64(b.Count), Stride: b.Stride}
		op.Node, op.Run = b.Node, b.Node
		if err != nil {
			op.Type, op.Reason = history.Info, err.Error()
			if refusal := (*client.Refusal)(nil); errors.As(err, &refusal) {
				op.Type, op.Reason = history.Fail, string(refusal.Reason)
			}
		}
		if _, err := u.history.Write(op); err != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
