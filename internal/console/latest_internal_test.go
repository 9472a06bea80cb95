package console

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/testkit"
)

// slowSource is a source whose reports take a while. Each has one more dead letter than the one before.
type slowSource struct {
	takes atomic.Int64 // nanoseconds
	n     atomic.Int64
}

func (s *slowSource) Report(ctx context.Context, _ ...string) admin.Report {
	n := s.n.Add(1)
	select {
	case <-time.After(time.Duration(s.takes.Load())):
	case <-ctx.Done():
	}
	return admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", Dead: n}}}
}
func (s *slowSource) Changed(string)              {}
func (s *slowSource) Pipelines() []admin.Pipeline { return nil }

// TestLatest: the overview waits for no slow database, but shows what a user has just done.
func TestLatest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const quick = 10 * time.Millisecond
		source := &slowSource{}
		source.takes.Store(int64(quick))
		s := New(Config{Source: source})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		report := func() (dead int64, took, age time.Duration) {
			t.Helper()
			began := time.Now()
			r, at := s.report(t.Context())
			return r.Pipelines[0].Dead, time.Since(began), time.Since(at)
		}
		dead, took, _ := report() // no sampler runs yet
		testkit.Equal(t, "the first report", dead, 1)
		testkit.Equal(t, "it takes", took, quick)

		s.Use()
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(5 * time.Second) //nolint:forbidigo // in a synctest bubble
		dead, took, age := report() // the sampler is asked for a new one
		testkit.Equal(t, "a report in between", dead, 3)
		testkit.Equal(t, "it takes", took, quick)
		testkit.Equal(t, "its age", age, quick)
		dead, took, _ = report()
		testkit.Equal(t, "a report of the same second", dead, 3)
		testkit.Equal(t, "it takes", took, 0)

		source.takes.Store(int64(3 * time.Second))
		time.Sleep(5 * time.Second) //nolint:forbidigo // in a synctest bubble
		dead, took, age = report()
		testkit.Equal(t, "while the database is slow", dead, 3)
		testkit.Equal(t, "it takes", took, freshWithin)
		testkit.Equal(t, "its age", age > 5*time.Second, true)
		s.changed("orders")
		dead, _, age = report() // 4 was begun before the change
		testkit.Equal(t, "after a change", dead > 4, true)
		testkit.Equal(t, "its age", age <= 3*time.Second, true)
		cancel()
		testkit.NoError(t, <-ended)
	})
}
