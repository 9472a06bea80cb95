package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/memory"
	"github.com/outboxrelay/relay/internal/testserver"
)

var (
	scale  = flag.Float64("scale", 1, "factor for event counts and durations; 0.1 for a quick run")
	fillBy = flag.String("fill", "copy", "how waiting events are inserted: copy, or inserts for one transaction each")
	only   = flag.String("only", "", "the contenders to run, by name, separated by commas; all when empty")
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(natsFolder); dir != "" {
		serveNATS(dir)
		return
	}
	if sink := os.Getenv(loopDrains); sink != "" {
		memory.Tune()
		if err := serveLoop(sink, os.Getenv(loopDatabase)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	memory.Tune() // as relay run does; the yardsticks run in this process, too
	testserver.Main(m)
}

// scaled returns n times -scale, in whole batches.
func scaled(n int) int { return max(1, int(float64(n)**scale)/batchSize) * batchSize }

// scaledTime returns d times -scale.
func scaledTime(d time.Duration) time.Duration {
	return max(time.Second, time.Duration(float64(d)**scale))
}

// wanted reports whether -only selects a contender.
func wanted(name string) bool {
	return *only == "" || slices.Contains(strings.Split(*only, ","), name)
}

func pause(b *testing.B, d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.Context().Done():
		b.Fatal(b.Context().Err())
	}
}

func until(b *testing.B, atMost time.Duration, done func() bool) {
	b.Helper()
	untilEach(b, 100*time.Millisecond, atMost, done)
}

// untilEach looks once an interval.
func untilEach(b *testing.B, interval, atMost time.Duration, done func() bool) {
	b.Helper()
	for end := time.Now().Add(atMost); !done(); pause(b, interval) {
		if time.Now().After(end) {
			b.Fatal("it did not happen in time")
		}
	}
}

// bounded returns the benchmark's context with a deadline. Work that is not done by
// then fails.
func bounded(b *testing.B, atMost time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.Context(), atMost)
}
