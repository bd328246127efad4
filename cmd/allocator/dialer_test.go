package main

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs"
)

// secureStub starts a node with TLS and client certificates that takes one token.
func secureStub(t *testing.T, ca *certstest.Authority, token string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, "node", -time.Hour, time.Hour).TLS(t)},
		ClientCAs:    ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	})))
	refuse := refusing(t, codes.Unauthenticated, "UNAUTHENTICATED", 0)
	pb.RegisterAllocatorServiceServer(server, &stubNode{allocate: func(ctx context.Context) error {
		if v := metadata.ValueFromIncomingContext(ctx, "authorization"); len(v) != 1 || v[0] != "Bearer "+token {
			return refuse(ctx)
		}
		return nil
	}})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func withEnv(env []string, args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = run(context.Background(), args, strings.NewReader(""), &out, &errs, env)
	return code, out.String(), errs.String()
}

func TestGetByTLSAndToken(t *testing.T) {
	ca, other := certstest.NewAuthority(t, "ca"), certstest.NewAuthority(t, "other")
	dir := t.TempDir()
	addr := secureStub(t, ca, "good")
	_, plain := stub(t, answering)
	caFile := certstest.File(t, dir, "ca.pem", ca.PEM)
	otherFile := certstest.File(t, dir, "other.pem", other.PEM)
	cert, key := ca.Issue(t, "me", -time.Hour, time.Hour).Write(t, dir, "me")
	token := certstest.File(t, dir, "token", []byte("good\n"))
	wrong := certstest.File(t, dir, "wrong", []byte("wrong"))
	_, line, err := access.NewToken("a", "issue")
	if err != nil {
		t.Fatal(err)
	}
	lines := certstest.File(t, dir, "lines", []byte(line))
	empty := certstest.File(t, dir, "empty", []byte(" \n"))
	all := []string{"--addr", addr, "--ca", caFile, "--cert", cert, "--key", key}
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		code int
		says string
	}{
		{"all of it", nil, append(all, "--token-file", token), exitOK, ""},
		{"a token from the environment", []string{"ALLOCATOR_TOKEN=good"}, all, exitOK, ""},
		{"the file comes first", []string{"ALLOCATOR_TOKEN=wrong"}, append(all, "--token-file", token), exitOK, ""},
		{"no token", nil, all, exitInvalid, "UNAUTHENTICATED"},
		{"a wrong token", nil, append(all, "--token-file", wrong), exitInvalid, "UNAUTHENTICATED"},
		{"no certificate", nil, []string{"--addr", addr, "--ca", caFile}, exitUnavailable, "give --cert and --key"},
		{"another authority", nil, []string{"--addr", addr, "--ca", otherFile}, exitUnavailable, "unknown authority"},
		{"no TLS", nil, []string{"--addr", addr}, exitUnavailable, "give --ca"},
		{"TLS to a node without", nil, []string{"--addr", plain, "--ca", caFile}, exitUnavailable, "leave --ca away"},
		{"a token in clear", []string{"ALLOCATOR_TOKEN=good"}, []string{"--addr", plain}, exitOK, ""},
		{"a certificate without its key", nil, []string{"--ca", caFile, "--cert", cert}, exitUsage, "come together"},
		{"a certificate in clear", nil, []string{"--cert", cert, "--key", key}, exitUsage, "give --ca"},
		{"no such file", nil, []string{"--ca", dir + "/none"}, exitUsage, "no such file"},
		{"the file of the node", nil, append(all, "--token-file", lines), exitUsage, "is not one token"},
		{"an empty file", nil, append(all, "--token-file", empty), exitUsage, "is empty"},
		{"no such token file", nil, append(all, "--token-file", dir+"/none"), exitUsage, "no such file"},
		{"nonsense in the environment", []string{"ALLOCATOR_TOKEN=hunter2 hunter2"}, all, exitUsage, "$ALLOCATOR_TOKEN is not one token"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, errs := withEnv(tc.env, append([]string{"get", "2", "--timeout", "20s"}, tc.args...)...)
			if code != tc.code || !strings.Contains(errs, tc.says) || (code == exitOK) != (strings.Count(out, "\n") == 2) {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errs)
			}
			for _, secret := range []string{"hunter2", "Bearer", "sha256:"} {
				if strings.Contains(errs, secret) {
					t.Errorf("stderr shows %s: %q", secret, errs)
				}
			}
		})
	}
}

func TestTokenNew(t *testing.T) {
	code, line, token := allocator("token", "new", "checkout", "--scopes", "read,issue")
	token = strings.TrimSpace(token)
	if code != exitOK || !strings.HasPrefix(line, "checkout issue,read sha256:") || strings.Contains(line, token) || token == "" {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, line, token)
	}
	file := filepath.Join(t.TempDir(), "token")
	code, second, errs := allocator("token", "new", "ops", "--scopes", "admin", "--out", file)
	b, err := os.ReadFile(file)
	if code != exitOK || err != nil || errs != "" {
		t.Fatalf("exit code %d, %v, stderr %q", code, err, errs)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	tokens, err := access.ParseTokens([]byte(line + second))
	if err != nil {
		t.Fatal(err)
	}
	guard := access.New(access.Config{Tokens: tokens})
	for name, secret := range map[string]string{"checkout": token, "ops": strings.TrimSpace(string(b))} {
		c, err := guard.Identify(access.Credentials{Token: secret})
		if err != nil || c.Name() != name || (guard.Allow(c, access.Admin) == nil) != (name == "ops") {
			t.Errorf("%s: %q, %v", name, c.Name(), err)
		}
	}
	if code, _, errs := allocator("token", "new", "ops", "--out", file); code != exitInvalid || !strings.Contains(errs, "exists") {
		t.Errorf("over a file: exit code %d, stderr %q", code, errs)
	}
	for _, args := range [][]string{{"token", "new"}, {"token", "new", "No Name"}, {"token", "new", "a", "--scopes", "all"}, {"token", "new", "a", "b"}} {
		if code, out, _ := allocator(args...); code != exitUsage || out != "" {
			t.Errorf("%q: exit code %d, stdout %q", args, code, out)
		}
	}
}

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
		refuse := refusing(t, codes.Unauthenticated, "UNAUTHENTICATED", 0)
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
	d := dialer{tls: own, opts: []grpc.DialOption{grpc.WithTransportCredentials(own.Credentials())}}
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
