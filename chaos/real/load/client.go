// Package load asks nodes for IDs in every way that they can be asked, and
// writes each call and each answer to a history.
//
// A client is pinned to one node, or fails over to the next when it is refused;
// it may carry order from call to call. What a client finds broken by itself (an
// answer of the wrong size, or not in one block) is told to Load.Broken at once.
// The Go SDK is one of the kinds; it chooses the node by itself.
package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
)

// Node is a node to ask.
type Node struct {
	Name       string
	HTTP, GRPC string // host:port
	// MayAnswer is called before a call, and what it returns after: it names the
	// process that answered.
	MayAnswer func() func() string
}

// Kinds of clients, as the history calls them.
const (
	Unary  = "grpc"
	Stream = "stream"
	HTTP   = "http"
	SDK    = "sdk" // package client, which is given all nodes and always carries order
)

// Client says how one client behaves.
type Client struct {
	Via     string
	Counts  []int // asked for in turn
	Nodes   []*Node
	Session string        // not empty: each call names the last ID of the one before
	Every   time.Duration // from one answer to the next call
}

// afterFailure is how long a client rests after it was refused by every node.
const afterFailure = 50 * time.Millisecond

// callTimeout bounds one call.
const callTimeout = 2 * time.Second

// Load is clients and where they write. Its methods are safe for concurrent use.
type Load struct {
	History *history.Writer
	Format  flake.Format
	Dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	Broken  func(error)
}

// answer is what a call came to.
type answer struct {
	block  history.Block
	reason string // of a refusal or a failure
	retry  time.Duration
	info   bool // nobody knows whether IDs were issued
}

// asker asks one node in one way.
type asker interface {
	ask(ctx context.Context, count int, after flake.ID) (answer, error)
	close()
}

// errContract says that an answer is not what the interface promises.
var errContract = errors.New("broken contract")

// Run asks until ctx ends. The call in hand is finished, so that every call in
// the history has its end.
func (l *Load) Run(ctx context.Context, number int, c Client) {
	if c.Via == SDK {
		l.runSDK(ctx, number, c)
		return
	}
	askers := make([]asker, len(c.Nodes))
	for i, n := range c.Nodes {
		askers[i] = l.asker(c.Via, n)
		defer askers[i].close()
	}
	process, at, refused := strconv.Itoa(number), number%len(c.Nodes), 0
	var after flake.ID
	for i := 0; ctx.Err() == nil; i++ {
		a, err := l.call(process, c, c.Nodes[at], askers[at], c.Counts[i%len(c.Counts)], after)
		switch {
		case errors.Is(err, errContract):
			l.Broken(fmt.Errorf("client %d, %s of %s: %w", number, c.Via, c.Nodes[at].Name, err))
		case err != nil: // the history is full, or its disk
			return
		}
		pause := c.Every
		if a.reason == "" {
			refused = 0
			if c.Session != "" {
				after = a.block.Last()
			}
		} else {
			at, refused = (at+1)%len(c.Nodes), refused+1
			if pause = 0; refused%len(c.Nodes) == 0 {
				pause = afterFailure
			}
		}
		rest(ctx, pause)
	}
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	if d > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
}

func (l *Load) call(process string, c Client, n *Node, k asker, count int, after flake.ID) (answer, error) {
	op := history.Op{Process: process, Type: history.Invoke, F: history.FAllocate, Node: n.Name, Session: c.Session, Via: c.Via,
		Block: history.Block{Count: int64(count)}, After: after}
	answered := n.MayAnswer()
	if _, err := l.History.Write(op); err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	a, broken := k.ask(ctx, count, after)
	cancel()
	op.Run = answered()
	op.Block, op.Reason, op.Retry, op.After = a.block, a.reason, a.retry, 0
	if broken != nil { // told apart from the history, whose blocks are sound
		a.info, op.Reason, op.Block = true, "broken contract", history.Block{}
	}
	switch {
	case a.info:
		op.Type = history.Info
	case a.reason != "":
		op.Type = history.Fail
	default:
		op.Type = history.OK
	}
	if _, err := l.History.Write(op); err != nil {
		return answer{}, err
	}
	return a, broken
}

// checked holds a block against what was asked for.
func (l *Load) checked(b history.Block, count int, after flake.ID) (answer, error) {
	a := answer{block: b}
	switch stride := int64(1) << l.Format.Layout.SIDBits(); {
	case b.Count != int64(count):
		return a, fmt.Errorf("%w: asked for %d IDs and got %d", errContract, count, b.Count)
	case b.Stride != stride:
		return a, fmt.Errorf("%w: a stride of %d, not %d", errContract, b.Stride, stride)
	case b.First <= after:
		return a, fmt.Errorf("%w: %v is not above %v, as was asked", errContract, b.First, after)
	}
	return a, nil
}

func (l *Load) asker(via string, n *Node) asker {
	switch via {
	case HTTP:
		return l.newHTTP(n)
	case Stream:
		return &streamAsker{load: l, conn: l.grpc(n)}
	default:
		return &unaryAsker{load: l, conn: l.grpc(n)}
	}
}
