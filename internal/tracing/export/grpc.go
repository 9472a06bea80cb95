//go:build !slim

package export

import (
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
)

const hasGRPC = true

// newGRPC connects without TLS only to an endpoint that says so.
func newGRPC(s Settings) otlptrace.Client {
	if s.Endpoint == "" { // the exporter's own default uses TLS
		return otlptracegrpc.NewClient(otlptracegrpc.WithInsecure())
	}
	return otlptracegrpc.NewClient()
}
