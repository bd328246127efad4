package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/flakelease/allocator/internal/certs/reload"
)

// ClientFiles are PEM files: the authorities that sign servers' certificates ("":
// the system's), and our own certificate with its key ("": none).
type ClientFiles struct {
	CA, Cert, Key string
	// Prefix comes before "ca", "cert" and "key" in the names of the settings with these
	// paths, which errors contain.
	Prefix string
}

// Client has the TLS configuration of connections, and the methods of the files that it is read
// from. All methods are safe for concurrent use.
type Client struct {
	*reload.Value[*calling]
	least uint16
}

// calling is the configuration from one state of the files.
type calling struct {
	servers *x509.CertPool
	cert    *tls.Certificate // nil: none
}

// NewClient reads the files. least is the minimum version of TLS. what
// names the connection in logs. The error names the setting and the wrong file.
func NewClient(what string, f ClientFiles, least uint16, log *slog.Logger) (*Client, error) {
	ca, cert, key := reload.File{Name: f.Prefix + "ca", Path: f.CA},
		reload.File{Name: f.Prefix + "cert", Path: f.Cert},
		reload.File{Name: f.Prefix + "key", Path: f.Key, Secret: true}
	v, err := reload.New(reload.Config[*calling]{
		What:  what,
		Files: []reload.File{ca, cert, key},
		Parse: func(contents [][]byte) (*calling, error) {
			c := &calling{}
			var err error
			if c.servers, err = pool(ca, contents[0]); err != nil || f.Cert == "" {
				return c, err
			}
			p, err := pair(cert, key, contents[1], contents[2], x509.ExtKeyUsageClientAuth)
			c.cert = &p
			return c, err
		},
		Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return &Client{v, least}, nil
}

// Leaf returns the certificate in use; nil: there is none.
func (c *Client) Leaf() *x509.Certificate {
	if cert := c.Get().cert; cert != nil {
		return cert.Leaf
	}
	return nil
}

// Config returns the configuration from the current files.
func (c *Client) Config() *tls.Config {
	now := c.Get()
	cfg := &tls.Config{MinVersion: c.least, RootCAs: now.servers}
	if now.cert != nil {
		cfg.Certificates = []tls.Certificate{*now.cert}
	}
	return cfg
}

// Credentials returns the credentials for gRPC. Each new connection uses the current files:
// a tls.Config can reload its certificate, but not its authorities.
func (c *Client) Credentials() credentials.TransportCredentials {
	return grpcCredentials{credentials.NewTLS(c.Config()), c}
}

// WithoutCertificate is Credentials without a client certificate.
func (c *Client) WithoutCertificate() credentials.TransportCredentials {
	cfg := c.Config()
	cfg.Certificates = nil
	return credentials.NewTLS(cfg)
}

// grpcCredentials have the handshake of a client alone: nobody serves with these.
type grpcCredentials struct {
	credentials.TransportCredentials
	c *Client
}

func (g grpcCredentials) ClientHandshake(ctx context.Context, authority string,
	conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(g.c.Config()).ClientHandshake(ctx, authority, conn)
}

func (g grpcCredentials) Clone() credentials.TransportCredentials { return g }
