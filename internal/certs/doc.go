// Package certs makes TLS configurations from PEM files that may be replaced while they
// are in use: by cert-manager, by an ACME client, by hand.
//
// A handshake reads no file: it uses the last valid value of package reload. Open
// connections keep the certificates with which they began.
package certs
