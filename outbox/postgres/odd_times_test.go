package postgres_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// oddTimes are times that PostgreSQL has and Go, JSON or the text forms have not.
var oddTimes = []string{"infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "0001-01-01", "10000-01-01", "294270-01-01", "2026-01-02 03:04:05Z"}

func insertOddTimes(t *testing.T, p *testDB) {
	t.Helper()
	for _, at := range oddTimes {
		execDB(t, p, "INSERT INTO outbox_events (topic, payload, created_at) VALUES ('a.t', '1', '"+at+"')")
	}
}

func expectTimes(t *testing.T, events *buffer.Lease) {
	t.Helper()
	if len(events.Events) != len(oddTimes) {
		t.Fatalf("%d events, want %d", len(events.Events), len(oddTimes))
	}
	for i := range events.Events {
		e := &events.Events[i]
		if _, err := json.Marshal(e.CreatedAt); err != nil || e.CreatedAt.Year() < 1 {
			t.Errorf("an event of %s is created at %v: %v", oddTimes[i], e.CreatedAt, err)
		}
		if age := events.Age(e); age < 0 && e.CreatedAt.Before(events.ClaimedAt) {
			t.Errorf("an event of %s has the age %v", oddTimes[i], age)
		}
	}
}

func expectSaneStatus(t *testing.T, b *postgres.Buffer) {
	t.Helper()
	_, err := b.CountBacklog(t.Context(), 100)
	check(t, err)
	status, err := b.Status(t.Context())
	check(t, err)
	ages := []time.Duration{status.OldestPending}
	for _, s := range status.Sinks {
		ages = append(ages, s.OldestPending)
	}
	for _, sink := range []string{"all", "crm"} {
		one, err := b.Sink(sink).Status(t.Context())
		check(t, err)
		ages = append(ages, one.OldestPending)
	}
	if slices.Min(ages) < 0 {
		t.Errorf("the ages are %v", ages)
	}
}

// TestRoute_OddTimes: events whose time is infinite, or in a year before 1 or after 9999, are routed with their neighbours, sent, buried and
// replayed.
func TestRoute_OddTimes(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, dropSinks...)
		check(t, b.RegisterSinks(t.Context()))
		insertOddTimes(t, p)
		expectSaneStatus(t, b)
		routed, err := b.Route(t.Context(), 100, lease, func(sink string) bool { return sink == "all" })
		check(t, err)
		if routed == nil || len(routed.Leases) != 1 {
			t.Fatalf("routed %+v", routed)
		}
		expectTimes(t, routed.Leases[0].Lease)
		expectSaneStatus(t, b)
		all, crm := b.Sink("all"), b.Sink("crm")
		ids := routed.Leases[0].IDs()
		check(t, all.Settle(t.Context(), routed.Leases[0].Lease, []buffer.Outcome{
			{Verdict: buffer.Dead, IDs: ids[:4], Error: "bad"}, {Verdict: buffer.Retry, IDs: ids[4:], GroupID: buffer.NewGroupID()},
		}))
		batch, err := crm.TakeOver(t.Context(), lease, buffer.DueRetry)
		check(t, err)
		expectTimes(t, batch)
		deliverAll(t, crm, batch)
		batch, err = all.TakeOver(t.Context(), lease, buffer.DueRetry)
		check(t, err)
		deliverAll(t, all, batch)
		dead, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
		check(t, err)
		if _, err := json.Marshal(dead); err != nil || len(dead) != 4 {
			t.Errorf("%d dead letters: %v", len(dead), err)
		}
		if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 4 || err != nil {
			t.Fatalf("replayed %d, %v; want 4", n, err)
		}
		expectSaneStatus(t, b)
		batch, err = all.TakeOver(t.Context(), lease, buffer.DueRetry)
		check(t, err)
		if batch == nil || batch.Len() != 4 {
			t.Fatalf("took over %+v, want what was replayed", batch)
		}
		deliverAll(t, all, batch)
		expectEmpty(t, p)
	})
}
