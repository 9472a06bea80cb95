// Package export sends spans to an OpenTelemetry collector, as the standard OTEL_ variables of the environment say. The SDK reads them;
// this package checks them before, because the SDK takes a wrong one for its default.
package export

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/internal/redact"
)

// flushTimeout is how long the end of the process waits for the last spans.
const flushTimeout = 2 * time.Second

// Exporter makes spans and sends them. They wait in a queue of bounded length: if the collector is away or slow, spans are dropped, and
// nobody waits. A nil Exporter makes none.
type Exporter struct{ provider *sdktrace.TracerProvider }

// Open reads the environment of the process. It returns nil if traces are off. Each variable that is set wrongly is one line of the log, and
// turns traces off: deliveries do not depend on them. Open connects to nothing. It sets the process's error handler of OpenTelemetry.
func Open(ctx context.Context, version string, log *slog.Logger) *Exporter {
	settings, wrong := Read(os.Environ())
	for _, m := range wrong {
		log.ErrorContext(ctx, "environment: "+m.Text+"; no traces are exported: correct it and restart the relay")
	}
	if !settings.On {
		return nil
	}
	env := environmentOf(os.Environ())
	secrets := redact.New(env.secrets(), nil)
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.WarnContext(ctx, "exporting traces failed, spans are dropped; deliveries go on", "error", errors.New(secrets.Text(err.Error())))
	}))
	provider, err := open(ctx, settings, version)
	if err != nil {
		log.ErrorContext(ctx, "exporting traces failed, none are exported until the relay is restarted", "error", errors.New(secrets.Text(err.Error())))
		return nil
	}
	log.InfoContext(ctx, "exporting traces", "url", settings.url(), "protocol", settings.Protocol, "sampler", settings.Sampler)
	if u, err := url.Parse(settings.Endpoint); err == nil && u.Port() == "4317" && settings.Protocol == protocolHTTP {
		log.WarnContext(ctx, "port 4317 is that of OTLP by gRPC, and the protocol is http/protobuf; set OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or use port 4318")
	}
	return &Exporter{provider}
}

func open(ctx context.Context, s Settings, version string) (*sdktrace.TracerProvider, error) {
	// The exporters' own default is to use TLS with localhost.
	var client otlptrace.Client
	switch named := s.Endpoint != ""; {
	case s.Protocol == protocolGRPC && named:
		client = otlptracegrpc.NewClient()
	case s.Protocol == protocolGRPC:
		client = otlptracegrpc.NewClient(otlptracegrpc.WithInsecure())
	case named:
		client = otlptracehttp.NewClient()
	default:
		client = otlptracehttp.NewClient(otlptracehttp.WithInsecure())
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, err
	}
	// The environment comes last, so it wins.
	r, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(semconv.ServiceName("relay"), semconv.ServiceVersion(version)), resource.WithFromEnv())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("describing the process: %w", err), exporter.Shutdown(ctx))
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(r)), nil
}

// url is where spans go.
func (s Settings) url() string {
	switch {
	case s.Endpoint != "":
		return s.Endpoint
	case s.Protocol == protocolGRPC:
		return "http://localhost:4317"
	}
	return "http://localhost:4318/v1/traces"
}

// secrets are the values of headers.
func (env environment) secrets() (all []string) {
	for _, name := range otlpNames("HEADERS") {
		for part := range strings.SplitSeq(env[name], ",") {
			_, value, _ := strings.Cut(part, "=")
			if decoded, err := url.PathUnescape(value); err == nil && decoded != "" {
				all = append(all, decoded)
				if _, token, ok := strings.Cut(decoded, " "); ok { // Bearer TOKEN
					all = append(all, token)
				}
			}
		}
	}
	return all
}

// Provider makes the spans; nil for a nil Exporter.
func (e *Exporter) Provider() trace.TracerProvider {
	if e == nil {
		return nil
	}
	return e.provider
}

// Close sends the spans that wait, for two seconds at most, and drops the rest.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := e.provider.Shutdown(ctx); err != nil {
		otel.Handle(err)
	}
}
