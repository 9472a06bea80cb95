package bench

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/sink/httpsink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// BenchmarkRecovery measures recovery with the default configuration, except for the
// lease: the time from the end of a dead owner's lease to the settle by another; the
// time from a sink's recovery to the first event (after an outage of half a minute,
// with grown backoff); and the requests for one poison event in a batch of 1000.
func BenchmarkRecovery(b *testing.B) {
	db := newDatabase(b)
	b.Run("TakeOver", db.takeOver)
	b.Run("RedisReturns", db.redisReturns)
	b.Run("HTTPReturns", db.httpReturns)
	b.Run("Poison", db.poison)
}

const awayFor = 30 * time.Second

func (db *database) takeOver(b *testing.B) {
	const lease = 3 * time.Second
	var took time.Duration
	n := 0
	for b.Loop() {
		db.fill(b, eventsTable, 1000)
		dead, err := postgres.Open(postgres.Config{URL: db.url, Pipeline: "bench", Owner: "dead"})
		testkit.NoError(b, err)
		batch, err := dead.Claim(b.Context(), 1000, lease)
		testkit.NoError(b, err)
		testkit.NoError(b, dead.Close())
		stop := db.start(b, postgres.Config{}, nothing{}, nil)
		db.untilEmpty(b)
		took += time.Since(batch.Ends)
		n++
		stop()
	}
	b.ReportMetric(took.Seconds()/float64(n), "s-after-lease")
	b.ReportMetric(0, "ns/op")
}

func (db *database) redisReturns(b *testing.B) {
	var took time.Duration
	n := 0
	for b.Loop() {
		db.truncate(b, eventsTable)
		server := testserver.Redis(b)
		s, err := redissink.New(redissink.Config{URL: server.URL, Stream: "orders"})
		testkit.NoError(b, err)
		stop := db.start(b, postgres.Config{}, s, nil)
		pause(b, 2*time.Second)
		testkit.NoError(b, server.Stop())
		db.insert(b, eventsTable, 20_000)
		pause(b, awayFor)
		testkit.NoError(b, server.Start(b.Context()))
		began := time.Now()
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		until(b, time.Minute, func() bool { return client.XLen(b.Context(), "orders").Val() > 0 })
		took += time.Since(began)
		n++
		db.untilEmpty(b)
		stop()
		testkit.NoError(b, client.Close())
		testkit.NoError(b, s.Close())
	}
	b.ReportMetric(took.Seconds()/float64(n), "s-to-notice")
	b.ReportMetric(0, "ns/op")
}

// httpReturns: the server is reachable throughout and answers 503.
func (db *database) httpReturns(b *testing.B) {
	var took time.Duration
	n := 0
	for b.Loop() {
		db.truncate(b, eventsTable)
		var up, arrived atomic.Bool
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil || !up.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			arrived.Store(true)
		}))
		s, err := httpsink.New(httpsink.Config{URL: server.URL})
		testkit.NoError(b, err)
		stop := db.start(b, postgres.Config{}, s, nil)
		db.insert(b, eventsTable, 20_000)
		pause(b, awayFor)
		up.Store(true)
		began := time.Now()
		until(b, time.Minute, arrived.Load)
		took += time.Since(began)
		n++
		db.untilEmpty(b)
		stop()
		testkit.NoError(b, s.Close())
		server.Close()
	}
	b.ReportMetric(took.Seconds()/float64(n), "s-to-notice")
	b.ReportMetric(0, "ns/op")
}

// poison: a server rejects one event of a batch of 1000 without naming it.
func (db *database) poison(b *testing.B) {
	var requests int64
	n := 0
	for b.Loop() {
		db.truncate(b, eventsTable)
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			asked.Add(1)
			if bytes.Contains(body, []byte(`"poison": true`)) {
				w.WriteHeader(http.StatusBadRequest)
			}
		}))
		_, err := db.pool.Exec(b.Context(), fmt.Sprintf(`INSERT INTO outbox_events (topic, payload)
			SELECT 'orders', jsonb_build_object('poison', i = 617) FROM generate_series(1, %d) i`, 1000))
		testkit.NoError(b, err)
		s, err := httpsink.New(httpsink.Config{URL: server.URL})
		testkit.NoError(b, err)
		stop := db.start(b, postgres.Config{}, s, nil)
		until(b, time.Minute, func() bool {
			var left int
			testkit.NoError(b, db.pool.QueryRow(b.Context(), "SELECT count(*) FROM outbox_events").Scan(&left))
			return left == 0
		})
		stop()
		requests += asked.Load()
		n++
		testkit.NoError(b, s.Close())
		server.Close()
	}
	b.ReportMetric(float64(requests)/float64(n), "requests")
	b.ReportMetric(0, "ns/op")
}
