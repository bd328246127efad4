package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/config"
)

// nodes are the nodes that a client command asks, in the order given.
type nodes struct {
	addrs   []string
	conns   []*grpc.ClientConn
	timeout time.Duration // of one command's request, retries included
}

// nodesFlags adds --addr and --timeout to cmd and returns what connects.
func (a *app) nodesFlags(cmd *cobra.Command, def string) func() (*nodes, error) {
	addr := cmd.Flags().String("addr", def, "gRPC addresses of nodes, comma-separated, the first that answers is used (or $"+config.EnvAddr+")")
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "how long to try")
	return func() (*nodes, error) {
		list := *addr
		if env := a.getenv(config.EnvAddr); env != "" && !cmd.Flags().Changed("addr") {
			list = env
		}
		n := &nodes{timeout: *timeout}
		for addr := range strings.SplitSeq(list, ",") {
			addr = strings.TrimSpace(addr)
			if addr == "" {
				continue
			}
			c, err := dialNode(addr)
			if err != nil {
				n.close()
				return nil, err
			}
			n.addrs, n.conns = append(n.addrs, addr), append(n.conns, c)
		}
		if len(n.conns) == 0 {
			return nil, usage("--addr: no address is given")
		}
		return n, nil
	}
}

// dialNode returns a connection that contacts nobody yet.
func dialNode(addr string) (*grpc.ClientConn, error) {
	if i := strings.LastIndexByte(addr, ':'); i <= 0 {
		return nil, usage("--addr: %q is not host:port", addr)
	}
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, usage("--addr: %q: %w", addr, err)
	}
	return c, nil
}

// defaultAddr is where a node listens that is told nothing, and dev's first.
var defaultAddr = config.Default().Listen.GRPC

func (n *nodes) close() {
	for _, c := range n.conns {
		_ = c.Close()
	}
}

// ask calls f for one node after the other until one answers. A node that
// refuses and names a time to retry at is asked again, within n.timeout.
//
// The error has exit code 1 if a node refused, and 3 if none answered.
func (n *nodes) ask(ctx context.Context, f func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	for {
		var pause time.Duration
		var refused, last error
		for i, c := range n.conns {
			err := f(ctx, c)
			if err == nil {
				return nil
			}
			reason, retry := refusal(err)
			last = fmt.Errorf("node at %s: %s", n.addrs[i], status.Convert(err).Message())
			if reason == "" {
				if status.Code(err) != codes.Unavailable && status.Code(err) != codes.DeadlineExceeded {
					return &exitError{exitInvalid, last}
				}
				continue
			}
			refused = &exitError{exitInvalid, fmt.Errorf("node at %s refused: %s: %s", n.addrs[i], reason, status.Convert(err).Message())}
			if status.Code(err) == codes.InvalidArgument {
				return refused // every node would say the same
			}
			if retry > 0 && (pause == 0 || retry < pause) {
				pause = retry
			}
		}
		deadline, _ := ctx.Deadline()
		if pause == 0 || time.Until(deadline) < pause {
			if refused != nil {
				return refused
			}
			if errors.Is(ctx.Err(), context.Canceled) {
				return &exitError{exitInterrupted, errors.New("interrupted")}
			}
			return &exitError{exitUnavailable, fmt.Errorf("%w\nNo node answers at %s: is one running? Give --addr host:port or $%s, or start some with «allocator dev»",
				last, strings.Join(n.addrs, ", "), config.EnvAddr)}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// refusal returns the reason in a node's error and when to retry; "" if a node
// did not say.
func refusal(err error) (reason string, retry time.Duration) {
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.GetReason()
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	return reason, retry
}

// layoutOf returns the layout that a node names.
func layoutOf(l pb.Layout) (flake.Layout, error) {
	name := strings.ToLower(strings.TrimPrefix(l.String(), "LAYOUT_"))
	return flake.ParseLayout(name)
}
