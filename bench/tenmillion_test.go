package bench

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// BenchmarkTenMillion drains ten million waiting events of 300 bytes with the command,
// to a Redis stream that is trimmed meanwhile. It reports the rate of the last million
// relative to the first (tenths, with -scale), and the relay's peak memory.
func BenchmarkTenMillion(b *testing.B) {
	events := scaled(10_000_000)
	db := newDatabase(b)
	relay := build(b, db)
	mustHaveSpace(b, int64(events)*1200)
	for b.Loop() {
		server := testserver.Redis(b, "--appendonly", "no")
		began := time.Now()
		db.fill(b, eventsTable, events)
		filled := time.Since(began)

		ctx, cancel := bounded(b, time.Duration(events)*100*time.Microsecond+time.Minute)
		pid, stop := relay.run(b, settings{sink: server.URL, maxlen: 10_000})
		marks := db.progress(b, ctx, server.Addr, events)
		cancel()
		db.untilEmpty(b)
		memory := peakMemory(b, pid)
		stop()

		t := table{head: []string{"events", "s", "events/s"}}
		for i, tenth := 1, events/10; i < len(marks); i++ {
			d := (marks[i] - marks[i-1]).Seconds()
			t.add(fmt.Sprintf("%d to %d", (i-1)*tenth, i*tenth), d, float64(tenth)/d)
		}
		rate := float64(events) / (marks[10] - marks[0]).Seconds()
		last := (marks[1] - marks[0]).Seconds() / (marks[10] - marks[9]).Seconds()
		b.Logf("%d events, filled in %.0f s, claimed by %s; memory at most %.0f MB\n%s", events, filled.Seconds(), db.claimMode(b), memory, t)
		b.ReportMetric(rate, "events/s")
		b.ReportMetric(last, "last/first")
		b.ReportMetric(memory, "MB-relay")
	}
	b.ReportMetric(0, "ns/op")
}

// mustHaveSpace fails if the disk of the servers has fewer free bytes.
func mustHaveSpace(b *testing.B, need int64) {
	b.Helper()
	var fs syscall.Statfs_t
	testkit.NoError(b, syscall.Statfs(os.TempDir(), &fs))
	if free := int64(fs.Bavail) * fs.Bsize; free < need { //nolint:gosec // no disk is that large
		b.Fatalf("%d GB are free in %s, and %d are needed: -scale 0.1 needs a tenth", free>>30, os.TempDir(), need>>30)
	}
}

// progress returns when the first event and each tenth of all events arrived,
// interpolated between two observations.
func (db *database) progress(b *testing.B, ctx context.Context, addr string, events int) (marks []time.Duration) {
	b.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { testkit.NoError(b, client.Close()) }()
	began := time.Now()
	var before int64
	var at time.Duration
	for len(marks) <= 10 {
		select {
		case <-ctx.Done():
			b.Fatalf("%d of %d events arrived in %v", before, events, time.Since(began))
		case <-time.After(20 * time.Millisecond):
		}
		if client.Exists(ctx, orders).Val() == 0 {
			continue
		}
		info, err := client.XInfoStream(ctx, orders).Result()
		testkit.NoError(b, err)
		added, now := info.EntriesAdded, time.Since(began)
		if len(marks) == 0 {
			marks = append(marks, now)
		}
		for n := int64(len(marks)) * int64(events/10); added >= n && len(marks) <= 10 && added > before; n = int64(len(marks)) * int64(events/10) {
			share := float64(n-before) / float64(added-before)
			marks = append(marks, at+time.Duration(share*float64(now-at)))
		}
		before, at = added, now
	}
	if before != int64(events) {
		b.Fatalf("%d of %d events arrived", before, events)
	}
	return marks
}
