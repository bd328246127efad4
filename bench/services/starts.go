package services

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// Starts measures how long processes take from their start until their first ID, in some rounds, and writes a table.
func Starts(ctx context.Context, allocator, self string, rounds int, out io.Writer) error {
	e := &Env{procs: map[string]*proc{}}
	defer e.Close()
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	e.dir, e.Etcd = dir, loopback.Address()
	if err := e.start(ctx, e.Etcd, self, "-serve", "etcd", "-addr", e.Etcd); err != nil {
		return err
	}
	endpoint := "http://" + e.Etcd
	if err := initialize(ctx, allocator, e.Etcd); err != nil {
		return err
	}
	nodes := make([]*starting, Nodes)
	for i := range nodes {
		n := &starting{grpc: loopback.Address(), http: loopback.Address()}
		n.args = []string{allocator, "serve", "--etcd.endpoints", endpoint, "--node.name", fmt.Sprintf("node-%d", i+1),
			"--log.level", "error", "--listen.grpc", n.grpc, "--listen.http", n.http, "--listen.admin", "127.0.0.1:0",
			"--listen.gossip", loopback.Address()}
		nodes[i] = n
		defer n.stop(syscall.SIGTERM)
		if _, err := n.first(ctx); err != nil {
			return err
		}
	}
	var took [5][]time.Duration
	for range rounds {
		for kind, f := range []func() (time.Duration, error){
			func() (time.Duration, error) { return nodes[0].again(ctx, syscall.SIGTERM) },
			func() (time.Duration, error) { return nodes[0].again(ctx, syscall.SIGKILL) },
			func() (time.Duration, error) { return embedded(ctx, self, e.Etcd) },
			func() (time.Duration, error) { return dev(ctx, allocator) },
			func() (time.Duration, error) { return rolling(ctx, nodes) },
		} {
			d, err := f()
			if err != nil {
				return err
			}
			took[kind] = append(took[kind], d)
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(out, "Time until the first ID, median and worst of %d rounds, load %.4s at the end:\n\n", rounds, load)
	fmt.Fprint(out, "| | median, ms | worst, ms |\n|---|--:|--:|\n")
	for kind, name := range []string{
		"a node that stopped and starts again", "a node that was killed and starts again", "a program with `embed`",
		"`allocator dev --nodes 1`, with an etcd and a new space",
		"longest call of the Go SDK while three nodes restart one after another",
	} {
		fmt.Fprintf(out, "| %s | %.0f | %.0f |\n", name, middle(millis(took[kind])), slices.Max(millis(took[kind])))
	}
	return nil
}

func millis(list []time.Duration) (ms []float64) {
	for _, d := range list {
		ms = append(ms, d.Seconds()*1e3)
	}
	return ms
}

// starting is a node that is started again and again.
type starting struct {
	args       []string
	grpc, http string
	cmd        *exec.Cmd // nil: it does not run
}

// first starts the process and returns how long it took until it had issued an ID.
func (n *starting) first(ctx context.Context) (time.Duration, error) {
	n.cmd = exec.CommandContext(ctx, n.args[0], n.args[1:]...)
	began := time.Now()
	if err := n.cmd.Start(); err != nil {
		return 0, err
	}
	for time.Since(began) < startTimeout {
		if issues(ctx, n.http) {
			return time.Since(began), nil
		}
		time.Sleep(200 * time.Microsecond)
	}
	return 0, fmt.Errorf("services: no ID from %s within %v", n.http, startTimeout)
}

// issues reports whether a node answers a request for an ID with one.
func issues(ctx context.Context, addr string) bool {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	_ = c.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/ids", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

func (n *starting) stop(how syscall.Signal) {
	if n.cmd != nil {
		_ = n.cmd.Process.Signal(how)
		_ = n.cmd.Wait()
		n.cmd = nil
	}
	http.DefaultClient.CloseIdleConnections()
}

// again ends the process and starts it again.
func (n *starting) again(ctx context.Context, how syscall.Signal) (time.Duration, error) {
	n.stop(how)
	return n.first(ctx)
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

func dev(ctx context.Context, allocator string) (time.Duration, error) {
	addr := loopback.Address()
	_, port, _ := strings.Cut(addr, ":")
	n := &starting{http: addr, args: []string{allocator, "dev", "--nodes", "1", "--grpc-port", "0",
		"--http-port", port}}
	defer n.stop(syscall.SIGTERM)
	return n.first(ctx)
}

// rolling returns the longest call of a caller while the nodes are restarted one after another.
func rolling(ctx context.Context, nodes []*starting) (longest time.Duration, err error) {
	var targets []string
	for _, n := range nodes {
		targets = append(targets, n.grpc)
	}
	c, err := client.New(client.Options{Targets: targets, Mode: client.Direct})
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	ended := make(chan error, 1)
	go func() {
		for _, n := range nodes {
			if _, err := n.again(ctx, syscall.SIGTERM); err != nil {
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
