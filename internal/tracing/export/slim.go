//go:build slim

package export

import "go.opentelemetry.io/otel/exporters/otlp/otlptrace"

const hasGRPC = false

func newGRPC(Settings) otlptrace.Client { panic("grpc is a mistake in this build") }
