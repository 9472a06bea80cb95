package config

import (
	"cmp"
	"net"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/internal/redact"
	"github.com/outboxrelay/relay/pipeline"
)

// tracing describes the sink in spans.
func (s *Sink) tracing(provider trace.TracerProvider, name string) pipeline.Tracing {
	t := pipeline.Tracing{Provider: provider, Sink: name}
	if provider == nil {
		return t
	}
	url := s.URL.Reveal()
	_, _, hosts, _ := redact.SplitURL(url)
	switch s.Driver {
	case "redis":
		t.System, t.Destination = "redis", cmp.Or(s.Redis.Stream, s.Redis.List, s.Redis.Channel, s.Redis.Queue)
	case "nats":
		t.System, t.Destination = "nats", s.NATS.Subject
	case "http":
		t.Attributes = append(t.Attributes, semconv.HTTPRequestMethodKey.String(s.HTTP.Method), semconv.URLTemplate(s.URL.String()))
	case "postgres":
		t.Attributes = append(t.Attributes, semconv.DBSystemNamePostgreSQL)
	case "file":
		return t
	}
	t.Attributes = append(t.Attributes, serverOf(hosts)...)
	return t
}

// serverOf names the first of the hosts of a URL.
func serverOf(hosts string) []attribute.KeyValue {
	first, _, _ := strings.Cut(hosts, ",")
	host, port, err := net.SplitHostPort(first)
	if err != nil {
		host = first
	}
	if host == "" || strings.Contains(host, "{") {
		return nil
	}
	server := []attribute.KeyValue{semconv.ServerAddress(host)}
	if n, err := strconv.Atoi(port); err == nil {
		server = append(server, semconv.ServerPort(n))
	}
	return server
}
