package operator

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	stdlog "log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/config"
)

// ownFiles writes a new certificate that nobody signed, and its key.
func ownFiles(t *testing.T) config.ServerTLS {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal.If(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"elsewhere.example"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	fatal.If(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	fatal.If(t, err)
	dir := t.TempDir()
	files := config.ServerTLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), Admin: true}
	for path, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: cert}, files.Key: {Type: "PRIVATE KEY", Bytes: private}} {
		fatal.If(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	return files
}

// The probe of an admin port with TLS trusts the node's own certificate and no
// other, and shows it where the node asks for one.
func TestHealthOverTLS(t *testing.T) {
	files := ownFiles(t)
	own, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	fatal.If(t, err)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = io.WriteString(w, "ok\n")
	}))
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert}
	srv.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()

	ask := func(files config.ServerTLS) (string, error) {
		c := config.Default()
		c.Listen.Admin, c.TLS = srv.Listener.Addr().String(), files
		at, client, err := adminOf(c)
		if err != nil {
			return "", err
		}
		var out strings.Builder
		err = ask(t.Context(), client, at.String()+"/readyz", &out)
		return out.String(), err
	}
	if said, err := ask(files); err != nil || said != "ok\n" {
		t.Errorf("the node's own: %q, %v", said, err)
	}
	if said, err := ask(ownFiles(t)); err == nil || !strings.Contains(err.Error(), "does not use the certificate of tls.cert") {
		t.Errorf("another's certificate: %q, %v", said, err)
	}
	if _, err := ask(config.ServerTLS{Cert: "none", Key: "none", Admin: true}); err == nil || !strings.Contains(err.Error(), "tls.admin") {
		t.Errorf("no file: %v", err)
	}
	if _, err := ask(config.ServerTLS{}); err == nil {
		t.Error("asked without TLS, and served")
	}
}

func TestHealthAddress(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:7947": "127.0.0.1:7947", ":7947": "127.0.0.1:7947", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", "10.0.0.1:1": "10.0.0.1:1", "[fd00::1]:1": "[fd00::1]:1",
		"": "", "127.0.0.1:0": "", "7947": "",
	} {
		c := config.Default()
		c.Listen.Admin = listen
		if at, _, err := adminOf(c); at.Host != want || (err != nil) != (want == "") {
			t.Errorf("%q: asks %q, %v; want %q", listen, at.Host, err, want)
		}
	}
}
