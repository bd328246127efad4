package server_test

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// Without a guard, whatever a caller sends along is its own affair.
func TestNoGuardLooksAtNoToken(t *testing.T) {
	env := servertest.New(t)
	if res := env.Do("POST", "/v1/ids", "", "Authorization", "Bearer whatever"); res.StatusCode != 200 {
		t.Errorf("%d", res.StatusCode)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Basic x")
	if _, err := env.Client().Allocate(ctx, &pb.AllocateRequest{Count: 1}); err != nil {
		t.Error(err)
	}
}

// TestOddCredentials: equal on both listeners, in every spelling.
func TestOddCredentials(t *testing.T) {
	env, tokens, _ := servertest.NewGuarded(t, access.Config{})
	good := tokens["issue"]
	for _, tc := range []struct {
		name    string
		headers []string
		ok      bool
	}{
		{"as it should be", []string{"Bearer " + good}, true},
		{"in lower case", []string{"bearer " + good}, true},
		{"in capitals, with spaces", []string{"BEARER    " + good + "  "}, true},
		{"without the word", []string{good}, false},
		{"with a colon", []string{"Bearer: " + good}, false},
		{"with a tab", []string{"Bearer\t" + good}, false},
		{"quoted", []string{`Bearer "` + good + `"`}, false},
		{"Basic", []string{"Basic " + good}, false},
		{"the word alone", []string{"Bearer"}, false},
		{"empty", []string{""}, false},
		{"cut off", []string{"Bearer " + good[:len(good)-1]}, false},
		{"with a letter more", []string{"Bearer " + good + "A"}, false},
		{"in other capitals", []string{"Bearer " + strings.ToLower(good)}, false},
		{"two tokens in one", []string{"Bearer " + good + ", Bearer " + good}, false},
		{"twice", []string{"Bearer " + good, "Bearer " + good}, false},
		{"a good one after a bad one", []string{"Bearer x", "Bearer " + good}, false},
		{"very long", []string{"Bearer " + strings.Repeat("A", 5000)}, false},
		{"no token", nil, false},
	} {
		req := httptest.NewRequest("POST", "/v1/ids", nil)
		req.Header["Authorization"] = tc.headers
		res := env.Send(req)
		if want := map[bool]int{true: 200, false: 401}[tc.ok]; res.StatusCode != want {
			t.Errorf("%s: HTTP %d, want %d", tc.name, res.StatusCode, want)
		}
		body, _ := io.ReadAll(res.Body)
		if strings.Contains(strings.Join(tc.headers, ""), "\t") {
			continue // gRPC's own client refuses to send it
		}
		ctx := t.Context()
		for _, h := range tc.headers {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", h)
		}
		_, err := env.Client().Allocate(ctx, &pb.AllocateRequest{Count: 1})
		if tc.ok != (err == nil) || err != nil && status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: gRPC %v", tc.name, err)
		}
		if !tc.ok && (strings.Contains(string(body), good) || strings.Contains(err.Error(), good)) {
			t.Errorf("%s: the answer shows the token", tc.name)
		}
	}
	if n := env.Node.Stats().Issued; n != 6 {
		t.Errorf("%d IDs issued, want 6", n)
	}
}

// TestRateLimit: above the rate, each listener answers RATE_LIMITED with a delay, others are served, and refusals issued nothing.
func TestRateLimit(t *testing.T) {
	var now clock.Mono
	env, tokens, _ := servertest.NewGuarded(t, access.Config{Rate: 4, Now: func() clock.Mono { return now }})
	as := func(scope string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tokens[scope])
	}
	for range 2 {
		if _, err := env.Client().Allocate(as("issue"), &pb.AllocateRequest{Count: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := env.Client().AllocateStream(as("issue")) // opening it is the third
	fatal.If(t, err)
	exchange := func() *pb.AllocateStreamResponse {
		t.Helper()
		fatal.If(t, stream.Send(&pb.AllocateStreamRequest{Sequence: 5, Request: &pb.AllocateRequest{Count: 1}}))
		res, err := stream.Recv()
		fatal.If(t, err)
		return res
	}
	if res := exchange(); res.GetResponse() == nil {
		t.Errorf("the fourth: %v", res)
	}
	if r := exchange().GetRefusal(); r.GetReason() != pb.Reason_REASON_RATE_LIMITED || r.GetRetryAfterMs() != 250 {
		t.Errorf("the fifth, on the stream: %v", r)
	}
	_, err = env.Client().Allocate(as("issue"), &pb.AllocateRequest{Count: 1})
	var reason string
	var retry time.Duration
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.GetReason()
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	if status.Code(err) != codes.ResourceExhausted || reason != "RATE_LIMITED" || retry != 250*time.Millisecond {
		t.Errorf("gRPC: %v, %s, %v", err, reason, retry)
	}
	res := env.Do("POST", "/v1/ids", "", "Authorization", "Bearer "+tokens["issue"])
	if p := servertest.ProblemIn(res); res.StatusCode != 429 || p.Reason != "RATE_LIMITED" || p.RetryAfterMs != 250 || res.Header.Get("Retry-After") != "1" {
		t.Errorf("HTTP: %d, %+v", res.StatusCode, p)
	}
	if res := env.Do("POST", "/v1/ids", "", "Authorization", "Bearer "+tokens["admin"]); res.StatusCode != 200 {
		t.Errorf("another client: %d", res.StatusCode)
	}
	if n := env.Node.Stats(); n.Issued != 2002 || n.Refused[node.RateLimited] != 3 {
		t.Errorf("%d IDs issued, %d refusals", n.Issued, n.Refused[node.RateLimited])
	}
	now += clock.Mono(250 * time.Millisecond)
	if res := exchange(); res.GetResponse() == nil {
		t.Errorf("after the delay: %v", res)
	}
}

// A revoked token ends the streams that it opened.
func TestRevokedTokenEndsStreams(t *testing.T) {
	env, tokens, guard := servertest.NewGuarded(t, access.Config{})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tokens["issue"])
	stream, err := env.Client().AllocateStream(ctx)
	fatal.If(t, err)
	send := func() (*pb.AllocateStreamResponse, error) {
		_ = stream.Send(&pb.AllocateStreamRequest{Request: &pb.AllocateRequest{Count: 1}})
		return stream.Recv()
	}
	if _, err := send(); err != nil {
		t.Fatal(err)
	}
	ctx = metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tokens["read"])
	reflected, err := reflectionpb.NewServerReflectionClient(env.Dial()).ServerReflectionInfo(ctx)
	fatal.If(t, err)
	list := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	_ = reflected.Send(list)
	if _, err := reflected.Recv(); err != nil {
		t.Fatal(err)
	}
	others, _ := servertest.Tokens(t, "admin")
	guard.SetTokens(others)
	_ = reflected.Send(list)
	if res, err := reflected.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("reflection: %v, %v", res, err)
	}
	if res, err := send(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("%v, %v", res, err)
	}
	if n := env.Node.Stats().Issued; n != 1 {
		t.Errorf("%d IDs issued", n)
	}
}

// Whoever is turned away is so before the body is read, and whatever is wrong
// with the request besides.
func TestAccessComesFirst(t *testing.T) {
	env, _, _ := servertest.NewGuarded(t, access.Config{})
	req := httptest.NewRequest("POST", "/v1/ids?count=x&nonsense", readerFunc(func([]byte) (int, error) {
		t.Error("the body of an unauthenticated request is read")
		return 0, io.EOF
	}))
	if res := env.Send(req); res.StatusCode != 401 {
		t.Errorf("%d", res.StatusCode)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Every error of a guard has a refusal, and none of another.
func TestAccessRefusal(t *testing.T) {
	for err, want := range map[error]node.Reason{
		access.ErrNoToken:                   node.Unauthenticated,
		access.ErrMalformed:                 node.Unauthenticated,
		access.ErrUnknownToken:              node.Unauthenticated,
		access.ErrUnauthenticated:           node.Unauthenticated,
		access.ErrPermissionDenied:          node.PermissionDenied,
		&access.LimitedError{RetryAfter: 1}: node.RateLimited,
	} {
		r := server.AccessRefusal(err, access.Caller{}, access.Issue)
		if r.Reason != want || (r.RetryAfter > 0) != (want == node.RateLimited) || r.Message == "" {
			t.Errorf("%v: %+v", err, r)
		}
	}
	if r := server.AccessRefusal(errors.New("anything"), access.Caller{}, access.Issue); r.Reason != node.Unauthenticated {
		t.Errorf("what nobody knows lets in: %v", r)
	}
}
