package httpserver_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
)

// scopesOf is who may call what, on each surface. "" is everybody. A method or route that is not here fails the
// test below: decide who may call it.
var scopesOf = map[string]string{
	"/allocator.v1.AllocatorService/Allocate":                        "issue",
	"/allocator.v1.AllocatorService/AllocateStream":                  "issue",
	"/allocator.v1.AllocatorService/Describe":                        "read",
	"/allocator.v1.AllocatorService/GetWatermark":                    "read",
	"/allocator.v1.AllocatorService/WatchWatermark":                  "read",
	"/allocator.v1.AdminService/GetCluster":                          "read",
	"/allocator.v1.AdminService/WatchEvents":                         "read",
	"/allocator.v1.AdminService/GetDebug":                            "read",
	"/allocator.v1.AdminService/Drain":                               "admin",
	"/allocator.v1.AdminService/Undrain":                             "admin",
	"/allocator.v1.WorkerService/AcquireWorker":                      "worker",
	"/allocator.v1.WorkerService/ExtendWorker":                       "worker",
	"/allocator.v1.WorkerService/ReleaseWorker":                      "worker",
	"/grpc.health.v1.Health/Check":                                   "",
	"/grpc.health.v1.Health/List":                                    "",
	"/grpc.health.v1.Health/Watch":                                   "",
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      "read",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "read",

	"POST /v1/ids":                "issue",
	"/v1/ids":                     "",
	"GET /v1/ids/{id}":            "read",
	"/v1/ids/{id}":                "",
	"GET /v1/cluster":             "read",
	"/v1/cluster":                 "",
	"POST /v1/workers":            "worker",
	"/v1/workers":                 "",
	"GET /v1/watermark":           "read",
	"/v1/watermark":               "",
	"GET /v1/events":              "read",
	"/v1/events":                  "",
	"POST /v1/workers/{worker}":   "worker",
	"DELETE /v1/workers/{worker}": "worker",
	"/v1/workers/{worker}":        "",
	"GET /openapi.yaml":           "",
	"GET /docs/{page...}":         "",
	"/openapi.yaml":               "",
	"/":                           "",

	"ID.NEXT":      "issue",
	"HGET id next": "issue",
	"ID.STATUS":    "read",
	"ID.WATERMARK": "read",
	"ID.DECODE 5":  "read",
}

// outcomes are the reasons of refusals of access, by what each surface says of them.
var outcomes = map[string]node.Reason{
	codes.Unauthenticated.String(): node.Unauthenticated, codes.PermissionDenied.String(): node.PermissionDenied,
	"401": node.Unauthenticated, "403": node.PermissionDenied,
	"-NOAUTH": node.Unauthenticated, "-WRONGPASS": node.Unauthenticated, "-NOPERM": node.PermissionDenied,
}

// call calls any method with an empty message and returns the code of its answer.
func call(t *testing.T, conn *grpc.ClientConn, method string, streams bool, token string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	err := func() error {
		if !streams {
			return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
		}
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(&emptypb.Empty{}); err != nil && err != io.EOF {
			return err
		}
		_ = stream.CloseSend()
		if err := stream.RecvMsg(&emptypb.Empty{}); err != io.EOF {
			return err
		}
		return nil
	}()
	return status.Code(err).String()
}

// request sends a request to a route, which issues nothing when it is let through.
func request(t *testing.T, env *servertest.Env, pattern, token string) string {
	t.Helper()
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		method, path = "PUT", pattern
	}
	worker := "16-1"
	if method == "POST" {
		worker, path = "16-1:extend", path+"?count=0"
	}
	var header []string
	if token != "" {
		header = []string{"Authorization", "Bearer " + token}
	}
	res := env.Do(method, strings.NewReplacer("{id}", "02MVRE9KJ2642", "{worker}", worker).Replace(path), "", header...)
	refused := res.StatusCode == 401 || res.StatusCode == 403
	if reason := servertest.ProblemIn(res).Reason; refused && reason != outcomes[fmt.Sprint(res.StatusCode)].String() {
		t.Errorf("%s: %d has the reason %s", pattern, res.StatusCode, reason)
	}
	if challenge := res.Header.Get("WWW-Authenticate"); refused != strings.HasPrefix(challenge, "Bearer ") {
		t.Errorf("%s: %d has WWW-Authenticate %q", pattern, res.StatusCode, challenge)
	}
	return fmt.Sprint(res.StatusCode)
}

// TestCredentials: each call of each surface with each credential has its outcome, and a refusal changes nothing (I7).
func TestCredentials(t *testing.T) {
	env, tokens, _ := servertest.NewGuarded(t, access.Config{})
	tokens["unknown"] = "allocator_UNKNOWN"
	env.Feed.End() // so that streams end
	conn, before := env.Dial(), env.Node.Stats()
	calls := map[string]func(call, token string) string{}
	for service, info := range env.GRPC.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			calls["/"+service+"/"+m.Name] = func(method, token string) string {
				return call(t, conn, method, m.IsClientStream || m.IsServerStream, token)
			}
		}
	}
	for _, r := range httpserver.Routes(env.Service) {
		calls[r.Pattern] = func(pattern, token string) string { return request(t, env, pattern, token) }
	}
	for name := range scopesOf {
		if !strings.Contains(name, "/") {
			calls[name] = func(command, token string) string {
				answers := env.Redis("AUTH " + token + "\r\n" + command)
				if token == "" {
					answers = env.Redis(command)
				}
				line := ""
				for range min(len(token), 1) + 1 {
					line, _ = answers.ReadString('\n')
				}
				first, _, _ := strings.Cut(line, " ")
				return first
			}
		}
	}
	for name, do := range calls {
		needs, ok := scopesOf[name]
		if !ok {
			t.Errorf("nobody decided who may call %s", name)
		}
		for _, shown := range servertest.Shown {
			got := do(name, tokens[shown])
			if want := servertest.Verdict(needs, shown); outcomes[got] != want {
				t.Errorf("%s with a token of %q: %s, want %v", name, shown, got, want)
			} else if want != 0 && env.Node.Stats().Draining {
				t.Errorf("%s with a token of %q was refused and drains the node", name, shown)
			}
			if _, err := env.Drainer.Undrain(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(calls) != len(scopesOf) {
		t.Errorf("%d calls, and %d have a scope", len(calls), len(scopesOf))
	}
	after := env.Node.Stats()
	if after.Issued != 4 || after.Ceil != before.Ceil { // by two commands, with two tokens each
		t.Errorf("refusals changed the node: %+v to %+v", before, after)
	}
}

// TestUnreadAnswersCount: an answer counts for its connection while the client does not read,
// and no longer.
func TestUnreadAnswersCount(t *testing.T) {
	const (
		requests  = 800 // 28 MB of answers: more than the kernel keeps
		connBytes = 48 << 10
	)
	q := quota.New(quota.Config{Now: func() clock.Mono { return 0 }})
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	s := httpserver.NewServer(servertest.New(t).HTTP, slog.New(slog.DiscardHandler))
	go func() { _ = s.Serve(q.Listen(raw, quota.ListenerConfig{})) }()
	t.Cleanup(func() { _ = s.Close() })
	c, err := net.Dial("tcp", raw.Addr().String())
	fatal.If(t, err)
	defer c.Close()
	go func() {
		_, _ = io.WriteString(c, strings.Repeat("GET /openapi.yaml HTTP/1.1\r\nHost: node\r\n\r\n", requests))
	}()
	until := func(what string, done func(held int64) bool) {
		t.Helper()
		wait.Until(t, what, func() bool { held, _ := q.Held(); return done(held) })
	}
	until("an answer", func(held int64) bool { return held >= connBytes+30_000 })
	go func() { _, _ = io.Copy(io.Discard, c) }()
	until("read", func(held int64) bool { return held == connBytes })
}
