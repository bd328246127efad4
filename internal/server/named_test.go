package server_test

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
)

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestNamed: what a request says of itself is taken over as it is, or not at all.
func TestNamed(t *testing.T) {
	const id, trace = "[request r-1]", "[trace 4bf92f3577b34da6a3ce929d0e0e4736 span 00f067aa0ba902b7]"
	for name, tc := range map[string]struct {
		request, parent []string
		want            string
	}{
		"nothing":           {},
		"an ID":             {request: []string{"r-1"}, want: id},
		"the longest":       {request: []string{strings.Repeat("r", 128)}, want: "[request " + strings.Repeat("r", 128) + "]"},
		"too long":          {request: []string{strings.Repeat("r", 129)}},
		"empty":             {request: []string{""}},
		"two IDs":           {request: []string{"r-1", "r-2"}},
		"a line":            {request: []string{"r-1\nlevel=ERROR"}},
		"a space":           {request: []string{"r 1"}},
		"not ASCII":         {request: []string{"ñ"}},
		"a trace":           {parent: []string{traceparent}, want: trace},
		"a later version":   {parent: []string{"01" + traceparent[2:] + "-more"}, want: trace},
		"more than its own": {parent: []string{traceparent + "-more"}},
		"no version":        {parent: []string{"ff" + traceparent[2:]}},
		"upper case":        {parent: []string{strings.ToUpper(traceparent)}},
		"no trace":          {parent: []string{"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01"}},
		"no span":           {parent: []string{"00-4bf92f3577b34da6a3ce929d0e0e4736-" + strings.Repeat("0", 16) + "-01"}},
		"short":             {parent: []string{"00-4bf9-00f067aa0ba902b7-01"}},
		"no flags":          {parent: []string{traceparent[:52]}},
		"two traces":        {parent: []string{traceparent, traceparent}},
		"an endless one":    {parent: []string{"01" + traceparent[2:] + strings.Repeat("-", 128)}},
		"both":              {request: []string{"r-1"}, parent: []string{traceparent}, want: id[:len(id)-1] + " " + trace[1:]},
		"a wrong trace":     {request: []string{"r-1"}, parent: []string{"-"}, want: id},
	} {
		got := server.Named(func(name string) []string {
			return map[string][]string{"x-request-id": tc.request, "traceparent": tc.parent}[name]
		})
		if tc.want == "" {
			tc.want = "[]"
		}
		if fmt.Sprint(got) != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
	}
}

// TestRefusedIsLogged: a refused request that names itself is in the log, over every listener with headers, with and
// without a guard, in a short line; no other request is, and not all of many.
func TestRefusedIsLogged(t *testing.T) {
	for _, guard := range []*access.Guard{nil, access.New(access.Config{})} {
		var log bytes.Buffer
		env := servertest.New(t, func(c *servertest.Config) { c.Log, c.Guard = &log, guard })
		named := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "r-1", "traceparent", traceparent)
		post := func(count string, name bool) {
			r := httptest.NewRequest("POST", "/v1/ids?count="+count, nil)
			if name {
				r.Header.Set("X-Request-Id", "r-1")
				r.Header.Set("traceparent", traceparent)
			}
			env.HTTP.ServeHTTP(httptest.NewRecorder(), r)
		}
		stream := func(count int32) {
			s, err := env.Client().AllocateStream(named)
			fatal.If(t, err)
			fatal.If(t, s.Send(&pb.AllocateStreamRequest{Request: &pb.AllocateRequest{Count: count}}))
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			fatal.If(t, s.CloseSend())
		}
		post("0", false)
		_, _ = env.Client().Allocate(t.Context(), &pb.AllocateRequest{})
		post("1", true)
		stream(1)
		if _, err := env.Client().Allocate(named, &pb.AllocateRequest{Count: 1}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(log.String(), "refused") {
			t.Errorf("logged:\n%s", &log)
		}
		const line = `msg="request refused" request=r-1 trace=4bf92f3577b34da6a3ce929d0e0e4736 span=00f067aa0ba902b7 call=`
		for call, ask := range map[string]func(){
			`"POST /v1/ids" source=192.0.2.1:1234 reason=INVALID_COUNT message=`: func() { post("0", true) },
			"/allocator.v1.AllocatorService/Allocate source=127.0.0.1:1 reason=INVALID_COUNT message=": func() {
				_, _ = env.Client().Allocate(named, &pb.AllocateRequest{})
			},
			"/allocator.v1.AllocatorService/Describe source=127.0.0.1:1 reason=INVALID_ID message=": func() {
				_, _ = env.Client().Describe(named, &pb.DescribeRequest{})
			},
			"/allocator.v1.AllocatorService/AllocateStream source=127.0.0.1:1 reason=INVALID_COUNT message=": func() { stream(0) },
		} {
			log.Reset()
			if ask(); strings.Count(log.String(), line+call) != 1 || strings.Count(log.String(), "\n") != 1 {
				t.Errorf("no single line %s%s:\n%s", line, call, &log)
			}
		}
		log.Reset()
		long := httptest.NewRequest("GET", "/v1/ids/%0A"+strings.Repeat("p", 3000)+"?kind="+strings.Repeat("k", 3000), nil)
		long.Header.Set("X-Request-Id", "r-1")
		env.HTTP.ServeHTTP(httptest.NewRecorder(), long)
		if strings.Count(log.String(), "\n") != 1 || log.Len() > 500 {
			t.Errorf("no single short line:\n%.1000s", &log)
		}
		log.Reset()
		for range 100 {
			post("0", true)
		}
		if n := strings.Count(log.String(), "refused"); n < 20 || n > 35 {
			t.Errorf("%d lines about 100 requests", n)
		}
	}
}
