package services

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
)

// Starts measures how long processes take from their start until their first ID, in some rounds, and writes a table,
// and a chart as SVG.
func Starts(ctx context.Context, allocator, self string, rounds int, out, picture io.Writer) error {
	e, err := newEnv(allocator, self)
	if err != nil {
		return err
	}
	defer e.Close()
	// Each round kills four nodes, and their sids are of no use until their leases and windows have ended, up to 30 s
	// later. Of 32 sids that left none of the eight for programs, and a program waited for the end of a window.
	e.layout = flake.Fleet.String()
	if err := e.startEtcd(ctx); err != nil {
		return err
	}
	var nodes [Nodes]starting
	for i := range nodes {
		nodes[i].Node, nodes[i].args = e.node("127.0.0.1", i, e.endpoint()...)
		if err := e.first(ctx, nodes[i].Node, nodes[i].args...); err != nil {
			return err
		}
	}
	kinds := []struct {
		name string
		once func() (time.Duration, error)
	}{
		{"a new node in a space that exists", func() (time.Duration, error) { return e.another(ctx) }},
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
		{"longest call of the Go SDK while three nodes restart in turn", func() (time.Duration, error) {
			return e.rolling(ctx, nodes[:], syscall.SIGTERM)
		}},
		{"longest call of the Go SDK while three nodes are killed in turn", func() (time.Duration, error) {
			return e.rolling(ctx, nodes[:], syscall.SIGKILL)
		}},
	}
	took, names := make([][]float64, len(kinds)), []string{} // ms
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
		names = append(names, strings.ReplaceAll(kind.name, "`", ""))
	}
	startChart(picture, names, took)
	return nil
}

// startChart draws a line for each kind, with a dot for each round. The scale of ms is logarithmic; times below 1 ms
// and above 2 s are at its ends.
func startChart(w io.Writer, names []string, took [][]float64) {
	const left, wide, row, longest = 430, 400, 26, 2000.0
	x := func(ms float64) float64 { return left + wide*math.Log(min(max(ms, 1), longest))/math.Log(longest) }
	high := row * (len(names) + 1)
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="sans-serif">
  <title>Milliseconds until the first ID</title>
  <style>
    text { fill: #1f2328; font-size: 14px; }
    line { stroke: #c9d1d9; }
    circle { fill: #0969da; fill-opacity: 0.5; }
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } line { stroke: #30363d; } }
  </style>
`, left+wide+30, high+4)
	for _, ms := range []float64{1, 10, 100, 1000} {
		fmt.Fprintf(w, "  <line x1=\"%.0f\" x2=\"%.0f\" y1=\"6\" y2=\"%d\"/>\n", x(ms), x(ms), high-row)
		fmt.Fprintf(w, "  <text x=\"%.0f\" y=\"%d\" text-anchor=\"middle\">%.0f ms</text>\n", x(ms), high-row/3, ms)
	}
	for at, name := range names {
		y := row*at + row/2 + 6
		fmt.Fprintf(w, "  <text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left-14, y+5, name)
		for _, ms := range took[at] {
			fmt.Fprintf(w, "  <circle cx=\"%.0f\" cy=\"%d\" r=\"5\"/>\n", x(ms), y)
		}
	}
	fmt.Fprintln(w, "</svg>")
}

// starting is a node that is started again and again.
type starting struct {
	Node
	args []string
}

// took starts a node and returns how long it took until it had issued an ID.
func (e *Env) took(ctx context.Context, n starting) (time.Duration, error) {
	began := time.Now()
	err := e.first(ctx, n.Node, n.args...)
	return time.Since(began), err
}

// again ends a node and starts it again.
func (e *Env) again(ctx context.Context, n starting, how syscall.Signal) (time.Duration, error) {
	e.stop(n.GRPC, how)
	return e.took(ctx, n)
}

// another starts a node of a name that the space has not seen, and ends it.
func (e *Env) another(ctx context.Context) (time.Duration, error) {
	var n starting
	n.Node, n.args = e.node("127.0.0.1", len(e.procs), e.endpoint()...)
	took, err := e.took(ctx, n)
	e.stop(n.GRPC, syscall.SIGTERM)
	return took, err
}

// dev starts a node with an etcd of its own, and ends both.
func (e *Env) dev(ctx context.Context) (time.Duration, error) {
	var n starting
	n.Node, n.args = devNode()
	took, err := e.took(ctx, n)
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
	a, err := embed.Open(ctx, embed.Config{
		Endpoints: []string{"http://" + etcd},
		Name:      "embedded",
		SIDs:      "768-1023",
		Settings:  map[string]string{"layout": flake.Fleet.String()},
	})
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

// rolling returns the longest call of a caller while the nodes end, in some way, and start again, one after another.
func (e *Env) rolling(ctx context.Context, nodes []starting, how syscall.Signal) (longest time.Duration, err error) {
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
			if _, err := e.again(ctx, n, how); err != nil {
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
