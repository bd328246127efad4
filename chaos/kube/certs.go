package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// An authority signs the certificates of one run, in a directory of its own.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

// certLife is longer than any run, and short so that a leaked key is useless.
const certLife = 24 * time.Hour

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key, next: 2}
	t := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "kubetest"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(certLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return a, writePEM(a.path("ca.crt"), "CERTIFICATE", der)
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.crt and name.key for the user or server cn in the given groups,
// valid for the given names and addresses.
func (a *authority) issue(name, cn string, groups, hosts []string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(a.next),
		Subject:      pkix.Name{CommonName: cn, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(certLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	a.next++
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	if err := writePEM(a.path(name+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(a.path(name+".key"), "PRIVATE KEY", pkcs8)
}

// accountKey writes the key that tokens of service accounts are signed with.
func (a *authority) accountKey() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return writePEM(a.path("accounts.key"), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
}

// kubeconfig issues a certificate and writes name.kubeconfig for it.
func (a *authority) kubeconfig(name, server, user string, groups ...string) error {
	if err := a.issue(name, user, groups, nil); err != nil {
		return err
	}
	text := func(file string) string {
		b, err := os.ReadFile(a.path(file))
		if err != nil {
			return ""
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	return os.WriteFile(a.path(name+".kubeconfig"), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
  - name: kubetest
    cluster: {server: %q, certificate-authority-data: %s}
users:
  - name: user
    user: {client-certificate-data: %s, client-key-data: %s}
contexts:
  - name: kubetest
    context: {cluster: kubetest, user: user}
current-context: kubetest
`, server, text("ca.crt"), text(name+".crt"), text(name+".key")), 0o600)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
