package operator

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/flakelease/allocator/internal/daemon"
)

// traces returns what makes spans of calls and requests and sends them to the collector that OpenTelemetry's variables
// name, and what sends the last ones. Without a collector it is nothing. Spans wait in a queue of bounded length, and
// are dropped if the collector does not take them: no request waits for it.
func traces(env func(string) string, version string, log *slog.Logger) (_ daemon.Traces, end func(), _ error) {
	end = func() {}
	if cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), env("OTEL_EXPORTER_OTLP_ENDPOINT")) == "" ||
		strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none" {
		return daemon.Traces{}, end, nil
	}
	ctx := context.Background()
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "allocator"),
		attribute.String("service.version", version),
	), resource.WithFromEnv())
	if err != nil {
		return daemon.Traces{}, end, err
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return daemon.Traces{}, end, err
	}
	failed := rate.Sometimes{First: 1, Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		failed.Do(func() { log.Warn("spans are lost: check the collector", "error", err) })
	}))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(of))
	end = func() {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = provider.Shutdown(ctx) // Its error was logged.
	}
	log.Info("spans are exported")
	return spans(provider), end, nil
}

// spans returns what makes spans with a provider.
func spans(provider trace.TracerProvider) daemon.Traces {
	var parent propagation.TraceContext
	tracer := provider.Tracer("github.com/flakelease/allocator")
	return daemon.Traces{
		GRPC: []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(provider),
			otelgrpc.WithPropagators(parent),
			// Not probes of health, and no long name that a client made up.
			otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool {
				return strings.HasPrefix(call.FullMethodName, "/allocator.v1.") && len(call.FullMethodName) < 64
			}),
		))},
		HTTP: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx := parent.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
				ctx, span := tracer.Start(ctx, "HTTP", trace.WithSpanKind(trace.SpanKindServer))
				defer span.End()
				r = r.WithContext(ctx)
				answer := &answer{w, http.StatusOK}
				next.ServeHTTP(answer, r)
				span.SetName(cmp.Or(r.Pattern, "HTTP"))
				span.SetAttributes(attribute.Int("http.response.status_code", answer.status))
				if answer.status >= http.StatusInternalServerError {
					span.SetStatus(codes.Error, "")
				}
			})
		},
	}
}

// answer notes the status of an answer.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
