// Package certstest makes authorities and certificates for tests.
package certstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
)

// Authority signs certificates.
type Authority struct {
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	chain []byte // Its certificates are followed by this: those of authorities below the root.
	PEM   []byte
}

// NewAuthority returns a new one, which no other signs for.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	return newAuthority(t, name, nil)
}

// Intermediate returns an authority that a signs for. Its certificates have its own behind them.
func (a *Authority) Intermediate(t testing.TB, name string) *Authority {
	t.Helper()
	i := newAuthority(t, name, a)
	i.chain = slices.Concat(i.PEM, a.chain)
	return i
}

func newAuthority(t testing.TB, name string, by *Authority) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber:          serial(t),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	signer, key := template, a.key
	if by != nil {
		signer, key = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, a.key.Public(), key)
	fatal.If(t, err)
	a.cert, err = x509.ParseCertificate(der)
	fatal.If(t, err)
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// Pool returns the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// Pair is a certificate with its key, in PEM form.
type Pair struct {
	Cert, Key []byte
}

// Issue returns a certificate of that name for 127.0.0.1 and localhost. It is good from
// now+from to now+until, for uses; none: to serve and to call with.
func (a *Authority) Issue(t testing.TB, name string, from, until time.Duration, uses ...x509.ExtKeyUsage) Pair {
	t.Helper()
	if len(uses) == 0 {
		uses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(from),
		NotAfter:     time.Now().Add(until),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  uses,
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	fatal.If(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	fatal.If(t, err)
	return Pair{
		Cert: append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), a.chain...),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}),
	}
}

// TLS returns the pair as package tls has it.
func (p Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	fatal.If(t, err)
	return c
}

// Write writes name.pem and name.key into dir and returns their paths.
func (p Pair) Write(t testing.TB, dir, name string) (cert, key string) {
	t.Helper()
	return File(t, dir, name+".pem", p.Cert), File(t, dir, name+".key", p.Key)
}

// File writes a file as those who renew certificates do, in one step, and returns
// its path.
func File(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	fatal.If(t, os.WriteFile(path+".new", content, 0o600))
	fatal.If(t, os.Rename(path+".new", path))
	return path
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal.If(t, err)
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	fatal.If(t, err)
	return n
}
