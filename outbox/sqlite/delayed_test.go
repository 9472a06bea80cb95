package sqlite_test

import (
	"errors"
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

// BenchmarkDelayed measures what a million delayed events cost the others: claim and settle of a batch of 1000, a count, and both for a single event. It does each
// in turns with them and without, and reports the medians with them and the ratios.
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
		f                 *buffertest.Fixture
		drain, count, one []time.Duration
	}
	sides := make([]*side, 2)
	for i, waiting := range []int{0, 1_000_000} {
		name := []string{"none", "million"}[i]
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
		sides[i] = s
	}
	timed := func(into *[]time.Duration, act func() error) {
		began := time.Now()
		err := act()
		*into = append(*into, time.Since(began))
		testkit.NoError(b, err)
	}
	deliver := func(s *side, want int) func() error {
		return func() error {
			l, err := s.f.Buffer.Claim(b.Context(), batch, time.Minute)
			if err != nil || l.Len() != want {
				return fmt.Errorf("claimed %v of %d events: %w", l, want, err)
			}
			return s.f.Buffer.Settle(b.Context(), l, []buffer.Outcome{{Verdict: buffer.Delivered}})
		}
	}
	count := func(s *side) func() error {
		return func() error {
			_, err := s.f.Buffer.CountBacklog(b.Context(), batch)
			return err
		}
	}
	turns := func(n int, act func(s *side)) { // whatever else the machine does slows both
		for i := range n {
			act(sides[i%2])
			act(sides[1-i%2])
		}
	}
	for range b.N {
		turns(batches, func(s *side) { s.f.Insert(b, events...) })
		turns(batches, func(s *side) { timed(&s.drain, deliver(s, batch)) })
		turns(singles, func(s *side) { timed(&s.count, count(s)) })
		turns(singles, func(s *side) {
			s.f.Insert(b, events[0])
			timed(&s.one, func() error { return errors.Join(count(s)(), deliver(s, 1)()) })
		})
	}
	report := func(name string, of func(s *side) []time.Duration, percent int) {
		var at [2]time.Duration
		for i, s := range sides {
			all := of(s)
			slices.Sort(all)
			at[i] = all[len(all)*percent/100]
		}
		b.ReportMetric(float64(at[1])/float64(at[0]), name+"-ratio")
		b.ReportMetric(float64(at[1].Microseconds()), name+"-µs")
	}
	report("batch", func(s *side) []time.Duration { return s.drain }, 50)
	report("count", func(s *side) []time.Duration { return s.count }, 50)
	report("p50", func(s *side) []time.Duration { return s.one }, 50)
	report("p99", func(s *side) []time.Duration { return s.one }, 99)
	b.ReportMetric(0, "ns/op")
}
