package services

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"syscall"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// Starts measures how long processes take from their start until their first ID, in some rounds, and writes a table.
func Starts(ctx context.Context, allocator, self string, rounds int, out io.Writer) error {
	e, err := newEnv(allocator, self)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := e.startEtcd(ctx); err != nil {
		return err
	}
	var nodes [Nodes]starting
	for i := range nodes {
		nodes[i].Node, nodes[i].args = e.node("127.0.0.1", i, e.endpoint()...)
		if _, err := e.first(ctx, nodes[i]); err != nil {
			return err
		}
	}
	kinds := []struct {
		name string
		once func() (time.Duration, error)
	}{
		{"a node that stopped and starts again", func() (time.Duration, error) {
			return e.again(ctx, nodes[0], syscall.SIGTERM)
		}},
		{"a node that was killed and starts again", func() (time.Duration, error) {
			return e.again(ctx, nodes[0], syscall.SIGKILL)
		}},
		{"a program with `embed`", func() (time.Duration, error) { return embedded(ctx, self, e.Etcd) }},
		{"`allocator dev --nodes 1`, with an etcd and a new space", func() (time.Duration, error) {
			return e.dev(ctx)
		}},
		{"longest call of the Go SDK while three nodes restart one after another", func() (time.Duration, error) {
			return e.rolling(ctx, nodes[:])
		}},
	}
	took := make([][]float64, len(kinds)) // ms
	for range rounds {
		for at, kind := range kinds {
			d, err := kind.once()
			if err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
			took[at] = append(took[at], d.Seconds()*1e3)
		}
	}
	fmt.Fprintf(out, "Time until the first ID, %d rounds:\n\n| | median, ms | worst, ms |\n|---|--:|--:|\n", rounds)
	for at, kind := range kinds {
		s := SpreadOf(took[at])
		fmt.Fprintf(out, "| %s | %.0f | %.0f |\n", kind.name, s.Median, s.Max)
	}
	return nil
}

// starting is a node that is started again and again.
type starting struct {
	Node
	args []string
}

// first starts a node and returns how long it took until it had issued an ID.
func (e *Env) first(ctx context.Context, n starting) (time.Duration, error) {
	began := time.Now()
	if err := e.spawn(n.GRPC, e.binary, n.args...); err != nil {
		return 0, err
	}
	err := e.issues(ctx, n.Node)
	return time.Since(began), err
}

// again ends a node and starts it again.
func (e *Env) again(ctx context.Context, n starting, how syscall.Signal) (time.Duration, error) {
	e.stop(n.GRPC, how)
	return e.first(ctx, n)
}

// dev starts a node with an etcd of its own, and ends both.
func (e *Env) dev(ctx context.Context) (time.Duration, error) {
	n := starting{Node: Node{GRPC: loopback.Address(), HTTP: loopback.Address()}}
	_, grpc, _ := net.SplitHostPort(n.GRPC)
	_, http, _ := net.SplitHostPort(n.HTTP)
	n.args = []string{"dev", "--nodes", "1", "--grpc-port", grpc, "--http-port", http}
	took, err := e.first(ctx, n)
	e.stop(n.GRPC, syscall.SIGTERM)
	return took, err
}

// embedded runs a program whose first line is an ID.
func embedded(ctx context.Context, self, etcd string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, self, "-serve", "embed", "-addr", etcd)
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, err = bufio.NewReader(lines).ReadString('\n')
	took := time.Since(began)
	if waited := cmd.Wait(); err == nil {
		err = waited
	}
	return took, err
}

// printFirst is the program of embedded.
func printFirst(ctx context.Context, etcd string) error {
	a, err := embed.Open(ctx, embed.Config{Endpoints: []string{"http://" + etcd}, Name: "embedded"})
	if err != nil {
		return err
	}
	id, err := a.Next(ctx)
	fmt.Println(id)
	if closed := a.Close(); err == nil {
		err = closed
	}
	return err
}

// rolling returns the longest call of a caller while the nodes are restarted one after another.
func (e *Env) rolling(ctx context.Context, nodes []starting) (longest time.Duration, err error) {
	var targets []string
	for _, n := range nodes {
		targets = append(targets, n.GRPC)
	}
	c, err := client.New(client.Options{Targets: targets, Mode: client.Direct})
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	ended := make(chan error, 1)
	go func() {
		for _, n := range nodes {
			if _, err := e.again(ctx, n, syscall.SIGTERM); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for {
		began := time.Now()
		if _, err := c.Next(ctx); err != nil {
			<-ended
			return 0, fmt.Errorf("services: a call failed while nodes restarted: %w", err)
		}
		longest = max(longest, time.Since(began))
		select {
		case err := <-ended:
			return longest, err
		case <-time.After(time.Millisecond):
		}
	}
}
