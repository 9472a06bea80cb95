package bench

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// BenchmarkProcess runs the command and observes it from outside.
//
// "Idle" reports the cost of an idle relay: statements a second, counted by the
// database, and its share of a core, for each wake mode, with and without the
// supervisor. "Waiting" reports the resident memory of a relay while half a million
// events wait and drain.
func BenchmarkProcess(b *testing.B) {
	db := newDatabase(b, map[string]string{"shared_preload_libraries": "pg_stat_statements"})
	relay := build(b, db)
	db.exec(b, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
	for _, wake := range []string{"notify", "poll"} {
		b.Run("Idle/"+wake, func(b *testing.B) { idle(b, relay, settings{wake: wake}) })
		b.Run("Idle/"+wake+"+supervisor", func(b *testing.B) { idle(b, relay, settings{wake: wake, supervisor: true}) })
	}
	b.Run("Waiting", func(b *testing.B) { waiting(b, relay) })
}

func idle(b *testing.B, relay command, s settings) {
	db, lasting := relay.db, scaledTime(20*time.Second)
	relay.migrate(b, s)
	db.truncate(b, eventsTable)
	var statements, cpu float64
	runs := 0
	for b.Loop() {
		s.sink = testserver.Redis(b).URL
		pid, stop := relay.run(b, s)
		pause(b, 5*time.Second) // what it does at start is not its idling
		from, cpuFrom := db.statements(b), cpuTime(b, pid)
		pause(b, lasting)
		statements += (db.statements(b) - from - 1) / lasting.Seconds() // ours is one of them
		cpu += (cpuTime(b, pid) - cpuFrom).Seconds() / lasting.Seconds()
		runs++
		stop()
	}
	b.ReportMetric(statements/float64(runs), "statements/s")
	b.ReportMetric(100*cpu/float64(runs), "%core")
	b.ReportMetric(0, "ns/op")
}

func waiting(b *testing.B, relay command) {
	db := relay.db
	var waiting, draining float64
	for b.Loop() {
		db.fill(b, eventsTable, scaled(500_000))
		server := testserver.Redis(b)
		testkit.NoError(b, server.Stop())
		pid, stop := relay.run(b, settings{sink: server.URL}) // the sink is unavailable, so all events wait
		pause(b, 10*time.Second)
		waiting = max(waiting, peakMemory(b, pid))
		testkit.NoError(b, server.Start(b.Context()))
		until(b, 2*time.Minute, func() bool { return queryValue[bool](b, db, "SELECT NOT EXISTS (SELECT FROM outbox_events)") })
		draining = max(draining, peakMemory(b, pid))
		stop()
	}
	b.ReportMetric(waiting, "MB-waiting")
	b.ReportMetric(draining, "MB-drained")
	b.ReportMetric(0, "ns/op")
}

func (db *database) statements(b *testing.B) float64 {
	b.Helper()
	return queryValue[float64](b, db, "SELECT sum(calls)::float8 FROM pg_stat_statements")
}
