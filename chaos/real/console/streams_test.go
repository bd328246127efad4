package console

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
)

const (
	streams   = 1000
	perStream = 128 << 10       // bytes of memory
	measured  = 5 * time.Second // some heartbeats, and five snapshots
)

// TestManyStreams: a node with a thousand streams takes a bounded amount of memory for them,
// and issues as before: with events at the port of callers, and with the snapshots of pages,
// where dev serves its console to more connections than an admin port has.
func TestManyStreams(t *testing.T) {
	if !*long {
		t.Skip("not run: its timing needs a machine to itself; give -long")
	}
	c := dev(t)
	c.settle()
	get(t, c.console) // begins the work that dev's console is for
	node := c.nodes[0]
	t.Run("events", func(t *testing.T) { c.stream(t, node, "http://"+node.HTTP+"/v1/events") })
	t.Run("pages", func(t *testing.T) { c.stream(t, node, c.console+"feed?new=1&page=nodes") })
}

func (c *cluster) stream(t *testing.T, node member, url string) {
	memory, alone := c.memory(), node.latency(t)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	t.Cleanup(func() { stop(); readers.Wait() })
	client := &http.Client{Transport: &http.Transport{MaxIdleConns: -1}}
	var open, bytes atomic.Int64
	for range streams {
		readers.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				t.Error(err)
				return
			}
			res, err := client.Do(req)
			if err != nil || res.StatusCode != 200 {
				if ctx.Err() == nil {
					t.Error(res, err)
				}
				return
			}
			defer res.Body.Close()
			open.Add(1)
			for buf := make([]byte, 4<<10); ; {
				n, err := res.Body.Read(buf)
				bytes.Add(int64(n))
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("a stream ended: %v", err)
					}
					open.Add(-1)
					return
				}
			}
		})
	}
	for end := time.Now().Add(patience); open.Load() < streams; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) || t.Failed() {
			t.Fatalf("%d of %d streams are open", open.Load(), streams)
		}
	}
	began, had := time.Now(), bytes.Load()
	beside := node.latency(t)
	taken := float64(bytes.Load()-had) / time.Since(began).Seconds()
	growth := c.memory() - memory
	t.Logf("p99 of a call %v, with %d streams %v; %.2f MB/s to them; %.1f MB of memory, %d kB each",
		alone, streams, beside, taken/1e6, float64(growth)/(1<<20), growth/streams>>10)
	if taken < streams*10 {
		t.Errorf("the streams got %.0f bytes a second", taken)
	}
	if growth > streams*perStream {
		t.Errorf("memory grew by %d bytes, want at most %d", growth, streams*perStream)
	}
	if beside > 3*alone+20*time.Millisecond {
		t.Errorf("p99 is %v, without streams %v", beside, alone)
	}
}

// latency returns how long the slowest hundredth of calls takes, one after the other.
func (m member) latency(t *testing.T) time.Duration {
	t.Helper()
	var took []time.Duration
	for end := time.Now().Add(measured); time.Now().Before(end); {
		began := time.Now()
		res, err := http.Post("http://"+m.HTTP+"/v1/ids", "", nil)
		fatal.If(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		took = append(took, time.Since(began))
		if res.StatusCode != 200 {
			t.Fatalf("status %d", res.StatusCode)
		}
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// memory returns the resident memory of the cluster, in bytes.
func (c *cluster) memory() int64 {
	c.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		c.t.Skipf("not run: %v", err)
	}
	kb := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	n, err := strconv.ParseInt(string(kb[1]), 10, 64)
	fatal.If(c.t, err)
	return n << 10
}
