package certs

import (
	"crypto/x509"
	"net/url"
	"slices"
)

// memberURI marks a certificate of a member of etcd inside, and tells people whether an authority is for members
// alone. No member asks others for the mark: members that are renewed first would refuse the rest.
const memberURI = "urn:allocator:member"

// OpenEtcd returns why others than members may read and write everything in etcd inside, and what to do; "":
// no reason is known. Its members accept the authorities in the file ca, those in clients are of the API's
// clients, and a member shows leaf; each may be missing.
func OpenEtcd(ca, clients string, leaf *x509.Certificate) (problem, do string) {
	const access = "may read and write everything in etcd"
	switch {
	case share(ca, clients):
		return "each client with a certificate of tls.client-ca " + access +
				", whose etcd.tls.ca has the same authority",
			"Give etcd an authority of its own with \"allocator etcd certs\""
	case leaf != nil && !slices.ContainsFunc(leaf.URIs, func(u *url.URL) bool { return u.String() == memberURI }):
		return "a member's certificate has no URI " + memberURI + ": if its authority signs others, each " + access,
			"Use an authority for members alone, and renew with \"allocator etcd certs --renew\", or add that URI"
	}
	return "", ""
}

// share reports whether two PEM files have a certificate in common.
func share(a, b string) bool {
	one, errA := Read(a)
	other, errB := Read(b)
	return errA == nil && errB == nil && slices.ContainsFunc(one, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(other, c.Equal)
	})
}
