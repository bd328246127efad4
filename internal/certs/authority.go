package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Authority is a directory with an authority of one's own: ca.pem, ca.key, and for each host a
// certificate HOST.pem with HOST.key.
type Authority struct {
	Dir string
	Now time.Time
}

// Times of what an Authority signs. The authority outlives what it signed; certificates are
// valid from an hour ago, since clocks differ.
const (
	authorityFor = 10 * 365 * 24 * time.Hour
	before       = time.Hour
)

// ErrAuthority is an Authority that cannot be used.
var ErrAuthority = errors.New("certificates")

var hostName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// Sign makes the certificates of hosts that have none, and those that end within a tenth of
// lasts; with again all. It makes the authority if there is none. It returns the hosts whose
// certificates it made.
//
// A certificate is for its host, for 127.0.0.1 and for localhost, to serve and to call with.
func (a Authority) Sign(hosts []string, lasts time.Duration, again bool) (made []string, err error) {
	for _, h := range hosts {
		if net.ParseIP(h) == nil && !hostName.MatchString(h) || h == "ca" {
			return nil, fmt.Errorf("%w: %q is not a host: write addresses or names without port", ErrAuthority, h)
		}
	}
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return nil, err
	}
	ca, key, err := a.authority()
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		old, err := readCert(a.path(h + ".pem"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return made, err
		}
		if !again && err == nil && old.NotAfter.After(a.Now.Add(lasts/10)) {
			continue
		}
		if err := a.sign(h, ca, key, lasts); err != nil {
			return made, err
		}
		made = append(made, h)
	}
	return made, nil
}

func (a Authority) path(name string) string { return filepath.Join(a.Dir, name) }

// authority returns the authority, and makes it if there is none.
func (a Authority) authority() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	cert, err := readCert(a.path("ca.pem"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a.found()
	case err != nil:
		return nil, nil, err
	}
	text, err := os.ReadFile(a.path("ca.key"))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s has an authority without its key: %w", ErrAuthority, a.Dir, err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, fmt.Errorf("%w: %s is not PEM", ErrAuthority, a.path("ca.key"))
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrAuthority, a.path("ca.key"), err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, fmt.Errorf("%w: ca.key of %s is not the key of its ca.pem", ErrAuthority, a.Dir)
	}
	return cert, key, nil
}

func (a Authority) found() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	cert := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "allocator authority"},
		NotBefore:             a.Now.Add(-before),
		NotAfter:              a.Now.Add(authorityFor),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		return nil, nil, err
	}
	return cert, key, a.write("ca", der, key)
}

func (a Authority) sign(host string, ca *x509.Certificate, by *ecdsa.PrivateKey, lasts time.Duration) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	cert := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: host},
		NotBefore:    a.Now.Add(-before),
		NotAfter:     a.Now.Add(lasts),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if cert.NotAfter.After(ca.NotAfter) {
		cert.NotAfter = ca.NotAfter
	}
	if ip := net.ParseIP(host); ip != nil {
		cert.IPAddresses = append(cert.IPAddresses, ip)
	} else {
		cert.DNSNames = append(cert.DNSNames, host)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, key.Public(), by)
	if err != nil {
		return err
	}
	return a.write(host, der, key)
}

// write writes a key and then its certificate, each as a whole.
func (a Authority) write(name string, der []byte, key *ecdsa.PrivateKey) error {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		block *pem.Block
		mode  fs.FileMode
	}{
		{name + ".key", &pem.Block{Type: "PRIVATE KEY", Bytes: private}, 0o600},
		{name + ".pem", &pem.Block{Type: "CERTIFICATE", Bytes: der}, 0o644},
	} {
		temp := a.path("." + f.name + ".new")
		if err := os.WriteFile(temp, pem.EncodeToMemory(f.block), f.mode); err != nil {
			return err
		}
		if err := os.Rename(temp, a.path(f.name)); err != nil {
			return err
		}
	}
	return nil
}

func readCert(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%w: %s is not PEM", ErrAuthority, path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrAuthority, path, err)
	}
	return cert, nil
}

// serial returns a random serial number.
func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}
