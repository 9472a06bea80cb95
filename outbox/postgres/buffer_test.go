package postgres_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffertest"
)

func TestBuffer(t *testing.T) { buffertest.Run(t, harness()) }

func BenchmarkBuffer(b *testing.B) { buffertest.Benchmark(b, harness()) }
