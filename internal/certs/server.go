package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/certs/reload"
)

// ServerFiles are PEM files: a certificate with its chain, its key, and the
// authorities that sign clients' certificates. With ClientCA, clients must have a
// certificate; "": no client certificate is requested.
type ServerFiles struct {
	Cert, Key, ClientCA string
	// Optional admits clients without a certificate; one that is shown is verified.
	Optional bool
}

// Server has the TLS configuration of listeners, and the methods of the files that it is read from.
// All methods are safe for concurrent use.
type Server struct {
	*reload.Value[*serving]
}

// serving is the configuration from one state of the files.
type serving struct {
	cert    tls.Certificate
	clients *x509.CertPool // nil: no client certificate is requested
	auth    tls.ClientAuthType
}

// NewServer reads the files. It returns an error that names the setting and the file at
// fault.
func NewServer(f ServerFiles, log *slog.Logger) (*Server, error) {
	cert, key, ca := reload.File{Name: "tls.cert", Path: f.Cert},
		reload.File{Name: "tls.key", Path: f.Key, Secret: true},
		reload.File{Name: "tls.client-ca", Path: f.ClientCA}
	v, err := reload.New(reload.Config[*serving]{
		What:  "tls",
		Files: []reload.File{cert, key, ca},
		Parse: func(c [][]byte) (*serving, error) {
			s := &serving{auth: tls.RequireAndVerifyClientCert}
			if f.Optional {
				s.auth = tls.VerifyClientCertIfGiven
			}
			var err error
			if s.cert, err = pair(cert, key, c[0], c[1], x509.ExtKeyUsageServerAuth); err != nil {
				return nil, err
			}
			s.clients, err = pool(ca, c[2])
			return s, err
		},
		Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return &Server{v}, nil
}

// pair returns a certificate with its key. The certificate must be valid now and for this
// use: every peer would reject another one, and an older one may still be accepted. The
// error names the settings and quotes nothing of the contents.
func pair(certFile, keyFile reload.File, cert, key []byte, use x509.ExtKeyUsage) (tls.Certificate, error) {
	p, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return p, fmt.Errorf("%s (%s) and %s (%s) are not a certificate and its private key: %w", certFile.Name,
			certFile.Path, keyFile.Name, keyFile.Path, err)
	}
	if err := usable(p.Leaf, use, time.Now()); err != nil {
		return p, fmt.Errorf("%s (%s): %w", certFile.Name, certFile.Path, err)
	}
	return p, nil
}

// ErrTime is the error of a certificate that is not valid now. A clock that is set, or a new file, ends
// it.
var ErrTime = errors.New("the certificate is not valid now")

// usable returns why a certificate cannot be used at a time; nil: it can. The error is ErrTime if it can
// at another time.
func usable(c *x509.Certificate, use x509.ExtKeyUsage, now time.Time) error {
	switch {
	case now.Before(c.NotBefore):
		return fmt.Errorf("%w: it is not valid before %s; check this machine's clock, or wait", ErrTime,
			c.NotBefore.UTC().Format(time.RFC3339))
	case now.After(c.NotAfter):
		return fmt.Errorf("%w: it expired at %s; renew it", ErrTime, c.NotAfter.UTC().Format(time.RFC3339))
	case len(c.ExtKeyUsage) == 0 && len(c.UnknownExtKeyUsage) == 0,
		slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny), slices.Contains(c.ExtKeyUsage, use):
		return nil
	case use == x509.ExtKeyUsageServerAuth:
		return errors.New("the certificate is not for servers: issue one with the extended key usage serverAuth")
	}
	return errors.New("the certificate is not for clients: issue one with the extended key usage clientAuth")
}

// pool returns the authorities in a file; nil if there is no file.
func pool(file reload.File, pem []byte) (*x509.CertPool, error) {
	if file.Path == "" {
		return nil, nil
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s (%s) contains no PEM certificate", file.Name, file.Path)
	}
	return p, nil
}

// Leaf returns the certificate in use.
func (s *Server) Leaf() *x509.Certificate { return s.Get().cert.Leaf }

// Config returns the configuration of one listener, with its ALPN protocols. New
// connections use the current files.
//
// TLS 1.3 is the minimum: every client in use has it. Sessions are not resumed: a
// ticket would admit a client whose authority was removed since, and our
// connections are too few and long for it to matter.
func (s *Server) Config(protocols ...string) *tls.Config {
	type made struct {
		of     *serving
		config *tls.Config
	}
	var last atomic.Pointer[made]
	current := func() *tls.Config {
		now := s.Get()
		if m := last.Load(); m != nil && m.of == now {
			return m.config
		}
		m := &made{now, now.config(protocols)}
		last.Store(m)
		return m.config
	}
	c := current().Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return current(), nil }
	return c
}

func (s *serving) config(protocols []string) *tls.Config {
	c := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{s.cert},
		NextProtos:             protocols,
		SessionTicketsDisabled: true,
	}
	if s.clients != nil {
		c.ClientAuth, c.ClientCAs = s.auth, s.clients
	}
	return c
}

// ClientURIs returns the URIs in the client certificate of a connection; none if no
// certificate was verified.
func ClientURIs(state *tls.ConnectionState) []*url.URL {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return nil
	}
	return state.PeerCertificates[0].URIs
}

// ClientName returns the name in the client certificate of a connection, "" if
// no certificate was verified: the common name, else the first DNS name or URI.
func ClientName(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return ""
	}
	cert := state.PeerCertificates[0]
	switch {
	case cert.Subject.CommonName != "":
		return cert.Subject.CommonName
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	case len(cert.URIs) > 0:
		return cert.URIs[0].String()
	}
	return cert.SerialNumber.String()
}
