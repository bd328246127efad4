package doctor

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/nodestub"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/certs"
)

func TestAccess(t *testing.T) {
	for _, tc := range []struct {
		name   string
		access map[string]access
		want   []string // state and a part of the detail
	}{
		{"loopback alone", nil, []string{"ok reachable from other machines"}},
		{"all well", map[string]access{"a": {asks: true}, "b": {unknown: true}}, []string{"ok unauthenticated clients are refused: one call was tried at each node, which counts it as UNAUTHENTICATED"}},
		{"wide open", map[string]access{"a": {plain: true}, "b": {plain: true}}, []string{"warn no TLS: requests and tokens are sent unencrypted: the API at a, b", "warn no authentication: any client that can connect may issue IDs: the API at a, b"}},
		{"tokens without TLS", map[string]access{"a": {plain: true, asks: true}}, []string{"warn no TLS"}},
		{"TLS alone", map[string]access{"a": {}}, []string{"warn no authentication"}},
	} {
		var r findings
		r.access(facts{access: tc.access, nodes: make([]deployment.NodeReport, 1)})
		if len(r.Report) != len(tc.want) {
			t.Errorf("%s: %+v", tc.name, r.Report)
			continue
		}
		for i, c := range r.Report {
			state, part, _ := strings.Cut(tc.want[i], " ")
			if c.Name != "access" || string(c.State) != state || !strings.Contains(c.Detail, part) || (c.State == report.OK) != (c.Do == "") {
				t.Errorf("%s: %+v, want %q", tc.name, c, tc.want[i])
			}
		}
	}
}

// What an unauthenticated client finds.
func TestProbe(t *testing.T) {
	ca := certstest.NewAuthority(t, "ca")
	dir := t.TempDir()
	cert, key := ca.Issue(t, "me", -time.Hour, time.Hour).Write(t, dir, "me")
	serve := func(token bool, opts ...grpc.ServerOption) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		fatal.If(t, err)
		refuse := nodestub.Refusing(t, codes.Unauthenticated, "UNAUTHENTICATED", 0)
		server := grpc.NewServer(append(opts, grpc.UnaryInterceptor(func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			if token {
				return nil, refuse(ctx)
			}
			return &pb.GetClusterResponse{}, nil
		}))...)
		pb.RegisterAdminServiceServer(server, pb.UnimplementedAdminServiceServer{})
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		return l.Addr().String()
	}
	secure := &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, "node", -time.Hour, time.Hour).TLS(t)}}
	mutual := secure.Clone()
	mutual.ClientAuth, mutual.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
	own, err := certs.NewClient("tls", certs.ClientFiles{CA: certstest.File(t, dir, "ca.pem", ca.PEM), Cert: cert, Key: key}, tls.VersionTLS13, nil)
	fatal.If(t, err)
	d := remote.Dialer{TLS: own}
	for _, tc := range []struct {
		name string
		addr string
		want access
	}{
		{"without TLS", serve(false), access{plain: true}},
		{"without TLS, with tokens", serve(true), access{plain: true, asks: true}},
		{"TLS", serve(false, grpc.Creds(credentials.NewTLS(secure))), access{}},
		{"TLS with tokens", serve(true, grpc.Creds(credentials.NewTLS(secure))), access{asks: true}},
		{"TLS with certificates", serve(false, grpc.Creds(credentials.NewTLS(mutual))), access{unknown: true}},
	} {
		if got := probe(t.Context(), d, tc.addr); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
