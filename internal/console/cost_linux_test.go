package console_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// BenchmarkLive is what the live overview costs this process while five browsers show it and each update changes it: an update a second, or one each two
// seconds, because a status is reused for a second. It includes the browsers' side of the connections.
func BenchmarkLive(b *testing.B) {
	server := testserver.OwnPostgres(b, testserver.PostgresOptions{})
	reads := make(chan struct{})
	openUnrun(b, server.URL, 1, 5, func(int64) {
		select {
		case reads <- struct{}{}:
		case <-b.Context().Done():
		}
	})
	db, err := pgx.Connect(b.Context(), server.URL)
	testkit.NoError(b, err)
	b.Cleanup(func() { testkit.NoError(b, db.Close(context.WithoutCancel(b.Context()))) })
	update := func() {
		<-reads
		_, err := db.Exec(b.Context(), `INSERT INTO outbox_events (topic, payload) VALUES ('x', '1')`)
		testkit.NoError(b, err)
	}
	for range 3 {
		update()
	}
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before, began := used(), time.Now()
	for b.Loop() {
		update()
	}
	b.ReportMetric(100*float64(used()-before)/float64(time.Since(began)), "%core")
	b.ReportMetric(0, "ns/op")
}
