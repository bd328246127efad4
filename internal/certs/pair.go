package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"
)

// Pair is a certificate of an authority, or of what one signed, with its key.
type Pair struct {
	Cert            *x509.Certificate
	key             *ecdsa.PrivateKey
	CertPEM, KeyPEM []byte
}

// before is how long certificates are valid already: clocks differ.
const before = time.Hour

// Issue makes a certificate that by signs, from now on and for at most as long as by lasts; nil: one
// of an authority, which signs itself. One with hosts is to serve with, at these and on the machine
// itself, and to call with; one without is to call with alone. A host that begins with urn: is a URI.
func Issue(by *Pair, name string, hosts []string, now time.Time, lasts time.Duration) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-before),
		NotAfter:     now.Add(lasts),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if by == nil {
		t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
		t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageCertSign, nil
		by = &Pair{Cert: t, key: key}
	} else if t.NotAfter.After(by.Cert.NotAfter) {
		t.NotAfter = by.Cert.NotAfter
	}
	if len(hosts) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		t.DNSNames, t.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if name, ok := strings.CutPrefix(h, "urn:"); ok {
			t.URIs = append(t.URIs, &url.URL{Scheme: "urn", Opaque: name})
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, by.Cert, key.Public(), by.key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return ParsePair(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// ParsePair reads a certificate and its key, which is one of ECDSA.
func ParsePair(cert, key []byte) (*Pair, error) {
	p, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	k, ok := p.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("it is no ECDSA key")
	}
	return &Pair{Cert: p.Leaf, key: k, CertPEM: cert, KeyPEM: key}, nil
}
