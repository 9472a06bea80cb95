package bench

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// BenchmarkPinned lets one relay drain ten rounds of 50,000 events while another
// session holds a snapshot, so that no dead row can go, and reports the median of
// the first three rounds and of the last three.
func BenchmarkPinned(b *testing.B) {
	const rounds, events = 10, 50_000
	db := newDatabase(b)
	var first, last float64
	for b.Loop() {
		db.fill(b, 0)
		pinned, err := db.pool.BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		check(b, err)
		_, err = pinned.Exec(b.Context(), "SELECT count(*) FROM outbox_events")
		check(b, err)

		observer := &rotating{}
		stopped := db.start(b, nothing{}, observer)
		speeds := make([]float64, rounds)
		for i := range speeds {
			round := &countdown{left: events, done: make(chan struct{})}
			observer.next(round)
			_, err := db.pool.Exec(b.Context(),
				fmt.Sprintf("INSERT INTO outbox_events (topic, payload) SELECT 'orders', %s FROM generate_series(1, %d) i", payloadSQL, events))
			check(b, err)
			<-round.done
			speeds[i] = events / round.took.Seconds()
		}
		stopped()
		check(b, pinned.Rollback(b.Context()))
		b.Logf("events/s by round: %.0f", speeds)
		first += median(speeds[:3])
		last += median(speeds[rounds-3:])
	}
	b.ReportMetric(first/float64(b.N), "events/s-first")
	b.ReportMetric(last/float64(b.N), "events/s-last")
	b.ReportMetric(0, "ns/op")
}

// start runs a pipeline until the returned function is called.
func (db *database) start(b *testing.B, s sink.Sink, observer pipeline.Observer) (stop func()) {
	b.Helper()
	buffer, err := postgres.Open(postgres.Config{URL: db.url, Pipeline: "bench", Owner: "bench", Connections: 6})
	check(b, err)
	p, err := pipeline.New(buffer, s, pipeline.Config{
		Name: "bench", Observer: observer, Log: slog.New(slog.DiscardHandler),
	})
	check(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, b.Context()) }()
	return func() {
		cancel()
		check(b, <-ended)
		check(b, buffer.Close())
	}
}

func median(three []float64) float64 {
	return max(min(three[0], three[1]), min(max(three[0], three[1]), three[2]))
}
