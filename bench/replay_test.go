package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// BenchmarkReplay drains 300,000 waiting events of 300 bytes with the command to a Redis stream, without an archive and with one, and sends what is
// in the archive again with relay replay while the same relay runs. It reports the rates, from the start of the drain or of the replay to the last event
// settled.
func BenchmarkReplay(b *testing.B) {
	db := newDatabase(b)
	relay := build(b, db)
	to, events := redisStream(b), scaled(300_000)
	var drains, archived, replays []float64
	plain := relay.archiving(b, to, "")
	kept := relay.archiving(b, to, ", archive: {table: outbox_archive}")
	relay.migrateAll(b, kept)
	for b.Loop() {
		drains = append(drains, relay.drainRate(b, plain, to, events, func() {}))
		archived = append(archived, relay.drainRate(b, kept, to, events, func() {
			replays = append(replays, relay.replayRate(b, kept, to, events))
		}))
	}
	t := table{head: []string{"", "events/s", "of the drain"}}
	t.add("drain", median(drains), 1.0)
	t.add("drain with archive", median(archived), median(archived)/median(drains))
	t.add("replay", median(replays), median(replays)/median(archived))
	b.Logf("%d rounds\n%s", len(drains), t)
	b.ReportMetric(median(replays), "events/s")
	b.ReportMetric(median(replays)/median(archived), "replay/drain")
	b.ReportMetric(0, "ns/op")
}

// archiving writes a configuration.
func (c command) archiving(b *testing.B, to broker, more string) (path string) {
	b.Helper()
	path = filepath.Join(b.TempDir(), "relay.yaml")
	testkit.NoError(b, os.WriteFile(path, fmt.Appendf(nil, `admin: {listen: ""}
log: {level: error}
pipelines:
- {name: orders, source: {url: %q}, sink: {url: %q, %s}%s}
`, c.db.url, to.url, to.address, more), 0o600))
	return path
}

// drainRate starts the relay on waiting events. Before it stops the relay, it calls after.
func (c command) drainRate(b *testing.B, path string, to broker, events int, after func()) (perSecond float64) {
	b.Helper()
	to.empty(b, contender{})
	c.db.exec(b, "TRUNCATE outbox_archive")
	c.db.fill(b, eventsTable, events)
	began := time.Now()
	_, stop := c.start(b, path)
	c.db.allSettled(b, to, events)
	perSecond = float64(events) / time.Since(began).Seconds()
	after()
	stop()
	return perSecond
}

// replayRate sends what is in the archive again. A relay runs.
func (c command) replayRate(b *testing.B, path string, to broker, events int) (perSecond float64) {
	b.Helper()
	to.empty(b, contender{})
	c.db.exec(b, "CHECKPOINT")
	began := time.Now()
	out, err := exec.CommandContext(b.Context(), c.binary, "replay", "-c", path, "--since", "1h", "-y").CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	put := time.Since(began)
	c.db.allSettled(b, to, events)
	took := time.Since(began)
	b.Logf("put back in %.1f s of %.1f s", put.Seconds(), took.Seconds())
	return float64(events) / took.Seconds()
}

// allSettled waits until so many events have arrived and no batch is left.
func (db *database) allSettled(b *testing.B, to broker, events int) {
	b.Helper()
	untilEach(b, 20*time.Millisecond, 5*time.Minute, func() bool {
		return to.count(b) >= events && queryValue[bool](b, db, "SELECT NOT EXISTS (SELECT FROM outbox_batches)")
	})
	if n := to.count(b); n != events {
		b.Fatalf("%d events arrived, of %d", n, events)
	}
}
