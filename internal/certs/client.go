package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/flakelease/allocator/internal/reload"
)

// ClientFiles are PEM files: the authorities that sign servers' certificates ("":
// the system's), and our own certificate with its key ("": none).
type ClientFiles struct {
	CA, Cert, Key string
}

// Client is the side that connects. All methods are safe for concurrent use.
type Client struct {
	files *reload.Value[*calling]
	least uint16
}

// calling is made of one state of the files.
type calling struct {
	servers *x509.CertPool
	cert    *tls.Certificate // nil: none
}

// NewClient reads the files. least is the lowest version of TLS to speak. what
// names the connection in logs. It returns an error that names the file at fault.
func NewClient(what string, f ClientFiles, least uint16, log *slog.Logger) (*Client, error) {
	v, err := reload.New(reload.Config[*calling]{
		What:  what,
		Files: []string{f.CA, f.Cert, f.Key},
		Parse: func(contents [][]byte) (*calling, error) {
			c := &calling{}
			var err error
			if c.servers, err = pool(f.CA, contents[0]); err != nil || f.Cert == "" {
				return c, err
			}
			p, err := pair(f.Cert, f.Key, contents[1], contents[2])
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

// Run looks for new files until ctx ends, and returns nil then.
func (c *Client) Run(ctx context.Context) error { return c.files.Run(ctx) }

// Check looks for new files now.
func (c *Client) Check() { c.files.Check() }

// Failing reports whether the files cannot be used as they are now.
func (c *Client) Failing() bool { return c.files.Failing() }

// Reloads returns how often new files were taken up.
func (c *Client) Reloads() int64 { return c.files.Reloads() }

// Expires returns when the certificate in use ends; ok is false if there is none.
func (c *Client) Expires() (at time.Time, ok bool) {
	if cert := c.files.Get().cert; cert != nil {
		return cert.Leaf.NotAfter, true
	}
	return at, false
}

// Config returns a configuration of the files as they are now.
func (c *Client) Config() *tls.Config {
	now := c.files.Get()
	cfg := &tls.Config{MinVersion: c.least, RootCAs: now.servers}
	if now.cert != nil {
		cfg.Certificates = []tls.Certificate{*now.cert}
	}
	return cfg
}

// Credentials returns what gRPC connects with. Each new connection goes by the
// files as they are then: a tls.Config alone could follow its certificate, and
// not its authorities.
func (c *Client) Credentials() credentials.TransportCredentials { return grpcCredentials{c} }

// WithoutCertificate is Credentials of somebody who has none of their own.
func (c *Client) WithoutCertificate() credentials.TransportCredentials {
	cfg := c.Config()
	cfg.Certificates = nil
	return credentials.NewTLS(cfg)
}

type grpcCredentials struct{ c *Client }

func (g grpcCredentials) now() credentials.TransportCredentials {
	return credentials.NewTLS(g.c.Config())
}

func (g grpcCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return g.now().ClientHandshake(ctx, authority, conn)
}

func (g grpcCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return g.now().ServerHandshake(conn) // never called, for nobody serves with these
}

func (g grpcCredentials) Info() credentials.ProtocolInfo { return g.now().Info() }

func (g grpcCredentials) Clone() credentials.TransportCredentials { return g }

// OverrideServerName does nothing: gRPC has a name for each connection.
func (grpcCredentials) OverrideServerName(string) error { return nil }
