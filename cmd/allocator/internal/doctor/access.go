package doctor

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
)

// door is what a stranger finds at a node's gRPC address.
type door struct {
	plain   bool // it speaks without TLS
	asks    bool // it turns away whoever shows no token
	unknown bool // it says nothing to a stranger, which is well
}

// knockAll asks the nodes that answered, and that are not on this machine alone,
// without a token and without a certificate.
func knockAll(ctx context.Context, d remote.Dialer, nodes []deployment.NodeReport) map[string]door {
	out := map[string]door{}
	var mu sync.Mutex // guards out
	var all sync.WaitGroup
	for _, n := range nodes {
		host, _, err := net.SplitHostPort(n.Addr)
		ip := net.ParseIP(host)
		if n.Err != nil || err != nil || host == "localhost" || ip != nil && ip.IsLoopback() {
			continue
		}
		all.Go(func() {
			found := knock(ctx, d, n.Addr)
			mu.Lock()
			defer mu.Unlock()
			out[n.Addr] = found
		})
	}
	all.Wait()
	return out
}

func knock(ctx context.Context, d remote.Dialer, addr string) door {
	plain := remote.Dialer{Opts: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}
	if code := stranger(ctx, plain, addr); code != codes.Unavailable && code != codes.DeadlineExceeded {
		return door{plain: true, asks: code == codes.Unauthenticated}
	}
	if d.TLS == nil {
		return door{unknown: true}
	}
	anonymous := remote.Dialer{TLS: d.TLS, Opts: []grpc.DialOption{grpc.WithTransportCredentials(d.TLS.WithoutCertificate())}}
	switch stranger(ctx, anonymous, addr) {
	case codes.OK:
		return door{}
	case codes.Unauthenticated:
		return door{asks: true}
	}
	return door{unknown: true} // it wants a certificate
}

// stranger returns what a node answers to somebody it does not know.
func stranger(ctx context.Context, d remote.Dialer, addr string) codes.Code {
	conn, err := d.Dial(addr)
	if err != nil {
		return codes.Unavailable
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, deployment.AskTimeout)
	defer cancel()
	_, err = pb.NewAdminServiceClient(conn).GetCluster(ctx, &pb.GetClusterRequest{})
	return status.Code(err)
}

// doors says what strangers may do.
func (r *report) doors(f facts) {
	const do = "See «Security» in docs/OPERATIONS.md, or listen on loopback"
	var clear, free []string
	for _, addr := range slices.Sorted(maps.Keys(f.doors)) {
		d := f.doors[addr]
		if d.plain {
			clear = append(clear, addr)
		}
		if !d.asks && !d.unknown {
			free = append(free, addr)
		}
	}
	if len(clear) > 0 {
		r.add("access", warned, "Set tls.cert and tls.key. "+do, "in clear, tokens too: the API at %s", strings.Join(clear, ", "))
	}
	if len(free) > 0 {
		r.add("access", warned, "Set auth.token-file or tls.client-ca. "+do, "whoever can connect may draw IDs and drain the node: the API at %s", strings.Join(free, ", "))
	}
	switch {
	case len(clear)+len(free) > 0:
	case len(f.doors) == 0:
		r.add("access", passed, "", "no node that answers listens beyond this machine")
	default:
		r.add("access", passed, "", "strangers are turned away")
	}
}
