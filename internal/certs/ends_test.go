package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
)

// A certificate that ends is told of each day, from a month before, or from the last tenth of its time.
func TestWarnOfEnds(t *testing.T) {
	const day = 24 * time.Hour
	for name, want := range map[string]struct {
		lasts, left time.Duration
		after       time.Duration
		lines       int
	}{
		"a year left":     {365 * day, 365 * day, 10 * day, 0},
		"a month and two": {365 * day, 32 * day, 4*day - 1, 1},
		"ended":           {365 * day, -day, 2*day - 1, 2},
		"for a day":       {day, 3 * time.Hour, time.Hour, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			end := time.Now().Add(want.left)
			leaf := &x509.Certificate{NotBefore: end.Add(-want.lasts), NotAfter: end}
			ctx, cancel := context.WithTimeout(t.Context(), want.after)
			defer cancel()
			_ = WarnOfEnds(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() map[string]*x509.Certificate {
				return map[string]*x509.Certificate{"tls.cert": leaf}
			})
			if got := strings.Count(log.String(), "certificate ends soon"); got != want.lines {
				t.Errorf("%s: %d lines, want %d:\n%s", name, got, want.lines, &log)
			}
		})
	}
}

// What a server shows is seen whatever is wrong with it, and also if it wants a certificate.
func TestShown(t *testing.T) {
	authority := certstest.NewAuthority(t, "ours")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		pair := authority.Issue(t, "old", -2*time.Hour, -time.Hour).TLS(t)
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
			Certificates: []tls.Certificate{pair},
			MaxVersion:   version,
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    authority.Pool(),
		})
		fatal.If(t, err)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.(*tls.Conn).Handshake()
				_ = c.Close()
			}
		}()
		leaf, err := Shown(t.Context(), l.Addr().String())
		if err != nil || time.Until(leaf.NotAfter) > 0 {
			t.Errorf("TLS %x: %v, %v", version, leaf, err)
		}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	_ = silent.Close()
	if leaf, err := Shown(t.Context(), silent.Addr().String()); err == nil {
		t.Errorf("nobody shows %v", leaf)
	}
}

// Files share an authority also where each has others beside it, and a certificate without the mark may be of
// an authority that signs others than members.
func TestOpenEtcd(t *testing.T) {
	dir, one, other := t.TempDir(), certstest.NewAuthority(t, "one"), certstest.NewAuthority(t, "other")
	a, b := certstest.File(t, dir, "a", one.PEM), certstest.File(t, dir, "b", other.PEM)
	both := certstest.File(t, dir, "both", append(append([]byte{}, other.PEM...), one.PEM...))
	for _, tc := range []struct {
		a, b string
		want bool
	}{{a, a, true}, {a, b, false}, {a, both, true}, {both, a, true}, {a, "", false}, {"", "", false}} {
		if got, do := OpenEtcd(tc.a, tc.b, nil); strings.HasPrefix(got, "each client") != tc.want || tc.want == (do == "") {
			t.Errorf("%s and %s: %s, %s", filepath.Base(tc.a), filepath.Base(tc.b), got, do)
		}
	}
	if _, err := (Authority{Dir: dir, Now: time.Now()}).Sign([]string{"10.0.0.1"}, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	ours, err := Read(filepath.Join(dir, "10.0.0.1.pem"))
	fatal.If(t, err)
	if got, _ := OpenEtcd(a, b, ours[0]); got != "" || ours[0].VerifyHostname("10.0.0.1") != nil {
		t.Errorf("a member's certificate: %q, for %v and %v", got, ours[0].IPAddresses, ours[0].DNSNames)
	}
	if got, do := OpenEtcd(a, b, one.Issue(t, "checkout", -time.Hour, time.Hour).TLS(t).Leaf); got == "" || do == "" {
		t.Errorf("another service's certificate: %q, %q", got, do)
	}
}

// Hosts whose certificates are made together do not lose them together.
func TestSpread(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	hosts := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	if _, err := (Authority{Dir: dir, Now: now}).Sign(hosts, 365*24*time.Hour, false); err != nil {
		t.Fatal(err)
	}
	ends := map[time.Time]bool{}
	for _, h := range hosts {
		c, err := Read(filepath.Join(dir, h+".pem"))
		fatal.If(t, err)
		if left := c[0].NotAfter.Sub(now); left < 330*24*time.Hour || left > 365*24*time.Hour {
			t.Errorf("%s: %v", h, left)
		}
		ends[c[0].NotAfter] = true
	}
	if len(ends) != len(hosts) {
		t.Errorf("they end at %v", ends)
	}
}
