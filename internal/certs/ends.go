package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"
)

// soon is the time before the end of a certificate at which people are told. One for less than ten months
// is renewed later: they are told of its last tenth.
const soon = 30 * 24 * time.Hour

// Ends returns the time that a certificate has left, and whether somebody has to renew it now.
func Ends(c *x509.Certificate, now time.Time) (left time.Duration, renew bool) {
	left = c.NotAfter.Sub(now)
	return left, left < min(soon, c.NotAfter.Sub(c.NotBefore)/10)
}

// WarnOfEnds logs each day which certificates have to be renewed, until ctx ends. leaves returns those in
// use, by name.
func WarnOfEnds(ctx context.Context, log *slog.Logger, leaves func() map[string]*x509.Certificate) error {
	day := time.NewTicker(24 * time.Hour)
	defer day.Stop()
	for {
		all := leaves()
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if left, renew := Ends(all[name], time.Now()); renew {
				log.Warn("certificate ends soon: renew it", "certificate", name, "left", left.Round(time.Minute),
					"ends", all[name].NotAfter.UTC())
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-day.C:
		}
	}
}

// Read returns the certificates in a PEM file, whatever their times are.
func Read(path string) (out []*x509.Certificate, err error) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: %s is not PEM", ErrAuthority, path)
	}
	return out, nil
}

// Shown returns the certificate that a server at host:port shows. Nothing is verified, and nothing is sent.
func Shown(ctx context.Context, address string) (leaf *x509.Certificate, err error) {
	d := tls.Dialer{Config: &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // It is looked at, and not trusted.
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) (err error) {
			if len(raw) > 0 {
				leaf, err = x509.ParseCertificate(raw[0])
			}
			return err
		},
	}}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	if leaf != nil {
		return leaf, nil // A server that wants ours may break off.
	}
	return nil, err
}
