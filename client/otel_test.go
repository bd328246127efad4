package client_test

import (
	"testing"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"context"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
)

// OpenTelemetry comes in through DialOptions: a call's span is the parent of the
// request's, and its trace arrives at the node.
func TestOpenTelemetry(t *testing.T) {
	for _, mode := range []client.Mode{client.Direct, client.Coalesce} {
		t.Run(mode.String(), func(t *testing.T) {
			spans := tracetest.NewSpanRecorder()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
			f := newFake(t, 1)
			arrived := make(chan string, 1)
			f.act(func(ctx context.Context, _ int64, _ *pb.AllocateRequest) act {
				md, _ := metadata.FromIncomingContext(ctx)
				if v := md.Get("traceparent"); len(v) > 0 {
					select {
					case arrived <- v[0]:
					default:
					}
				}
				return act{}
			})
			c := dial(t, client.Options{Targets: []string{f.addr}, Mode: mode, DialOptions: []grpc.DialOption{
				grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(provider), otelgrpc.WithPropagators(propagation.TraceContext{}))),
			}})
			ctx, span := provider.Tracer("test").Start(t.Context(), "a call")
			if _, err := c.Next(ctx); err != nil {
				t.Fatal(err)
			}
			span.End()
			select {
			case got := <-arrived:
				if len(got) != 55 {
					t.Errorf("traceparent %q", got)
				}
			default:
				t.Error("no trace came to the node")
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			for _, s := range spans.Ended() {
				if s.Name() == "allocator.v1.AllocatorService/Allocate" && s.Parent().SpanID() == span.SpanContext().SpanID() ||
					s.Name() == "allocator.v1.AllocatorService/AllocateStream" { // shared by calls, so the child of none
					return
				}
			}
			t.Errorf("no span of the request among %v", spans.Ended())
		})
	}
}
