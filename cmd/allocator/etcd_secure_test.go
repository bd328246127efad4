package main

import (
	"crypto/tls"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	etcdmember "github.com/flakelease/allocator/internal/inside/member"
)

const day = 24 * time.Hour

// TestSecuredEtcd: a node at an etcd with TLS, client certificates and password
// login, with a role for its prefix alone. Logins that run out between two calls,
// and new certificates on either side, cost no part of a window.
func TestSecuredEtcd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, next := certstest.NewAuthority(t, "ca"), certstest.NewAuthority(t, "next")
	etcdCert, etcdKey := ca.Issue(t, "etcd", -time.Hour, day).Write(t, dir, "etcd")
	clients := certstest.File(t, dir, "clients.pem", ca.PEM)
	etcd, err := etcdserver.Start(t.Context(), etcdserver.Alone{
		NoSync: true, Run: etcdmember.Run{Client: "https://" + loopback.Address(), TLS: etcdmember.TLS{CA: clients, Cert: etcdCert, Key: etcdKey}},
		TokenTTL: time.Second, // a node calls every 1.25 to 5 s
	})
	fatal.If(t, err)
	t.Cleanup(func() { _ = etcd.Close() })

	c := daemontest.Settings(t, "a", etcd.Endpoint())
	root, err := clientv3.New(clientv3.Config{Endpoints: c.Etcd.Endpoints, DialTimeout: 20 * time.Second,
		TLS: &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, "root", -time.Hour, day).TLS(t)}}})
	fatal.If(t, err)
	defer root.Close()
	must := func(_ any, err error) {
		t.Helper()
		fatal.If(t, err)
	}
	prefix := "/" + c.Root + "/" + c.Space + "/"
	must(root.RoleAdd(t.Context(), "root"))
	must(root.RoleAdd(t.Context(), "nodes"))
	must(root.RoleGrantPermission(t.Context(), "nodes", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	for user, role := range map[string]string{"root": "root", "node": "nodes"} {
		must(root.UserAdd(t.Context(), user, "hunter2"))
		must(root.UserGrantRole(t.Context(), user, role))
	}
	must(root.AuthEnable(t.Context()))

	c.Etcd.DialTimeout, c.Lease.CallTimeout = 20*time.Second, 5*time.Second // for busy machines
	c.Etcd.Username = "node"
	c.Etcd.PasswordFile = certstest.File(t, dir, "password", []byte("hunter2\n"))
	c.Etcd.TLS.CA = certstest.File(t, dir, "ca.pem", ca.PEM)
	c.Etcd.TLS.Cert, c.Etcd.TLS.Key = ca.Issue(t, "a-node", -time.Hour, day).Write(t, dir, "node")
	daemontest.Init(t, c)
	r := daemontest.Start(t, c, daemon.Host{})
	ready := func() bool { return r.Node().Ready() == nil }
	wait.Until(t, "the node is ready", ready)

	// At least three extensions, each by a login that has run out.
	first := r.Node().Stats().Ceil
	wait.Until(t, "the window is extended again and again", func() bool {
		return r.Node().Stats().Ceil >= first+clock.MillisOf(2*c.Lease.ExtendEvery)
	})
	wait.Until(t, "a login has run out: else the test shows nothing", func() bool {
		return strings.Contains(r.Log.String(), "invalid auth token")
	})

	// etcd comes back with a certificate of another authority, and asks for clients
	// of that one. The node is told by its files.
	etcd.Stop()
	next.Issue(t, "etcd", -time.Hour, day).Write(t, dir, "etcd")
	certstest.File(t, dir, "clients.pem", next.PEM)
	must(nil, etcd.Restart(t.Context()))
	certstest.File(t, dir, "ca.pem", next.PEM)
	next.Issue(t, "a-node", -time.Hour, day).Write(t, dir, "node")
	stopped := r.Node().Stats().Ceil
	wait.Until(t, "the window is extended by the new certificates", func() bool { return r.Node().Stats().Ceil > stopped })
	wait.Until(t, "the node is ready again", ready)
	if !strings.Contains(r.Log.String(), "files reloaded") {
		t.Error("no word of the new files in the log")
	}
	if strings.Contains(r.Log.String(), "hunter2") {
		t.Error("the log has the password")
	}
	if _, err := r.Node().Next(t.Context(), 1, 0); err != nil {
		t.Error(err)
	}
}

// What etcd does not accept is told without the password, and nothing is issued.
func TestSecuredEtcdRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, other := certstest.NewAuthority(t, "ca"), certstest.NewAuthority(t, "other")
	etcdCert, etcdKey := ca.Issue(t, "etcd", -time.Hour, day).Write(t, dir, "etcd")
	etcd, err := etcdserver.Start(t.Context(), etcdserver.Alone{NoSync: true, Run: etcdmember.Run{Client: "https://" + loopback.Address(),
		TLS: etcdmember.TLS{CA: certstest.File(t, dir, "ca.pem", ca.PEM), Cert: etcdCert, Key: etcdKey}}})
	fatal.If(t, err)
	t.Cleanup(func() { _ = etcd.Close() })
	mine := func(a *certstest.Authority, name string, from, until time.Duration) config.TLS {
		cert, key := a.Issue(t, name, from, until).Write(t, dir, name)
		return config.TLS{CA: dir + "/ca.pem", Cert: cert, Key: key}
	}
	var all sync.WaitGroup
	otherCA := certstest.File(t, dir, "other.pem", other.PEM)
	good := mine(ca, "good", -time.Hour, day)
	for name, files := range map[string]config.TLS{
		"":                                  good,
		"no certificate":                    {CA: good.CA},
		"an expired certificate":            mine(ca, "expired", -day, -time.Hour),
		"another authority's":               mine(other, "foreign", -time.Hour, day),
		"an etcd of an authority not known": {CA: otherCA, Cert: good.Cert, Key: good.Key},
	} {
		c := daemontest.Settings(t, "a", etcd.Endpoint())
		c.Etcd.TLS = files
		c.Lease.CallTimeout = time.Second // Each that is refused waits for it.
		if name == "" {
			c.Etcd.DialTimeout, c.Lease.CallTimeout = 20*time.Second, 5*time.Second
		}
		all.Go(func() {
			_, _, err := daemon.Init(t.Context(), c, daemon.Beginning{Fresh: true}, slog.New(slog.DiscardHandler))
			if (name == "") != (err == nil) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
}
