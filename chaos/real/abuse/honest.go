package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flakelease/allocator/chaos/load"
	"github.com/flakelease/allocator/client"
)

// callers are honest: they have a token, and send requests at a fixed rate, whether
// the node is quick or not.
type callers struct {
	steady []load.Worker // call on connections that stay
	fresh  []load.Worker // call on a new connection each time
	probes []load.Worker // ask for /livez, on a new connection each time
}

// Rates in calls a second, and how long one may take.
const (
	steadyRate = 1000.0
	freshRate  = 20.0
	probeRate  = 10.0
	patience   = 5 * time.Second
)

// token sends a token with each call, over TLS or not.
type token string

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}
func (token) RequireTransportSecurity() bool { return false }

// newCallers opens 32 gRPC connections, 8 of HTTP and 8 of RESP to the node as it runs for a.
func newCallers(n *node, a attack) (*callers, error) {
	secure, transport, scheme := &tls.Config{RootCAs: n.ca}, insecure.NewCredentials(), "http"
	if a.clear {
		secure = nil
	} else {
		transport, scheme = credentials.NewTLS(secure), "https"
	}
	cfg := load.Config{
		TLS:   secure,
		Token: n.honest,
		GRPC: []grpc.DialOption{grpc.WithTransportCredentials(transport),
			grpc.WithPerRPCCredentials(token(n.honest))},
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if a.socket && addr == n.RESP {
				network, addr = "unix", n.Socket
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
	c := &callers{}
	worker := func(name string, cl load.Client) load.Worker {
		return load.Worker{Targets: []load.Target{{Name: name, Client: cl}}, Counts: []int{1}}
	}
	for i := range 48 {
		kind, addr := load.GRPC, n.GRPC
		switch {
		case i%6 == 4:
			kind, addr = load.HTTP, n.HTTP
		case i%6 == 5:
			kind, addr = load.RESP, n.RESP
		}
		cl, err := cfg.Open(kind, addr)
		if err != nil {
			return nil, err
		}
		c.steady = append(c.steady, worker(kind, cl))
	}
	for range 100 {
		c.fresh = append(c.fresh,
			worker("fresh", load.Func(func(ctx context.Context, r load.Request) (client.Block, error) {
				t := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}
				req, err := http.NewRequestWithContext(ctx, "POST", scheme+"://"+n.HTTP+"/v1/ids?count=1", nil)
				if err != nil {
					return client.Block{}, err
				}
				req.Header.Set("Authorization", "Bearer "+n.honest)
				res, err := t.RoundTrip(req)
				if err != nil {
					return client.Block{}, err
				}
				defer res.Body.Close()
				if res.StatusCode != 200 {
					return client.Block{}, fmt.Errorf("fresh: %s", res.Status)
				}
				return client.Block{Count: r.Count}, nil
			})))
		c.probes = append(c.probes,
			worker("livez", load.Func(func(ctx context.Context, r load.Request) (client.Block, error) {
				return client.Block{Count: r.Count}, get(ctx, "http://"+n.Admin+"/livez", "")
			})))
	}
	return c, nil
}

// close closes the connections that stay.
func (c *callers) close() {
	for _, w := range c.steady {
		w.Targets[0].Client.Close()
	}
}

// seen is what the honest callers saw for a time.
type seen struct {
	Steady, Fresh, Probes count
	Latency               *hdrhistogram.Histogram // Steady's, in ns
	Failure               error                   // one of the failures
	Delay                 time.Duration           // 99th percentile of how late this process itself sent requests
}

// count is of calls that were due. Late ones were not sent, since all callers waited.
type count struct{ Calls, Failed, Late int64 }

// call runs all callers for a time.
func (c *callers) call(ctx context.Context, length time.Duration) seen {
	var s seen
	var all sync.WaitGroup
	run := func(workers []load.Worker, rate float64) (count, *load.Result) {
		r := load.New(load.Plan{Workers: workers, Rate: rate, Length: length, Timeout: patience, Finish: true}).Run(ctx)
		refused, _ := r.Refusals()
		failed := r.Failed + refused
		return count{Calls: r.Requests + failed + r.NotStarted, Failed: failed, Late: r.NotStarted}, r
	}
	var fresh, probes *load.Result
	called := make(chan struct{})
	var sampling sync.WaitGroup
	sampling.Go(func() { s.Delay = delay(called) })
	all.Go(func() { s.Fresh, fresh = run(c.fresh, freshRate) })
	all.Go(func() { s.Probes, probes = run(c.probes, probeRate) })
	var steady *load.Result
	s.Steady, steady = run(c.steady, steadyRate)
	all.Wait()
	close(called)
	sampling.Wait()
	s.Latency = steady.Latency
	for _, r := range []*load.Result{steady, fresh, probes} {
		if s.Failure == nil && r.Failure != nil {
			s.Failure = r.Failure
		}
		if refused, reasons := r.Refusals(); s.Failure == nil && refused > 0 {
			s.Failure = fmt.Errorf("refused: %v", reasons)
		}
	}
	return s
}

// delay sleeps again and again until done, and returns the 99th percentile of how much
// later than it asked for it woke.
func delay(done <-chan struct{}) time.Duration {
	const step = 2 * time.Millisecond
	late := hdrhistogram.New(1, int64(time.Minute), 2)
	for {
		began := time.Now()
		select {
		case <-done:
			return time.Duration(late.ValueAtQuantile(99))
		case <-time.After(step):
			_ = late.RecordValue(int64(max(1, time.Since(began)-step)))
		}
	}
}

// at returns a quantile of the steady callers' latency, in percent. Late calls count
// as slower than any.
func (s seen) at(q float64) time.Duration {
	if float64(s.Steady.Late) > float64(s.Steady.Calls)*(1-q/100) {
		return patience
	}
	return time.Duration(s.Latency.ValueAtQuantile(q))
}
