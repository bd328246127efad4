package interop

import (
	"net"
	"testing"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
)

// OpenTelemetry comes in through DialOptions: a call's span is the parent of the
// request's, and the node receives its trace.
func TestOpenTelemetry(t *testing.T) {
	for _, mode := range []client.Mode{client.Direct, client.Coalesce} {
		t.Run(mode.String(), func(t *testing.T) {
			spans, served := tracetest.NewSpanRecorder(), tracetest.NewSpanRecorder()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
			traceContext := otelgrpc.WithPropagators(propagation.TraceContext{})

			env := newNode(t, nil)
			g := env.GRPC.GRPC(grpc.StatsHandler(otelgrpc.NewServerHandler(traceContext,
				otelgrpc.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(served))))))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			fatal.If(t, err)
			ended := make(chan error, 1)
			go func() { ended <- g.Serve(l) }()
			defer func() { g.Stop(); <-ended }()

			c, err := client.New(client.Options{Targets: []string{l.Addr().String()}, Mode: mode, DialOptions: []grpc.DialOption{
				grpc.WithStatsHandler(otelgrpc.NewClientHandler(traceContext, otelgrpc.WithTracerProvider(provider))),
			}})
			fatal.If(t, err)
			ctx, call := provider.Tracer("test").Start(t.Context(), "a call")
			if _, err := c.Next(ctx); err != nil {
				t.Fatal(err)
			}
			call.End()
			fatal.If(t, c.Close())

			// A stream is shared by calls, so its span is the child of none.
			name, parent := "allocator.v1.AllocatorService/Allocate", call.SpanContext().SpanID()
			if mode == client.Coalesce {
				name, parent = "allocator.v1.AllocatorService/AllocateStream", [8]byte{}
			}
			request := find(spans.Ended(), name)
			if request == nil || mode == client.Direct && request.Parent().SpanID() != parent {
				t.Fatalf("no span of the request %s among %v", name, spans.Ended())
			}
			for _, s := range served.Started() {
				if s.Parent().TraceID() == request.SpanContext().TraceID() && s.Parent().SpanID() == request.SpanContext().SpanID() {
					return
				}
			}
			t.Errorf("the node received no trace of the request: %v", served.Started())
		})
	}
}

func find(spans []sdktrace.ReadOnlySpan, name string) sdktrace.ReadOnlySpan {
	for _, s := range spans {
		if s.Name() == name {
			return s
		}
	}
	return nil
}
