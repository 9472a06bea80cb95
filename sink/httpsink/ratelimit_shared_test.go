package httpsink_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testdb"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// buckets opens a buffer for each process, on PostgreSQL and on SQLite.
var buckets = map[string]func(t testing.TB, n int) []buffer.TokenBucket{
	"PostgreSQL": func(t testing.TB, n int) (all []buffer.TokenBucket) {
		url := testdb.Postgres(t, postgres.SchemaConfig{})
		return bucketsAt(t, url, n)
	},
	"PgBouncer": func(t testing.TB, n int) (all []buffer.TokenBucket) {
		url := testdb.Postgres(t, postgres.SchemaConfig{})
		return bucketsAt(t, testserver.PgBouncer(t, url), n)
	},
	"SQLite": func(t testing.TB, n int) (all []buffer.TokenBucket) {
		url := "sqlite://" + filepath.Join(t.TempDir(), "app.db")
		_, err := sqlite.Migrate(t.Context(), url, sqlite.SchemaConfig{})
		testkit.NoError(t, err)
		for range n {
			b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			all = append(all, b)
		}
		return all
	},
}

func bucketsAt(t testing.TB, url string, n int) (all []buffer.TokenBucket) {
	for range n {
		b, err := postgres.Open(postgres.Config{URL: url, Pipeline: "orders"})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		all = append(all, b)
	}
	return all
}

// TestRateLimit_Shared has processes that share one rate.
func TestRateLimit_Shared(t *testing.T) {
	t.Parallel()
	for name, open3 := range buckets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var came atomic.Int64
			url := serve(t, func(http.ResponseWriter, *http.Request) { came.Add(1) })
			c := httpsink.Config{URL: url, Pipeline: "orders", Rate: sink.Rate{Requests: 1, Per: time.Hour}}
			all := open3(t, 3)
			c.Shared = all[0]
			testkit.NoError(t, open(t, c).Send(testContext(t), batch("a")))
			for _, b := range all[1:] {
				c.Shared = b
				s := open(t, c)
				for range 2 { // the token is kept for the next
					err := s.Send(testContext(t), batch("a"))
					timed, is := errors.AsType[*sink.UnavailableError](err)
					if !is || timed.RetryAfter < 50*time.Minute || timed.RetryAfter > 2*time.Hour {
						t.Errorf("got %v, want RetryAfter of one or two hours", err)
					}
				}
			}
			c.Pipeline = "orders:hook"
			testkit.NoError(t, open(t, c).Send(testContext(t), batch("a")))
			if n := came.Load(); n != 2 {
				t.Errorf("%d requests, want one a name", n)
			}
		})
	}
}

// brokenBucket has an unavailable database.
type brokenBucket struct{}

func (brokenBucket) TakeToken(context.Context, string, int, time.Duration) (time.Duration, error) {
	return 0, fmt.Errorf("cannot reach the database: %w", context.DeadlineExceeded)
}

func TestRateLimit_UnavailableBucket(t *testing.T) {
	t.Parallel()
	var came atomic.Int64
	url := serve(t, func(http.ResponseWriter, *http.Request) { came.Add(1) })
	s := open(t, httpsink.Config{URL: url, Pipeline: "orders", Shared: brokenBucket{}, Rate: sink.Rate{Requests: 10, Per: time.Second}})
	err := s.Send(testContext(t), batch("a"))
	expectMaybePoison(t, err, false)
	if errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no token from the shared bucket: cannot reach the database") {
		t.Errorf("got %v", err)
	}
	if came.Load() != 0 {
		t.Error("a request was made")
	}
}

// BenchmarkRate sends 10 requests a second for a minute: from one process with four workers, and from three
// that share the rate. Metrics: the deviation from the rate, and the most requests that the server received
// in any second.
func BenchmarkRate(b *testing.B) {
	b.Run("alone", func(b *testing.B) { aMinute(b, make([]buffer.TokenBucket, 1)) })
	for name, open := range buckets {
		b.Run("shared/"+name, func(b *testing.B) { aMinute(b, open(b, 3)) })
	}
}

func aMinute(b *testing.B, processes []buffer.TokenBucket) {
	const perSecond, atLength = 10, time.Minute
	var (
		mu   sync.Mutex
		came []time.Time
	)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		came = append(came, time.Now())
	}))
	defer server.Close()
	for b.Loop() {
		came = came[:0]
		ctx, stop := context.WithTimeout(b.Context(), atLength)
		var group sync.WaitGroup
		for _, shared := range processes {
			s := newSink(b, httpsink.Config{URL: server.URL, Pipeline: "orders", Shared: shared, Rate: sink.Rate{Requests: perSecond, Per: time.Second}})
			defer s.Close()
			for range 4 {
				group.Go(func() {
					for ctx.Err() == nil {
						one, cancel := context.WithTimeout(b.Context(), time.Minute)
						if err := s.Send(one, batch("a")); err != nil {
							b.Error(err)
						}
						cancel()
					}
				})
			}
		}
		group.Wait()
		stop()
	}
	took, first, most := came[len(came)-1].Sub(came[0]), 0, 0
	for i := range came {
		for came[i].Sub(came[first]) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	rate := float64(len(came)-1) / took.Seconds()
	b.ReportMetric(100*(rate/perSecond-1), "%off")
	b.ReportMetric(float64(most), "most/s")
	b.ReportMetric(rate, "requests/s")
	b.ReportMetric(0, "ns/op")
}
