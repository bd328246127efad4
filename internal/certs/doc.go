// Package certs makes TLS configurations of PEM files that may be replaced while
// they are in use: by cert-manager, by an ACME client, by hand.
//
// A handshake reads no file: it takes what package reload last made of them.
// Connections that are open go on under what they began with.
package certs
