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
	"github.com/flakelease/allocator/chaos/nodestub"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/certs"
)

func TestDoors(t *testing.T) {
	for _, tc := range []struct {
		name  string
		doors map[string]door
		want  []string // state and a part of the detail
	}{
		{"loopback alone", nil, []string{"ok beyond this machine"}},
		{"all well", map[string]door{"a": {asks: true}, "b": {unknown: true}}, []string{"ok strangers are turned away"}},
		{"wide open", map[string]door{"a": {plain: true}, "b": {plain: true}}, []string{"warn in clear, tokens too: the API at a, b", "warn whoever can connect may draw IDs and drain the node: the API at a, b"}},
		{"tokens in clear", map[string]door{"a": {plain: true, asks: true}}, []string{"warn in clear"}},
		{"TLS alone", map[string]door{"a": {}}, []string{"warn whoever can connect"}},
	} {
		var r report
		r.doors(facts{doors: tc.doors})
		if len(r) != len(tc.want) {
			t.Errorf("%s: %+v", tc.name, r)
			continue
		}
		for i, c := range r {
			state, part, _ := strings.Cut(tc.want[i], " ")
			if c.Name != "access" || string(c.State) != state || !strings.Contains(c.Detail, part) || (c.State == passed) != (c.Do == "") {
				t.Errorf("%s: %+v, want %q", tc.name, c, tc.want[i])
			}
		}
	}
}

// What a stranger finds, by knocking.
func TestKnock(t *testing.T) {
	ca := certstest.NewAuthority(t, "ca")
	dir := t.TempDir()
	cert, key := ca.Issue(t, "me", -time.Hour, time.Hour).Write(t, dir, "me")
	serve := func(token bool, opts ...grpc.ServerOption) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	d := remote.Dialer{TLS: own, Opts: []grpc.DialOption{grpc.WithTransportCredentials(own.Credentials())}}
	for _, tc := range []struct {
		name string
		addr string
		want door
	}{
		{"in clear", serve(false), door{plain: true}},
		{"in clear, with tokens", serve(true), door{plain: true, asks: true}},
		{"TLS", serve(false, grpc.Creds(credentials.NewTLS(secure))), door{}},
		{"TLS with tokens", serve(true, grpc.Creds(credentials.NewTLS(secure))), door{asks: true}},
		{"TLS with certificates", serve(false, grpc.Creds(credentials.NewTLS(mutual))), door{unknown: true}},
	} {
		if got := knock(t.Context(), d, tc.addr); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
