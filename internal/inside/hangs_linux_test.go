package inside

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/config"
)

// A process that takes connections and sends nothing hangs. One that refuses or misses connections, or sends
// anything, does not. What the resolver does says nothing of the member.
func TestHangs(t *testing.T) {
	before := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = before })
	net.DefaultResolver = &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}
	dir, authority := t.TempDir(), certstest.NewAuthority(t, "ours")
	files := config.TLS{CA: certstest.File(t, dir, "ca.pem", authority.PEM)}
	files.Cert, files.Key = authority.Issue(t, "member", -time.Hour, time.Hour).Write(t, dir, "member")
	conf, err := tlsOf(files)
	fatal.If(t, err)
	const own, unresolved = "127.0.0.1", "a.invalid"
	plain := config.TLS{}
	var all sync.WaitGroup
	for _, tc := range []struct {
		name, host string
		tls        config.TLS
		member     func(net.Listener) // what it does at its port
		want       bool
	}{
		{"takes connections alone", own, plain, takes, true},
		{"takes connections alone, with TLS", own, files, takes, true},
		{"takes connections alone, and its name is not resolved", unresolved, plain, takes, true},
		{"answers", own, plain, answers, false},
		{"answers, and its name is not resolved", unresolved, plain, answers, false},
		{"waits for the resolver after the handshake", own, files, func(l net.Listener) {
			takes(tls.NewListener(l, conf))
		}, false},
		{"refuses", own, plain, func(l net.Listener) { _ = l.Close() }, false},
		{"SYN is dropped", own, plain, drops, false},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		fatal.If(t, err)
		defer l.Close()
		var cfg Config
		cfg.Etcd.TLS, cfg.Etcd.Inside.PeerPort = tc.tls, l.Addr().(*net.TCPAddr).Port
		i := &Inside{Site: siteOf(cfg, tc.host, own), cfg: cfg}
		tc.member(l)
		all.Go(func() {
			if got := i.hangs(t.Context()); got != tc.want {
				t.Errorf("%s: it hangs: %v, want %v", tc.name, got, tc.want)
			}
		})
	}
	all.Wait()
}

// takes takes connections, with what belongs to TLS, and sends nothing.
func takes(l net.Listener) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
	}()
}

func answers(l net.Listener) { go func() { _ = http.Serve(l, http.NotFoundHandler()) }() }

// drops has the system drop each SYN: the queue has room for one connection.
func drops(l net.Listener) {
	if raw, err := l.(*net.TCPListener).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), 0) })
	}
	_, _ = net.Dial("tcp", l.Addr().String())
}
