package sqlite_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// insertWaiting inserts so many events that wait for a day and more.
const insertWaitingSQL = `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
INSERT INTO outbox_events (topic, key, payload, available_at)
SELECT 'later', 'customer-7', '{"order": 1234567, "note": "%s"}', strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now', '1 day', (i / 1000.0) || ' seconds') FROM n`

// BenchmarkDelayed measures what a million delayed events cost the others: rounds of 50 batches of 1000 that are drained, counts, and the time from the
// commit of an event until it is claimed. Compare the two within one run.
func BenchmarkDelayed(b *testing.B) {
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		b.Run(string(mode), func(b *testing.B) { benchmarkDelayed(b, mode) })
	}
}

func benchmarkDelayed(b *testing.B, mode buffer.ClaimMode) {
	const batch, batches, singles = 1000, 50, 200
	note := strings.Repeat("x", 270)
	events := make([]outbox.Event, batch)
	for i := range events {
		events[i] = outbox.Event{Topic: "orders.created", Payload: fmt.Appendf(nil, `{"order": 1234567, "note": "%s"}`, note)}
	}
	type side struct {
		f            *buffertest.Fixture
		drain, count time.Duration
		one          []time.Duration
	}
	sides := map[string]*side{}
	for name, waiting := range map[string]int{"none": 0, "million": 1_000_000} {
		s := &side{f: harness("outbox_events", mode).Open(b, buffertest.Options{Claim: mode})}
		if waiting > 0 {
			s.f.Exec(b, fmt.Sprintf(insertWaitingSQL, waiting, note))
		}
		began := time.Now()
		backlog, err := s.f.Buffer.CountBacklog(b.Context(), batch) // a start
		testkit.NoError(b, err)
		testkit.Equal(b, "unclaimed", backlog.Unclaimed, 0)
		b.ReportMetric(float64(time.Since(began).Milliseconds()), name+"-start-ms")
		began = time.Now()
		status, err := s.f.Buffer.Status(b.Context())
		testkit.NoError(b, err)
		b.ReportMetric(float64(time.Since(began).Milliseconds()), name+"-status-ms")
		if status.Delayed < int64(waiting)*9/10 || status.Delayed > int64(waiting)*11/10 {
			b.Fatalf("%d are delayed, want about %d", status.Delayed, waiting)
		}
		sides[name] = s
	}
	settle := func(s *side) int {
		l, err := s.f.Buffer.Claim(b.Context(), batch, time.Minute)
		testkit.NoError(b, err)
		testkit.NoError(b, s.f.Buffer.Settle(b.Context(), l, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		return l.Len()
	}
	round := func(s *side) {
		for range batches {
			s.f.Insert(b, events...)
		}
		began := time.Now()
		for range batches {
			if n := settle(s); n != batch {
				b.Fatalf("claimed %d", n)
			}
		}
		s.drain += time.Since(began)
		began = time.Now()
		for range singles {
			_, err := s.f.Buffer.CountBacklog(b.Context(), batch)
			testkit.NoError(b, err)
		}
		s.count += time.Since(began)
		for range singles {
			s.f.Insert(b, events[0])
			began := time.Now()
			if _, err := s.f.Buffer.CountBacklog(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
			settle(s)
			s.one = append(s.one, time.Since(began))
		}
	}
	for i := range 2 * b.N {
		for _, name := range [][]string{{"none", "million"}, {"million", "none"}}[i%2] {
			round(sides[name])
		}
	}
	none, million := sides["none"], sides["million"]
	for _, s := range sides {
		slices.Sort(s.one)
	}
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	b.ReportMetric(float64(2*b.N*batches*batch)/million.drain.Seconds(), "events/s")
	b.ReportMetric(ratio(million.drain, none.drain), "drain-ratio")
	b.ReportMetric(ratio(million.count, none.count), "count-ratio")
	for _, q := range []int{50, 99} {
		at := len(none.one) * q / 100
		b.ReportMetric(ratio(million.one[at], none.one[at]), fmt.Sprintf("p%d-ratio", q))
	}
	b.ReportMetric(float64(million.count.Microseconds())/float64(2*b.N*singles), "count-µs")
	b.ReportMetric(0, "ns/op")
}
