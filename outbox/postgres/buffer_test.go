package postgres_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

func TestBuffer(t *testing.T) { buffertest.Run(t, harness(buffer.ClaimStamp)) }

func TestBufferRange(t *testing.T) { buffertest.Run(t, harness(buffer.ClaimRange)) }

func BenchmarkBuffer(b *testing.B) {
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		b.Run(string(mode), func(b *testing.B) { buffertest.Benchmark(b, harness(mode)) })
	}
	b.Run("marked", func(b *testing.B) { buffertest.Benchmark(b, marked(customHarness(integerKeys))) })
}
