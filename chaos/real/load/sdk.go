package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// runSDK asks through the Go SDK. A call names no node: the one that answered is
// known afterwards, and so is its process if that was the same before and after.
// A call that fails may have been tried on several nodes, so nobody knows what was
// issued.
func (l *Load) runSDK(ctx context.Context, number int, c Client) {
	var targets []string
	for _, n := range c.Nodes {
		targets = append(targets, n.GRPC)
	}
	sdk, err := client.New(client.Options{Targets: targets, DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return l.Dial(ctx, "tcp", addr) })}})
	if err != nil {
		l.Broken(fmt.Errorf("client %d: %w", number, err))
		return
	}
	defer sdk.Close()
	process := strconv.Itoa(number)
	var after flake.ID
	for i := 0; ctx.Err() == nil; i++ {
		last, err := l.callSDK(sdk, process, c, c.Counts[i%len(c.Counts)], after)
		switch {
		case errors.Is(err, errContract):
			l.Broken(fmt.Errorf("client %d, %s: %w", number, c.Via, err))
		case err != nil: // the history is full, or its disk
			return
		}
		pause := c.Every
		if last == 0 {
			pause = max(pause, afterFailure)
		} else {
			after = last
		}
		rest(ctx, pause)
	}
}

// callSDK makes one call and writes it down. It returns the last ID, or 0.
func (l *Load) callSDK(sdk *client.Client, process string, c Client, count int, after flake.ID) (flake.ID, error) {
	op := history.Op{Process: process, Type: history.Invoke, F: history.FAllocate, Session: c.Session, Via: c.Via,
		Block: history.Block{Count: int64(count)}, After: after}
	answered := make(map[string]func() string, len(c.Nodes))
	for _, n := range c.Nodes {
		answered[n.Name] = n.MayAnswer()
	}
	if _, err := l.History.Write(op); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	b, failed := sdk.Block(ctx, count)
	cancel()
	op.After = 0
	var broken error
	var last flake.ID
	if failed != nil {
		op.Type, op.Reason, op.Block = history.Info, reasonOf(failed), history.Block{}
	} else {
		var a answer
		if a, broken = l.checked(history.Block{First: b.First, Count: int64(b.Count), Stride: b.Stride}, count, after); broken == nil {
			op.Type, op.Node, op.Block = history.OK, b.Node, a.block
			last = b.Last()
		} else { // told apart from the history, whose blocks are sound
			op.Type, op.Reason, op.Block = history.Info, "broken contract", history.Block{}
		}
	}
	for name, run := range answered {
		if r := run(); name == op.Node {
			op.Run = r
		}
	}
	if _, err := l.History.Write(op); err != nil {
		return 0, err
	}
	return last, broken
}

// reasonOf says why a call of the SDK failed.
func reasonOf(err error) string {
	var r *client.Refusal
	switch {
	case errors.As(err, &r):
		return string(r.Reason)
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "connection"
}
