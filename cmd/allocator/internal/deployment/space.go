// Package deployment is what admin and doctor work on: the space in etcd, and the
// reports of its nodes.
package deployment

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/status"
)

// Space is the connection of a command that works on etcd itself.
type Space struct {
	Cfg   config.Config
	Store *etcdstore.Store
	Close func()
}

// OpenSpace connects with the settings that load gives. It contacts nobody yet,
// unless there is a password.
func OpenSpace(a *cli.App, command string, load cli.Loader) (*Space, error) {
	return openSpace(a, command, load, daemon.DialConfig)
}

// ViewSpace is OpenSpace for a command that changes nothing: it goes on without a certificate that is not
// valid now.
func ViewSpace(a *cli.App, command string, load cli.Loader) (*Space, error) {
	return openSpace(a, command, load, daemon.DialAnyway)
}

// loginTimeout is how long etcd may take to accept a password, whose hash is slow on purpose. A person waits
// longer for that than a node, which tries the next member instead.
const loginTimeout = 10 * time.Second

func openSpace(a *cli.App, command string, load cli.Loader,
	dialer func(config.Etcd, *slog.Logger) (etcdstore.Config, *certs.Client, error)) (*Space, error) {
	c, _, err := cli.WithEtcd(command, load)
	if err != nil {
		return nil, err
	}
	dial, _, err := dialer(c.Etcd, cli.Logger(config.Log{Level: "error", Format: c.Log.Format}, a.Err))
	if err != nil {
		return nil, cli.Exit(cli.ExitUsage, err)
	}
	if dial.Username != "" {
		dial.DialTimeout = loginTimeout
	}
	client, err := etcdstore.Dial(dial)
	if err != nil {
		return nil, cli.Exit(cli.ExitUnavailable, err)
	}
	store, err := etcdstore.New(client, c.Root, c.Space)
	if err != nil {
		_ = client.Close()
		return nil, cli.Exit(cli.ExitUsage, err)
	}
	return &Space{Cfg: c, Store: store, Close: func() { _ = client.Close() }}, nil
}

// WallNow returns this machine's wall clock.
func WallNow() clock.Millis { return clock.NewSystem(nil).Now().Wall }

// NodeReport is what one node answered when asked about the cluster.
type NodeReport struct {
	Addr, Name string // name: as registered or as it says; "" unknown
	Took       time.Duration
	At         time.Time // when it was asked, by this machine
	Cluster    status.Cluster
	Err        error
}

// AskTimeout is how long one node may take to say what it knows.
const AskTimeout = 3 * time.Second

// AskNodes asks every address at the same time, and returns the answers in the
// order of addrs.
func AskNodes(ctx context.Context, d remote.Dialer, addrs []string) []NodeReport {
	return Each(addrs, func(addr string) NodeReport {
		ctx, cancel := context.WithTimeout(ctx, AskTimeout)
		defer cancel()
		return AskNode(ctx, d, addr)
	})
}

// Each calls f for each of list at the same time, and returns the answers in the order of list.
func Each[T, A any](list []T, f func(T) A) []A {
	out := make([]A, len(list))
	var all sync.WaitGroup
	for i, one := range list {
		all.Go(func() { out[i] = f(one) })
	}
	all.Wait()
	return out
}

// AskNode asks one address, until ctx ends.
func AskNode(ctx context.Context, d remote.Dialer, addr string) NodeReport {
	w := NodeReport{Addr: addr}
	conn, err := d.Dial(addr)
	if err != nil {
		w.Err = err
		return w
	}
	defer func() { _ = conn.Close() }()
	// The first call opens the connection; the second tells the clock without it.
	if _, w.Err = status.Ask(ctx, conn); w.Err != nil {
		return w
	}
	w.At = time.Now()
	w.Cluster, w.Err = status.Ask(ctx, conn)
	w.Took = time.Since(w.At)
	w.Name = w.Cluster.Self.Name
	return w
}

// NodeAddrs returns the gRPC addresses of registered nodes and those that were given, each once.
func NodeAddrs(registered []lease.Registration, given []string) (out []string) {
	var all []string
	for _, r := range registered {
		all = append(all, r.GRPC)
	}
	for _, addr := range append(all, given...) {
		if addr = strings.TrimSpace(addr); addr != "" && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// NamesOf returns the names of registered nodes by their gRPC addresses.
func NamesOf(nodes []lease.Registration) map[string]string {
	out := map[string]string{}
	for _, r := range nodes {
		out[r.GRPC] = r.Node
	}
	return out
}

// Offset returns the interval that a node's clock less this machine's lies in.
func (w NodeReport) Offset() (lo, hi time.Duration) {
	at := time.UnixMilli(w.Cluster.Self.Now)
	return at.Sub(w.At.Add(w.Took)), at.Sub(w.At) + time.Millisecond // it was cut to milliseconds
}

// Label names the node as well as it is known.
func (w NodeReport) Label() string {
	if w.Name == "" {
		return w.Addr
	}
	return fmt.Sprintf("%s at %s", w.Name, w.Addr)
}
