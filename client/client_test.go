package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/clienttest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// TestContract: the nodes of clienttest, the fakes of this package and real ones pass the
// same test, so that tests with them mean something.
func TestContract(t *testing.T) {
	at := func(targets ...string) func(*testing.T, client.Options) *client.Client {
		return func(t *testing.T, o client.Options) *client.Client {
			o.Targets = targets
			return dial(t, o)
		}
	}
	for name, connect := range map[string]func(t *testing.T) func(*testing.T, client.Options) *client.Client{
		"fake": func(t *testing.T) func(*testing.T, client.Options) *client.Client {
			return at(newFake(t, 1).addr, newFake(t, 2).addr)
		},
		"clienttest": func(*testing.T) func(*testing.T, client.Options) *client.Client {
			a, b := clienttest.NewNode(clienttest.Options{SID: 1}), clienttest.NewNode(clienttest.Options{SID: 2})
			return func(t *testing.T, o client.Options) *client.Client { return clienttest.NewClient(t, o, a, b) }
		},
		"real": func(t *testing.T) func(*testing.T, client.Options) *client.Client {
			return at(cluster(t, 2)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := connect(t)
			for _, mode := range modes {
				t.Run(mode.String(), func(t *testing.T) { contract(t, client, mode) })
			}
		})
	}
}

func contract(t *testing.T, dial func(*testing.T, client.Options) *client.Client, mode client.Mode) {
	c := dial(t, client.Options{Mode: mode})
	ctx := t.Context()
	var last flake.ID
	rises := func(id flake.ID) {
		t.Helper()
		if id <= last {
			t.Fatalf("%v after %v", id, last)
		}
		last = id
	}
	for range 20 {
		id, err := c.Next(ctx)
		fatal.If(t, err)
		rises(id)
	}
	ids := make([]flake.ID, 100)
	fatal.If(t, c.NextN(ctx, ids))
	for _, id := range ids {
		rises(id)
	}
	if err := c.NextN(ctx, nil); err != nil {
		t.Errorf("no IDs: %v", err)
	}
	for _, n := range []int{1, 2, 1000, 20_000, 100_000} {
		b, err := c.Block(ctx, n)
		fatal.If(t, err)
		if b.Count != n || b.Stride != 32 || b.Node == "" || b.Format != flake.Default || b.At(0) != b.First {
			t.Errorf("block of %d: %+v", n, b)
		}
		if got := b.Format.SID(b.Last()); got != b.SID {
			t.Errorf("sid %d in an ID of sid %d", got, b.SID)
		}
		rises(b.First)
		if n > 1 {
			rises(b.Last())
		}
		if all := b.Append(nil); len(all) != n || all[n-1] != b.Last() {
			t.Errorf("Append gives %d IDs of %d", len(all), n)
		}
	}
	wides := make([]ulid.ID, 10)
	fatal.If(t, c.NextULIDs(ctx, wides))
	w, err := c.NextULID(ctx)
	fatal.If(t, err)
	for _, w := range append(wides, w) {
		f, err := w.Flake(flake.Default)
		if err != nil {
			t.Fatalf("%v holds no flake: %v", w, err)
		}
		rises(f)
	}
	for _, n := range []int{-1, 0, 1_000_001} {
		if _, err := c.Block(ctx, n); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
			t.Errorf("block of %d: %v", n, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Next(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with a canceled context: %v", err)
	}
	// What another client was given can be gone on from, up to a node's lead.
	ahead := last + 50<<20
	c.Observe(ahead)
	id, err := c.Next(ctx)
	fatal.If(t, err)
	last = ahead
	rises(id)
	if got := c.Last(); got < id {
		t.Errorf("Last is %v after %v", got, id)
	}
	s := c.Stats()
	if s.IDs < 100_000 || len(s.Nodes) != 2 {
		t.Errorf("stats: %+v", s)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Next(ctx); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := c.Block(ctx, 50_000); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// connected waits until c is connected to n nodes.
func connected(t testing.TB, c *client.Client, n int) {
	t.Helper()
	wait.Until(t, "connected", func() bool {
		ready := 0
		for _, s := range c.Stats().Nodes {
			if s.State == "ready" {
				ready++
			}
		}
		return ready == n
	})
}

// TestReset: a client that was given an ID from the future serves again at once after
// Reset, with IDs above what Reset names.
func TestReset(t *testing.T) {
	far := flake.ID(wordOf(time.Now().Add(time.Hour)) << 5)
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			f, g := newFake(t, 1), newFake(t, 2)
			var after atomic.Int64 // of the latest request
			for _, f := range []*fake{f, g} {
				f.act(func(_ context.Context, _ int64, req *pb.AllocateRequest) act {
					after.Store(req.After)
					if req.After >= int64(far) {
						return act{refuse: client.AfterTooFar}
					}
					return act{}
				})
			}
			c := dial(t, client.Options{Targets: []string{f.addr, g.addr}, Mode: mode, After: far, Timeout: time.Minute})
			connected(t, c, 2)
			floor := flake.ID(0)
			for range 3 {
				_, err := c.Next(t.Context())
				if !errors.Is(err, &client.Refusal{Reason: client.AfterTooFar}) {
					t.Fatalf("got %v", err)
				}
				c.Reset(floor)
				if n := nodeStats(c, f.addr).Backoff + nodeStats(c, g.addr).Backoff; n > 0 {
					t.Errorf("nodes are not asked for %v after Reset", n)
				}
				for range 100 {
					id, err := c.Next(t.Context())
					if err != nil {
						t.Fatalf("after Reset: %v", err)
					}
					if id <= floor || id >= far {
						t.Fatalf("got %v, above %v and below %v was asked for", id, floor, far)
					}
					if a := flake.ID(after.Load()); a != floor && mode != client.Prefetch { // which asks ahead
						t.Fatalf("a node was asked for more than %v, the last ID is %v", a, floor)
					}
					floor = id
				}
				floor += 20 << 20
				c.Observe(far)
			}
		})
	}
}

// TestResetDropsBlocks: IDs that were fetched for the old order are not given in the new
// one, and neither are those that were on their way.
func TestResetDropsBlocks(t *testing.T) {
	f := newFake(t, 1)
	ahead := flake.ID(wordOf(time.Now().Add(time.Hour)) << 5)
	hold, held := make(chan struct{}), make(chan struct{})
	f.act(func(_ context.Context, number int64, _ *pb.AllocateRequest) act {
		if number > 2 { // its clock is right again
			if f.mu.Lock(); number == 3 {
				f.word = 0
			}
			f.mu.Unlock()
			return act{}
		}
		if number == 2 { // the next block, fetched while the first one is used
			close(held)
			<-hold
		}
		return act{mangle: func(r *pb.AllocateResponse) { r.First += int64(ahead) &^ (1<<20 - 1) }} // a wrong clock
	})
	c := dial(t, client.Options{Targets: []string{f.addr}, Mode: client.Prefetch, MaxAge: time.Hour, AttemptTimeout: time.Minute})
	for range 40 {
		if id, err := c.Next(t.Context()); err != nil || id < ahead {
			t.Fatalf("%v, %v", id, err)
		}
	}
	<-held
	c.Reset(0)
	close(hold)
	for range 200 {
		if id, err := c.Next(t.Context()); err != nil || id > ahead {
			t.Fatalf("after Reset: %v, %v", id, err)
		}
	}
}

// TestResetDuringACall: what a call that began before Reset gets does not count for the new
// order, in which its ID may be far ahead.
func TestResetDuringACall(t *testing.T) {
	ahead := flake.ID(wordOf(time.Now().Add(time.Hour)) << 5)
	for _, mode := range modes {
		for name, call := range map[string]func(*client.Client) (flake.ID, error){
			"Next":      func(c *client.Client) (flake.ID, error) { return c.Next(t.Context()) },
			"NextAfter": func(c *client.Client) (flake.ID, error) { return c.NextAfter(t.Context(), ahead) },
			"Block": func(c *client.Client) (flake.ID, error) {
				b, err := c.Block(t.Context(), 1000)
				return b.First, err
			},
		} {
			if mode == client.Prefetch && name == "Next" {
				continue // TestResetDropsBlocks has it
			}
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				f := newFake(t, 1)
				hold, held := make(chan struct{}), make(chan struct{})
				f.act(func(_ context.Context, number int64, _ *pb.AllocateRequest) act {
					if number > 1 {
						return act{}
					}
					close(held)
					<-hold
					return act{mangle: func(r *pb.AllocateResponse) { r.First = int64(ahead) + 32 }}
				})
				c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode, AttemptTimeout: time.Minute})
				client.LimitPrefetch(c, 64) // so that a larger block has a request of its own
				got := make(chan error, 1)
				go func() {
					id, err := call(c)
					if err == nil && id <= ahead {
						err = fmt.Errorf("got %v, which is not what the node sent", id)
					}
					got <- err
				}()
				<-held
				c.Reset(0)
				close(hold)
				fatal.If(t, <-got)
				f.mu.Lock()
				f.word = 0 // the clock is right again
				f.mu.Unlock()
				if id, err := c.Next(t.Context()); err != nil || id >= ahead || c.Last() >= ahead {
					t.Errorf("after Reset: %v, %v; the last is %v", id, err, c.Last())
				}
			})
		}
	}
}

// TestBlock: the ways to read a block agree.
func TestBlock(t *testing.T) {
	b := client.Block{First: 1<<40 | 7, Count: 5, Stride: 32, SID: 7, Node: "node-a"}
	want := b.Append(nil)
	if got := slices.Collect(b.All()); !slices.Equal(got, want) || len(got) != 5 {
		t.Errorf("All gives %v, Append %v", got, want)
	}
	for id := range b.All() {
		if id == b.At(2) {
			break
		} else if id > b.At(2) {
			t.Errorf("%v after the end of the loop", id)
		}
	}
	short := make([]flake.ID, 3)
	if n := b.Fill(short); n != 3 || !slices.Equal(short, want[:3]) {
		t.Errorf("Fill gives %d: %v of %v", n, short, want)
	}
	long := make([]flake.ID, 7)
	if n := b.Fill(long); n != 5 || !slices.Equal(long[:5], want) || long[5] != 0 {
		t.Errorf("Fill gives %d: %v of %v", n, long, want)
	}
	if b.Last() != want[4] || b.At(4) != want[4] {
		t.Errorf("the last is %v and %v, not %v", b.Last(), b.At(4), want[4])
	}
	for _, i := range []int{-1, 5} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("At(%d) of 5 IDs did not panic", i)
				}
			}()
			b.At(i)
		}()
	}
	one := b
	one.Count = 1
	for _, tc := range []struct {
		block client.Block
		want  string
	}{
		{client.Block{}, "no IDs"},
		{one, "1 ID " + want[0].String() + " of node-a, sid 7"},
		{b, "5 IDs from " + want[0].String() + " to " + want[4].String() + " of node-a, sid 7"},
	} {
		if got := tc.block.String(); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

// TestCloseDrains: Close lets calls under way finish, and refuses the rest.
func TestCloseDrains(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			f := newFake(t, 1)
			asked, release := make(chan struct{}, 100), make(chan struct{})
			f.act(func(context.Context, int64, *pb.AllocateRequest) act {
				asked <- struct{}{}
				<-release
				return act{}
			})
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode, AttemptTimeout: time.Minute, Timeout: time.Minute})
			first := make(chan error, 1)
			go func() {
				_, err := c.Next(t.Context())
				first <- err
			}()
			<-asked
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if _, err := c.Next(t.Context()); err != nil && !errors.Is(err, client.ErrClosed) {
						t.Errorf("call beside Close: %v", err)
					}
				})
			}
			closed := make(chan struct{})
			go func() {
				_ = c.Close()
				close(closed)
			}()
			wait.Until(t, "closed to new calls", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				_, err := c.Next(ctx)
				return errors.Is(err, client.ErrClosed)
			})
			if _, err := c.Watermark(t.Context()); !errors.Is(err, client.ErrClosed) {
				t.Errorf("a watermark beside Close: %v", err)
			}
			select {
			case <-closed:
				t.Error("Close did not wait")
			default:
			}
			close(release)
			<-closed
			wg.Wait()
			if err := <-first; err != nil {
				t.Errorf("call under way: %v", err)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for field, o := range map[string]client.Options{
		"Targets: is empty":          {},
		"\"localhost\" is not":       {Targets: []string{"localhost"}},
		"\":9000\" is not host:port": {Targets: []string{":9000"}},
		"\"host:\" is not host:port": {Targets: []string{"host:"}},
		"there is no port \"99999\"": {Targets: []string{"a:99999"}},
		"there is no port \"0\"":     {Targets: []string{"a:0"}},
		"TokenFile: stat":            {Targets: []string{"a:1"}, TokenFile: "missing", PlaintextToken: true},
		"Mode: there is no mode(3)":  {Targets: []string{"a:1"}, Mode: 3},
		"After":                      {Targets: []string{"a:1"}, After: -1},
		"AttemptTimeout":             {Targets: []string{"a:1"}, AttemptTimeout: -1},
		"MaxAge":                     {Targets: []string{"a:1"}, MaxAge: -1},
		"Token and TokenFile":        {Targets: []string{"a:1"}, TokenFile: "x", Token: func(context.Context) (string, error) { return "", nil }, TLS: &tls.Config{}},
		"is required with a token,":  {Targets: []string{"a:1"}, TokenFile: "x"},
	} {
		if c, err := client.New(o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
			if c != nil {
				_ = c.Close()
			}
		}
	}
}

// TestTLS: TLS verifies the name of the target, not its address, and clients without
// a certificate are refused where one is required.
func TestTLS(t *testing.T) {
	t.Parallel()
	authority := certstest.NewAuthority(t, "nodes")
	pair := authority.Issue(t, "node", -time.Minute, time.Hour).TLS(t)
	f := newFake(t, 1, grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{pair}, ClientCAs: authority.Pool(), ClientAuth: tls.RequireAndVerifyClientCert})))
	_, port, _ := strings.Cut(f.addr, ":")
	dial := func(t *testing.T, o client.Options) *client.Client {
		c, err := client.NewNamed(o, func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil })
		fatal.If(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	known := &tls.Config{RootCAs: authority.Pool(), Certificates: []tls.Certificate{pair}}
	anonymous := known.Clone()
	anonymous.Certificates = nil
	named := known.Clone()
	named.ServerName = "localhost" // which the certificate is for
	for what, tc := range map[string]struct {
		target string
		tls    *tls.Config
		fault  string // "": served
	}{
		"address":          {f.addr, known, ""},
		"server name":      {"nodes.example:" + port, named, ""},
		"another name":     {"nodes.example:" + port, known, "nodes.example"},
		"anonymous caller": {f.addr, anonymous, "unavailable"},
	} {
		t.Run(what, func(t *testing.T) {
			if tc.fault == "" {
				c := dial(t, client.Options{Targets: []string{tc.target}, TLS: tc.tls, Timeout: time.Minute})
				if _, err := c.Next(t.Context()); err != nil {
					t.Error(err)
				}
				return
			}
			c := dial(t, client.Options{Targets: []string{tc.target}, TLS: tc.tls, Timeout: 500 * time.Millisecond})
			wait.Until(t, "an error that names "+tc.fault, func() bool {
				_, err := c.Next(t.Context())
				if !errors.Is(err, client.ErrUnavailable) {
					t.Fatalf("got %v", err)
				}
				return strings.Contains(err.Error(), tc.fault)
			})
		})
	}
}
