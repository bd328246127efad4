package doctor

import (
	"context"
	"crypto/x509"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/text"
)

// certificate is one that this command or another machine uses, and where it is.
type certificate struct {
	where string
	*x509.Certificate
}

// ofFiles returns the certificates in the files of the settings and of the flags. Of authorities it has the
// one that ends last: a file has an old one beside the new one while they change.
func ofFiles(c config.Config, f remote.Files) (out []certificate) {
	for _, file := range []struct {
		name, path string
		all        bool
	}{
		{"etcd.tls.cert", c.Etcd.TLS.Cert, false}, {"etcd.tls.ca", c.Etcd.TLS.CA, true},
		{"tls.cert", c.TLS.Cert, false}, {"tls.client-ca", c.TLS.ClientCA, true},
		{"--cert", f.Cert, false}, {"--ca", f.CA, true},
	} {
		list, err := certs.Read(file.path)
		if err != nil {
			continue // The file is checked where it is used.
		}
		at := list[0]
		if file.all {
			at = slices.MaxFunc(list, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		}
		out = append(out, certificate{file.name + " (" + file.path + ")", at})
	}
	return out
}

// shown returns the certificates that members and nodes show.
func shown(ctx context.Context, e config.Etcd, d remote.Dialer, members []member.Status,
	nodes []deployment.NodeReport) (out []certificate) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	type place struct{ where, address string }
	var asked []place
	for _, m := range members {
		if u, err := url.Parse(m.Endpoint); err == nil && u.Scheme == "https" || e.TLS != (config.TLS{}) {
			address := strings.TrimPrefix(m.Endpoint, "https://")
			if _, _, err := net.SplitHostPort(address); err == nil {
				asked = append(asked, place{"member " + m.Endpoint, address})
			}
		}
	}
	for _, n := range nodes {
		if _, _, err := net.SplitHostPort(n.Addr); err == nil && d.TLS != nil {
			asked = append(asked, place{n.Label(), n.Addr})
		}
	}
	for i, leaf := range deployment.Each(asked, func(p place) *x509.Certificate {
		leaf, _ := certs.Shown(ctx, p.address) // nil: it shows none
		return leaf
	}) {
		if leaf != nil {
			out = append(out, certificate{asked[i].where, leaf})
		}
	}
	slices.SortFunc(out, func(a, b certificate) int { return strings.Compare(a.where, b.where) })
	return out
}

// certificates checks how long they last.
func (r *findings) certificates(f facts) {
	if len(f.certificates) == 0 {
		return
	}
	now := f.now.Time()
	for _, c := range f.certificates {
		left, renew := certs.Ends(c.Certificate, now)
		do := "Renew it before, with \"allocator etcd certs\" if that made it: who uses it is refused from then on"
		switch {
		case left < 0:
			r.Add("certificate", report.Fail, do, "%s ended %s ago", c.where, text.Span(-left))
		case renew:
			r.Add("certificate", report.Fail, do, "%s ends in %s", c.where, text.Span(left))
		}
	}
	first := slices.MinFunc(f.certificates, func(a, b certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	r.Sound("certificate", "the first of %s to end does so at %s: %s", text.Count(len(f.certificates), "certificate"),
		first.NotAfter.UTC().Format(time.DateOnly), first.where)
}
