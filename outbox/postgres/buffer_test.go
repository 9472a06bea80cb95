package postgres_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

func TestBuffer(t *testing.T) { buffertest.Run(t, harness(outbox.ClaimStamp)) }

func TestBufferRange(t *testing.T) { buffertest.Run(t, harness(outbox.ClaimRange)) }

func BenchmarkBuffer(b *testing.B) {
	for _, mode := range []outbox.ClaimMode{outbox.ClaimStamp, outbox.ClaimRange} {
		b.Run(string(mode), func(b *testing.B) { buffertest.Benchmark(b, harness(mode)) })
	}
}
