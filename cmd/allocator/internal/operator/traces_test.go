package operator

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/daemon"
)

// Without a collector nothing is installed, so that spans cost nothing.
func TestTracesOff(t *testing.T) {
	for _, env := range []map[string]string{
		{},
		{"OTEL_SERVICE_NAME": "ids", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "TRUE"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		got, end, err := traces(func(name string) string { return env[name] }, "v1", slog.New(slog.DiscardHandler))
		if err != nil || got.GRPC != nil || got.HTTP != nil {
			t.Errorf("%v: %+v, %v", env, got, err)
		}
		end()
	}
}

// A call and a request to a node each have a span, below that of the caller. A refusal is an error of the span,
// and a wrong request is none. Probes have no span.
func TestSpans(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	host := daemon.Host{Traces: spans(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))}
	etcd, endpoint, err := etcdsim.OnLoopback()
	fatal.If(t, err)
	t.Cleanup(etcd.Close)
	c := daemontest.Settings(t, "a", endpoint)
	n := daemontest.Start(t, c, host) // It refuses each call: nobody initialized the space.
	conn, err := grpc.NewClient(n.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal.If(t, err)
	const of, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+of+"-"+parent+"-01")
	_, _ = pb.NewAllocatorServiceClient(conn).Allocate(ctx, &pb.AllocateRequest{Count: 1})
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	fatal.If(t, err)
	_ = conn.Invoke(ctx, "/allocator.v1."+strings.Repeat("x", 99), &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckRequest{})
	fatal.If(t, conn.Close())
	for _, path := range []string{"POST /v1/ids", "GET /v1/ids/%2e", "GET /" + strings.Repeat("x", 99)} {
		method, path, _ := strings.Cut(path, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.Addresses().HTTP+path, nil)
		fatal.If(t, err)
		r.Header.Set("traceparent", "00-"+of+"-"+parent+"-01")
		reply, err := http.DefaultClient.Do(r)
		fatal.If(t, err)
		fatal.If(t, reply.Body.Close())
	}
	fatal.If(t, n.Stop())
	var got []string
	for _, s := range recorder.Ended() {
		got = append(got, s.Name()+": "+s.Status().Code.String())
		if s.Parent().TraceID().String() != of || s.Parent().SpanID().String() != parent {
			t.Errorf("%s is below %v", s.Name(), s.Parent())
		}
	}
	slices.Sort(got)
	if want := []string{
		"/: Unset", "GET /v1/ids/{id}: Unset", "POST /v1/ids: Error", "allocator.v1.AllocatorService/Allocate: Error",
	}; !slices.Equal(got, want) {
		t.Errorf("spans %q, want %q", got, want)
	}
}

// A collector gets spans over OTLP's gRPC, with the name that OpenTelemetry's variables give.
func TestCollector(t *testing.T) {
	got := make(chan string, 1)
	collector := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.Method(s.Context())
		var request emptypb.Empty // Its unknown fields are the request; without fields an answer says that all were taken.
		if err := s.RecvMsg(&request); err != nil {
			return err
		}
		got <- method + " " + string(request.ProtoReflect().GetUnknown())
		return s.SendMsg(&emptypb.Empty{})
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	go collector.Serve(l)
	defer collector.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_SERVICE_NAME", "ids-of-checkout")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	traced, end, err := traces(os.Getenv, "v1.2.3", slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	defer end()
	traced.HTTP(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	export := <-got
	const method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export "
	for _, want := range []string{method, "ids-of-checkout", "v1.2.3", "HTTP"} {
		if !strings.Contains(export, want) {
			t.Errorf("%q is missing in %q", want, export)
		}
	}
}

// A collector that takes connections and answers nothing keeps no request, though there are more than the queue has
// room for.
func TestSilentCollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
	got, end, err := traces(os.Getenv, "v1", slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	served := 0
	h := got.HTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	for i := range 10_000 {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, fmt.Sprint("/", i), nil)
		fatal.If(t, err)
		h.ServeHTTP(nil, r)
	}
	end()
	if served != 10_000 {
		t.Errorf("%d requests", served)
	}
}
