package doctor

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/status"
)

// access is what an unauthenticated client finds at a node's gRPC address.
type access struct {
	plain   bool // it speaks without TLS
	asks    bool // it refuses clients without a token
	unknown bool // it answers no unauthenticated client at all, as it should
}

// probeAll calls the nodes that answered and that listen beyond this machine, without a token and a certificate. They
// count these calls as UNAUTHENTICATED, as all such calls: an exception for doctor would be one for anybody.
func probeAll(ctx context.Context, d remote.Dialer, nodes []deployment.NodeReport) map[string]access {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n deployment.NodeReport) bool {
		host, _, err := net.SplitHostPort(n.Addr)
		return n.Err != nil || err != nil || host == "localhost" || net.ParseIP(host).IsLoopback()
	})
	out := map[string]access{}
	for i, found := range deployment.Each(nodes, func(n deployment.NodeReport) access {
		return probe(ctx, d, n.Addr)
	}) {
		out[nodes[i].Addr] = found
	}
	return out
}

func probe(ctx context.Context, d remote.Dialer, addr string) access {
	if code := codeOf(ctx, remote.Dialer{}, addr); code != codes.Unavailable && code != codes.DeadlineExceeded {
		return access{plain: true, asks: code == codes.Unauthenticated}
	}
	if d.TLS == nil {
		return access{unknown: true}
	}
	switch codeOf(ctx, d.Anonymous(), addr) {
	case codes.OK:
		return access{}
	case codes.Unauthenticated:
		return access{asks: true}
	}
	return access{unknown: true} // it wants a certificate
}

// codeOf returns the code of a node's answer to GetCluster.
func codeOf(ctx context.Context, d remote.Dialer, addr string) codes.Code {
	conn, err := d.Dial(addr)
	if err != nil {
		return codes.Unavailable
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, deployment.AskTimeout)
	defer cancel()
	_, err = status.Ask(ctx, conn)
	return grpcstatus.Code(err)
}

// access reports what unauthenticated clients may do.
func (r *findings) access(f facts) {
	const do = "See docs/how-to/secure-it.md, or listen on loopback"
	var clear, free []string
	for _, addr := range slices.Sorted(maps.Keys(f.access)) {
		d := f.access[addr]
		if d.plain {
			clear = append(clear, addr)
		}
		if !d.asks && !d.unknown {
			free = append(free, addr)
		}
	}
	if len(clear) > 0 {
		r.Add("access", report.Warn, "Set tls.cert and tls.key. "+do,
			"no TLS: requests and tokens are sent unencrypted: the API at %s", strings.Join(clear, ", "))
	}
	if len(free) > 0 {
		r.Add("access", report.Warn, "Set auth.token-file or tls.client-ca. "+do,
			"no authentication: any client that can connect may issue IDs: the API at %s", strings.Join(free, ", "))
	}
	switch {
	case len(clear)+len(free) > 0:
	case len(f.nodes) == 0:
		r.Add("access", report.Skipped, "", "there is no node to try it on")
	case len(f.access) == 0:
		r.Add("access", report.OK, "", "no node that answers is reachable from other machines")
	default:
		r.Add("access", report.OK, "", "unauthenticated clients are refused: one call was tried at each node, which "+
			"counts it as UNAUTHENTICATED")
	}
}
