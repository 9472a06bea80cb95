// Package memory sets how often a relay process collects garbage.
package memory

import (
	"math"
	"os"
	"runtime/debug"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	growth = 400      // percent of the live heap, instead of Go's 100
	base   = 64 << 20 // bytes for what is not a batch
	// perBatch is a batch, its body, and as much again, so that the limit stays above what is in use.
	perBatch = 4 * buffer.MaxBytes
)

// Tune lets the heap grow further between two collections than Go does by default, up to a soft limit that
// depends on the workers of all pipelines. The live heap of a relay is a few batches, so collecting twice as
// often saves little memory and takes a fifth of the CPU of a pipeline with jq. The environment variables GOGC and
// GOMEMLIMIT have precedence.
func Tune(workers int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(growth)
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(base + int64(workers+max(2, workers/2))*perBatch)
	}
}
