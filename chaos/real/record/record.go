// Package record runs clients of chaos/load and writes each of their requests,
// and its outcome, to a history.
//
// A client is pinned to one node, or fails over to the next when it is refused. A
// client of the Go SDK chooses the node by itself. One that prefetches is given IDs that
// were issued before it asked: its calls begin, in the history, by its greatest age of
// an ID earlier than they are made, and their answers do not name the node. An answer that breaks the
// contract of the API (of the wrong size, or not in one block) is reported to
// Recorder.Broken at once; the history has it as an unknown outcome.
package record

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/load"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// Node is a node that clients send requests to.
type Node struct {
	Name             string
	HTTP, GRPC, RESP string // host:port
	// MayAnswer is called before a request, and what it returns after: it names the
	// process that answered.
	MayAnswer func() func() string
}

// Kinds of clients besides those of chaos/load.
const (
	Prefetch = "prefetch" // the Go SDK with prefetching, one ID a call
	Embedded = "embedded" // HTTP to a program that embeds an allocator
)

// maxAge is how old an ID may be that a prefetching client is given.
const maxAge = 200 * time.Millisecond

// Client says how one client behaves.
type Client struct {
	Via     string // a kind of chaos/load (grpc, stream, http, resp, sdk), Prefetch or Embedded
	Counts  []int  // IDs to request, in turn
	Nodes   []*Node
	Session string        // not empty: each request names the last ID of the one before
	Every   time.Duration // pause between an answer and the next request
	Timeout time.Duration // for one request; 0: 2 s

	// Of a client of the SDK, which is given all nodes and always keeps order:
	Mode    client.Mode
	Callers int // callers that share the client; 0: one
}

// Recorder is where clients write. Its methods are safe for concurrent use.
type Recorder struct {
	History *history.Writer
	Format  flake.Format
	Dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	Broken  func(error)
}

// Run sends requests until ctx ends, as the process of that number; callers that
// share a client of the SDK have the numbers from there on. Requests that are under
// way are finished, so that each in the history has its end.
func (r *Recorder) Run(ctx context.Context, number int, c Client) {
	targets, err := r.targets(c)
	for _, t := range targets {
		defer t.Client.Close()
	}
	if err != nil {
		r.Broken(fmt.Errorf("client %d: %w", number, err))
		return
	}
	p := load.Plan{Finish: true, Timeout: c.Timeout}
	if p.Timeout == 0 {
		p.Timeout = 2 * time.Second
	}
	for i := range max(c.Callers, 1) {
		p.Workers = append(p.Workers, load.Worker{
			Targets: targets,
			First:   number,
			Counts:  c.Counts,
			Ordered: c.Session != "",
			Pause:   c.Every,
			Backoff: 50 * time.Millisecond,
			Observe: func(t load.Target, req load.Request) (func(client.Block, error) error, error) {
				return r.observe(number+i, c, t.Name, req)
			},
		})
	}
	load.New(p).Run(ctx)
}

// targets opens a connection to each node, or one client of the SDK for all. The
// error comes with the targets to close.
func (r *Recorder) targets(c Client) (targets []load.Target, err error) {
	config := load.Config{
		Dial:   r.Dial,
		Stride: r.Format.Layout.Stride(),
		GRPC: []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{
				MinConnectTimeout: time.Second,
				Backoff: backoff.Config{
					BaseDelay:  50 * time.Millisecond,
					Multiplier: 1.5,
					MaxDelay:   300 * time.Millisecond,
				},
			})},
	}
	if c.Via == load.SDK || c.Via == Prefetch {
		o := client.Options{Mode: c.Mode}
		if c.Via == Prefetch {
			o.Mode, o.MaxAge = client.Prefetch, maxAge
		}
		for _, n := range c.Nodes {
			o.Targets = append(o.Targets, n.GRPC)
		}
		k, err := config.OpenSDK(o)
		if err != nil {
			return nil, err
		}
		return []load.Target{{Client: k}}, nil
	}
	for _, n := range c.Nodes {
		via, addr := c.Via, n.GRPC
		switch via {
		case load.HTTP:
			addr = n.HTTP
		case Embedded:
			via, addr = load.HTTP, n.HTTP
		case load.RESP:
			addr = n.RESP
		}
		k, err := config.Open(via, addr)
		if err != nil {
			return targets, err
		}
		targets = append(targets, load.Target{Name: n.Name, Client: k})
	}
	return targets, nil
}

// observe writes a request to the history, and returns what writes its outcome.
// The error is the history's: it is full, or its disk is.
func (r *Recorder) observe(number int, c Client, node string,
	req load.Request) (func(client.Block, error) error, error) {
	op := history.Op{
		Process: strconv.Itoa(number),
		Type:    history.Invoke,
		F:       history.FAllocate,
		Node:    node,
		Session: c.Session,
		Via:     c.Via,
		Block:   history.Block{Count: int64(req.Count)},
		After:   req.After,
	}
	answered := make(map[string]func() string, len(c.Nodes))
	for _, n := range c.Nodes {
		if node == "" || node == n.Name { // the SDK may ask any
			answered[n.Name] = n.MayAnswer()
		}
	}
	if _, err := r.History.Write(op); err != nil {
		return nil, err
	}
	if c.Via == Prefetch {
		time.Sleep(maxAge)
	}
	return func(b client.Block, failure error) error {
		outcome, reason := load.OutcomeOf(failure)
		op.Type, op.Reason, op.Block, op.After = history.Info, reason, history.Block{}, 0
		refusal, refused := errors.AsType[*client.Refusal](failure)
		switch {
		case outcome == load.OK:
			op.Type, op.Block = history.OK,
				history.Block{First: b.First, Count: int64(b.Count), Stride: max(b.Stride, 1)}
			if node == "" {
				op.Node = b.Node
			}
		case outcome == load.Broken: // reported apart from the history, whose blocks are sound
			r.Broken(fmt.Errorf("client %d, %s of %s: %w", number, c.Via, node, failure))
		case refused && node != "": // the SDK may have tried other nodes before
			op.Type, op.Retry = history.Fail, refusal.RetryAfter
		}
		for name, run := range answered {
			if ran := run(); name == op.Node {
				op.Run = ran
			}
		}
		_, err := r.History.Write(op)
		if errors.Is(err, history.ErrValue) { // What cannot be recorded cannot be checked.
			r.Broken(fmt.Errorf("client %d, %s of %s: %w", number, c.Via, node, err))
		}
		return err
	}, nil
}
