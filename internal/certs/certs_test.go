package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/certs"
)

var quiet = slog.New(slog.DiscardHandler)

// listen answers every connection with the name of its client, until the test
// ends, and returns the address.
func listen(t *testing.T, c *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", c)
	fatal.If(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(wait.Most))
				b := make([]byte, 1)
				for { // an answer for each byte
					if _, err := conn.Read(b); err != nil {
						return
					}
					state := conn.(*tls.Conn).ConnectionState()
					_, _ = io.WriteString(conn, certs.ClientName(&state)+".")
				}
			}()
		}
	}()
	return l.Addr().String()
}

// ask sends a byte and returns the answer.
func ask(conn net.Conn) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(wait.Most))
	if _, err := conn.Write([]byte("x")); err != nil {
		return "", err
	}
	b := make([]byte, 100)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

func dialAsk(addr string, c *tls.Config) (string, error) {
	conn, err := tls.Dial("tcp", addr, c)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return ask(conn)
}

const day = 24 * time.Hour

func TestServer(t *testing.T) {
	ca, other := certstest.NewAuthority(t, "ca"), certstest.NewAuthority(t, "other")
	dir := t.TempDir()
	cert, key := ca.Issue(t, "node", -time.Hour, time.Hour).Write(t, dir, "node")
	clients := certstest.File(t, dir, "clients.pem", ca.PEM)
	s, err := certs.NewServer(certs.ServerFiles{Cert: cert, Key: key, ClientCA: clients}, quiet)
	fatal.If(t, err)
	if left := time.Until(s.Leaf().NotAfter); left < 50*time.Minute || left > time.Hour {
		t.Errorf("expires in %v", left)
	}
	addr := listen(t, s.Config("x"))
	with := func(a *certstest.Authority, name string, from, until time.Duration) *tls.Config {
		return &tls.Config{RootCAs: ca.Pool(), NextProtos: []string{"x"},
			Certificates: []tls.Certificate{a.Issue(t, name, from, until).TLS(t)}}
	}
	forced := func(c *tls.Config) *tls.Config { // shown whatever authorities the server names
		own := c.Certificates[0]
		c.Certificates = nil
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
		return c
	}
	good := with(ca, "shop", -time.Hour, day)
	old := good.Clone()
	old.MaxVersion = tls.VersionTLS12
	untrusting := good.Clone()
	untrusting.RootCAs = other.Pool()
	for _, tc := range []struct {
		name, want string
		config     *tls.Config
	}{
		{"a good certificate", "", good},
		{"no certificate", "certificate required", &tls.Config{RootCAs: ca.Pool()}},
		{"another authority's", "unknown certificate authority", forced(with(other, "shop", -time.Hour, day))},
		{"an expired one", "expired certificate", forced(with(ca, "shop", -day, -time.Hour))},
		{"one that begins tomorrow", "expired certificate", forced(with(ca, "shop", day, 2*day))},
		{"TLS 1.2", "protocol version", old},
		{"a client that trusts another authority", "unknown authority", untrusting},
		{"another protocol", "no application protocol", func() *tls.Config { c := good.Clone(); c.NextProtos = []string{"y"}; return c }()},
	} {
		got, err := dialAsk(addr, tc.config)
		switch {
		case tc.want == "" && (err != nil || got != "shop."):
			t.Errorf("%s: %q, %v", tc.name, got, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %q, %v, want %q", tc.name, got, err, tc.want)
		}
	}
}

// Certificates, keys and authorities are replaced while connections are open.
func TestServerFollowsItsFiles(t *testing.T) {
	first, second := certstest.NewAuthority(t, "first"), certstest.NewAuthority(t, "second")
	dir := t.TempDir()
	one := first.Issue(t, "one", -time.Hour, time.Hour)
	cert, key := one.Write(t, dir, "node")
	clients := certstest.File(t, dir, "clients.pem", first.PEM)
	s, err := certs.NewServer(certs.ServerFiles{Cert: cert, Key: key, ClientCA: clients}, quiet)
	fatal.If(t, err)
	addr := listen(t, s.Config())
	config := func(trust, mine *certstest.Authority) *tls.Config {
		return &tls.Config{RootCAs: trust.Pool(), Certificates: []tls.Certificate{mine.Issue(t, "shop", -time.Hour, day).TLS(t)},
			ClientSessionCache: tls.NewLRUClientSessionCache(10)} // to try to come back by a ticket
	}
	early := config(first, first)
	open, err := tls.Dial("tcp", addr, early)
	fatal.If(t, err)
	defer open.Close()
	answers := func(what string) {
		t.Helper()
		if got, err := ask(open); err != nil || got != "shop." {
			t.Errorf("%s: the open connection: %q, %v", what, got, err)
		}
	}
	answers("at first")

	two := second.Issue(t, "two", -time.Hour, day)
	certstest.File(t, dir, "node.pem", two.Cert) // and the key not yet
	s.Check()
	if !s.Failing() {
		t.Error("a certificate without its key is in use")
	}
	if _, err := dialAsk(addr, early); err != nil {
		t.Errorf("half a replacement: %v", err)
	}
	certstest.File(t, dir, "node.key", two.Key)
	s.Check()
	if s.Failing() || s.Reloads() != 1 {
		t.Errorf("failing %t, %d reloads", s.Failing(), s.Reloads())
	}
	answers("after the replacement")
	if _, err := dialAsk(addr, early); !isUnknownAuthority(err) {
		t.Errorf("who trusts the old authority: %v", err)
	}
	if got, err := dialAsk(addr, config(second, first)); err != nil || got != "shop." {
		t.Errorf("who trusts the new one: %q, %v", got, err)
	}

	resuming := config(second, first)
	if _, err := dialAsk(addr, resuming); err != nil {
		t.Fatal(err)
	}
	certstest.File(t, dir, "clients.pem", second.PEM)
	s.Check()
	answers("after its authority was removed")
	for range 2 {
		if _, err := dialAsk(addr, resuming); err == nil {
			t.Error("a client whose authority was removed is let in again")
		}
	}
	if got, err := dialAsk(addr, config(second, second)); err != nil || got != "shop." {
		t.Errorf("a client of the new authority: %q, %v", got, err)
	}

	certstest.File(t, dir, "clients.pem", []byte("nonsense"))
	s.Check()
	if _, err := dialAsk(addr, config(second, second)); err != nil || !s.Failing() {
		t.Errorf("nonsense as authorities: %v, failing %t", err, s.Failing())
	}
}

func isUnknownAuthority(err error) bool {
	_, ok := errors.AsType[x509.UnknownAuthorityError](err)
	return ok
}

// A replacement that every peer would reject is not used: the certificate before it may
// still be good.
func TestReplacementsThatNobodyAccepts(t *testing.T) {
	ca := certstest.NewAuthority(t, "ca")
	dir := t.TempDir()
	cert, key := ca.Issue(t, "one", -time.Hour, time.Hour).Write(t, dir, "node")
	server, err := certs.NewServer(certs.ServerFiles{Cert: cert, Key: key}, quiet)
	fatal.If(t, err)
	client, err := certs.NewClient("etcd_tls", certs.ClientFiles{Cert: cert, Key: key, Prefix: "etcd.tls."}, tls.VersionTLS12, quiet)
	fatal.If(t, err)
	first := client.Leaf().NotAfter
	for name, tc := range map[string]struct {
		pair                      certstest.Pair
		want                      string
		serverFailing, clientFail bool
	}{
		"expired":     {ca.Issue(t, "two", -2*time.Hour, -time.Minute), "expired at", true, true},
		"not yet":     {ca.Issue(t, "two", time.Hour, day), "not valid before", true, true},
		"client-only": {ca.Issue(t, "two", -time.Hour, day, x509.ExtKeyUsageClientAuth), "not for servers", true, false},
		"server-only": {ca.Issue(t, "two", -time.Hour, day, x509.ExtKeyUsageServerAuth), "not for clients", false, true},
		"any use":     {ca.Issue(t, "two", -time.Hour, day, x509.ExtKeyUsageAny), "", false, false},
	} {
		ca.Issue(t, "one", -time.Hour, time.Hour).Write(t, dir, "node")
		server.Check()
		client.Check()
		tc.pair.Write(t, dir, "node")
		server.Check()
		client.Check()
		if server.Failing() != tc.serverFailing || (time.Until(server.Leaf().NotAfter) > 2*time.Hour) == tc.serverFailing {
			t.Errorf("%s: server failing %t, its certificate expires at %v", name, server.Failing(), server.Leaf().NotAfter)
		}
		if at := client.Leaf().NotAfter; client.Failing() != tc.clientFail || (at.Sub(first) > time.Hour) == tc.clientFail {
			t.Errorf("%s: client failing %t, its certificate expires at %v", name, client.Failing(), at)
		}
		_, err1 := certs.NewServer(certs.ServerFiles{Cert: cert, Key: key}, quiet)
		_, err2 := certs.NewClient("x", certs.ClientFiles{Cert: cert, Key: key, Prefix: "etcd.tls."}, tls.VersionTLS12, quiet)
		if (err1 != nil) != tc.serverFailing || (err2 != nil) != tc.clientFail {
			t.Errorf("%s: at a start: %v, %v", name, err1, err2)
		}
		if err := errors.Join(err1, err2); err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// What gRPC connects with follows its files too, by address as by name.
func TestClientFollowsItsFiles(t *testing.T) {
	first, second := certstest.NewAuthority(t, "first"), certstest.NewAuthority(t, "second")
	dir := t.TempDir()
	serve := func(a *certstest.Authority) string {
		return listen(t, &tls.Config{Certificates: []tls.Certificate{a.Issue(t, "etcd", -time.Hour, day).TLS(t)},
			ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"}})
	}
	old, renewed := serve(first), serve(second)
	ca := certstest.File(t, dir, "ca.pem", first.PEM)
	cert, key := first.Issue(t, "one", -time.Hour, time.Hour).Write(t, dir, "me")
	c, err := certs.NewClient("etcd_tls", certs.ClientFiles{CA: ca, Cert: cert, Key: key}, tls.VersionTLS12, quiet)
	fatal.If(t, err)
	creds := c.Credentials().Clone()
	connect := func(addr, authority string) (string, error) {
		raw, err := net.Dial("tcp", addr)
		fatal.If(t, err)
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(wait.Most))
		conn, _, err := creds.ClientHandshake(t.Context(), authority, raw)
		if err != nil {
			return "", err
		}
		return ask(conn)
	}
	expect := func(what, addr, authority, want string, ok bool) {
		t.Helper()
		if got, err := connect(addr, authority); ok != (err == nil) || ok && got != want {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	expect("by address", old, old, "one.", true)
	expect("by name", old, "localhost:1", "one.", true)
	expect("by a name that the certificate does not have", old, "etcd.example:1", "", false)
	expect("by an address that it does not have", old, "127.0.0.2:1", "", false)
	expect("an unknown authority", renewed, renewed, "", false)

	certstest.File(t, dir, "ca.pem", append(first.PEM, second.PEM...))
	c.Check()
	expect("both authorities, still the old certificate", old, old, "one.", true)
	second.Issue(t, "two", -time.Hour, day).Write(t, dir, "me")
	c.Check()
	expect("a new certificate", renewed, renewed, "two.", true)
	certstest.File(t, dir, "ca.pem", second.PEM)
	c.Check()
	expect("a removed authority", old, old, "", false)
	if at := c.Leaf().NotAfter; time.Until(at) < 20*time.Hour {
		t.Errorf("expires %v", at)
	}
}

// Errors name the file and quote nothing of it.
func TestFilesThatCannotBeUsed(t *testing.T) {
	ca := certstest.NewAuthority(t, "ca")
	dir := t.TempDir()
	cert, key := ca.Issue(t, "a", -time.Hour, day).Write(t, dir, "a")
	other, _ := ca.Issue(t, "b", -time.Hour, day).Write(t, dir, "b")
	secret := certstest.File(t, dir, "secret", []byte("-----BEGIN SECRET-----\nhunter2\n"))
	for _, f := range []certs.ServerFiles{
		{Cert: dir + "/none", Key: key}, {Cert: cert, Key: dir + "/none"}, {Cert: other, Key: key}, {Cert: cert, Key: secret},
		{Cert: secret, Key: key}, {Cert: cert, Key: key, ClientCA: secret}, {Cert: cert, Key: key, ClientCA: dir + "/none"},
	} {
		_, err := certs.NewServer(f, quiet)
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), dir) || !strings.HasPrefix(err.Error(), "tls.") {
			t.Errorf("%+v: %v", f, err)
		}
	}
	if _, err := certs.NewClient("x", certs.ClientFiles{CA: secret, Prefix: "--"}, tls.VersionTLS13, quiet); err == nil || !strings.HasPrefix(err.Error(), "--ca ") {
		t.Errorf("a client with nonsense for authorities: %v", err)
	}
}
