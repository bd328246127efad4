package daemon

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
)

// Who only looks goes on without a certificate whose time is over, and is told.
func TestDialAnyway(t *testing.T) {
	dir, authority := t.TempDir(), certstest.NewAuthority(t, "ours")
	ca := certstest.File(t, dir, "ca.pem", authority.PEM)
	for name, left := range map[string]time.Duration{"valid": time.Hour, "over": -time.Hour} {
		cert, key := authority.Issue(t, name, -2*time.Hour, left).Write(t, dir, name)
		e := config.Etcd{Endpoints: []string{"https://127.0.0.1:1"}, TLS: config.TLS{CA: ca, Cert: cert, Key: key}}
		var log strings.Builder
		out := slog.New(slog.NewTextHandler(&log, nil))
		if _, _, err := DialConfig(e, out); errors.Is(err, certs.ErrTime) != (left < 0) {
			t.Errorf("%s: %v", name, err)
		}
		dial, client, err := DialAnyway(e, out)
		if err != nil || dial.TLS == nil || dial.TLS.RootCAs == nil || (client.Leaf() != nil) != (left > 0) {
			t.Errorf("%s: %+v, %v", name, dial, err)
		}
		if told := strings.Contains(log.String(), "going on without a certificate"); told != (left < 0) {
			t.Errorf("%s: %s", name, &log)
		}
	}
}

// The files for etcd are read again while the node runs, as all others are.
func TestEtcdFilesAreReadAgain(t *testing.T) {
	ca := certstest.NewAuthority(t, "etcd")
	cert, key := ca.Issue(t, "node", -time.Hour, time.Hour).Write(t, t.TempDir(), "node")
	c, err := certs.NewClient("etcd_tls", certs.ClientFiles{Cert: cert, Key: key, Prefix: "etcd.tls."}, tls.VersionTLS12,
		slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	if all := (&security{etcd: c}).files(); len(all) != 1 || all["etcd_tls"] != files(c) {
		t.Errorf("%v are read again", all)
	}
}
