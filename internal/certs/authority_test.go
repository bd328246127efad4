package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
)

// Two hosts whose certificates one authority signed accept each other, and nobody else.
func TestAuthority(t *testing.T) {
	dir, other, now := t.TempDir(), t.TempDir(), time.Now()
	a := Authority{Dir: dir, Now: now}
	if made, err := a.Sign([]string{"127.0.0.1", "a.example"}, 24*time.Hour, false); err != nil || len(made) != 2 {
		t.Fatal(made, err)
	}
	if _, err := (Authority{Dir: other, Now: now}).Sign([]string{"127.0.0.1"}, 24*time.Hour, false); err != nil {
		t.Fatal(err)
	}
	config := func(dir, host string) *tls.Config {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, host+".pem"), filepath.Join(dir, host+".key"))
		fatal.If(t, err)
		text, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
		fatal.If(t, err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.TLS = config(dir, "127.0.0.1")
	srv.StartTLS()
	defer srv.Close()
	get := func(c *tls.Config) error {
		r, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: c}}).Get(srv.URL)
		if err == nil {
			r.Body.Close()
		}
		return err
	}
	if err := get(config(dir, "a.example")); err != nil {
		t.Errorf("of the same authority: %v", err)
	}
	mine, foreign := config(dir, "a.example"), config(other, "127.0.0.1")
	foreign.RootCAs = mine.RootCAs
	if err := get(foreign); err == nil {
		t.Error("a certificate of another authority was accepted")
	}
	if info, err := os.Stat(filepath.Join(dir, "ca.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key of the authority: %v, %v", info.Mode(), err)
	}

	// A second call adds hosts and renews what ends soon.
	made, err := a.Sign([]string{"127.0.0.1", "b.example"}, 24*time.Hour, false)
	if err != nil || !slices.Equal(made, []string{"b.example"}) {
		t.Errorf("another host: %v, %v", made, err)
	}
	later := Authority{Dir: dir, Now: now.Add(23 * time.Hour)}
	if made, err := later.Sign([]string{"127.0.0.1"}, 24*time.Hour, false); err != nil || len(made) != 1 {
		t.Errorf("near its end: %v, %v", made, err)
	}
	if made, err := later.Sign([]string{"127.0.0.1"}, 24*time.Hour, true); err != nil || len(made) != 1 {
		t.Errorf("again: %v, %v", made, err)
	}
	for _, host := range []string{"", "a/b", "../x", "https://a", "a:1", "ca"} {
		if _, err := a.Sign([]string{host}, time.Hour, false); !errors.Is(err, ErrAuthority) {
			t.Errorf("host %q: %v", host, err)
		}
	}
	fatal.If(t, os.WriteFile(filepath.Join(dir, "ca.key"), []byte("x"), 0o600))
	if _, err := a.Sign([]string{"c.example"}, time.Hour, false); !errors.Is(err, ErrAuthority) {
		t.Errorf("a broken key: %v", err)
	}
}
