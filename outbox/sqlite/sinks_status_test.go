package sqlite_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestStatus_Sinks: an event that several sinks wait for is pending once, and once at each of them.
func TestStatus_Sinks(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		expect := func(pending int64, sinks string) buffer.Status {
			t.Helper()
			s, err := b.Status(t.Context())
			testkit.NoError(t, err)
			got := ""
			for _, one := range s.Sinks {
				got += fmt.Sprintf("%s %d (%d leased, %d waiting, %d delivered, %d due) ", one.Name, one.Pending, one.Leased, one.Waiting, one.Delivered, one.Due)
			}
			if s.Pending != pending || got != sinks {
				t.Errorf("%d pending, %s\nwant %d, %s", s.Pending, got, pending, sinks)
			}
			return s
		}
		none := "%s 0 (0 leased, 0 waiting, 0 delivered, 0 due) "
		expect(0, fmt.Sprintf(none+none+none+none, "all", "crm", "odd", "*"))
		insertTopics(t, p, "contact.new", "order.new", "contact.old", "order.odd")
		expect(4, fmt.Sprintf(none+none+none, "all", "crm", "odd")+"* 4 (0 leased, 0 waiting, 0 delivered, 0 due) ")
		exec(t, p.db, "UPDATE outbox_events SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-120 seconds')")
		_, err := b.Route(t.Context(), 100, lease, keepNone)
		testkit.NoError(t, err)
		insertTopics(t, p, "x")
		exec(t, p.db, "UPDATE outbox_events SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-60 seconds') WHERE topic = 'x'")
		s := expect(5, "all 4 (0 leased, 1 waiting, 0 delivered, 1 due) crm 2 (0 leased, 1 waiting, 0 delivered, 1 due) "+
			"odd 2 (0 leased, 1 waiting, 0 delivered, 1 due) * 1 (0 leased, 0 waiting, 0 delivered, 0 due) ")
		if all, unrouted := s.Sinks[0].OldestPending, s.Sinks[3].OldestPending; all < 119*time.Second || unrouted < 59*time.Second || unrouted > 100*time.Second || s.OldestPending < 119*time.Second {
			t.Errorf("the oldest event is %v old, that of all %v, that which is not routed %v", s.OldestPending, all, unrouted)
		}
		all, crm, odd := b.Sink("all"), b.Sink("crm"), b.Sink("odd")
		deliverAll(t, all, takeOverOf(t, all, "contact.new", "order.new", "contact.old", "order.odd"))
		batch := takeOverOf(t, odd, "contact.new", "order.odd")
		testkit.NoError(t, odd.MarkDelivered(t.Context(), batch, batch.IDs()))
		expect(3, fmt.Sprintf(none, "all")+"crm 2 (0 leased, 1 waiting, 0 delivered, 1 due) "+
			"odd 0 (0 leased, 0 waiting, 1 delivered, 0 due) * 1 (0 leased, 0 waiting, 0 delivered, 0 due) ")
		dies := takeOverOf(t, crm, "contact.new", "contact.old")
		testkit.NoError(t, crm.Settle(t.Context(), dies, []buffer.Outcome{
			{Verdict: buffer.Dead, IDs: dies.IDs()[:1], Attempts: 1, Error: "bad"},
			{Verdict: buffer.Retry, IDs: dies.IDs()[1:], GroupID: buffer.NewGroupID(), Outages: 1, Error: "503", After: time.Hour},
		}))
		insertTopics(t, p, "contact.more")
		_, err = b.Route(t.Context(), 100, lease, keepNone)
		testkit.NoError(t, err)
		if _, err := b.RouteDue(t.Context(), lease); err != nil { // deletes x, which no sink but all takes
			t.Fatal(err)
		}
		s = expect(3, "all 2 (0 leased, 1 waiting, 0 delivered, 1 due) crm 2 (0 leased, 2 waiting, 0 delivered, 1 due) "+
			"odd 0 (0 leased, 0 waiting, 1 delivered, 0 due) "+fmt.Sprintf(none, "*"))
		one := s.Sinks[1]
		if one.Dead != 1 || one.Unnotified != 1 || s.Dead != 1 || s.Sinks[0].Dead != 0 {
			t.Errorf("dead letters: %d of crm, %d in all, want 1", one.Dead, s.Dead)
		}
		if n := len(one.Waits); n != 2 || one.Next != 0 {
			t.Fatalf("crm waits for %+v, next in %v", one.Waits, one.Next)
		}
		i := 0
		if one.Waits[0].Error == "" {
			i = 1
		}
		if w := one.Waits[i]; w.Error != "503" || w.Batches != 1 || w.Events != 1 || w.First < 50*time.Minute {
			t.Errorf("crm waits for %+v", w)
		}
		// Another relay has a sink that this one does not have.
		testkit.NoError(t, openSinks(t, p, "second", mode, buffer.Route{Sink: "added", Match: []string{"y"}, BatchSize: 1}).RegisterSinks(t.Context()))
		s, err = b.Status(t.Context())
		testkit.NoError(t, err)
		if n := len(s.Sinks); n != 5 || s.Sinks[3].Name != "added" {
			t.Errorf("sinks: %+v", s.Sinks)
		}
	})
}

// TestStatus_SinksShared: sinks that are behind have parts of the same claims, which overlap.
func TestStatus_SinksShared(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		for range 20 {
			insertTopics(t, p, "contact.new", "order.new", "contact.old", "order.odd")
			_, err := b.Route(t.Context(), 100, lease, keepNone)
			testkit.NoError(t, err)
		}
		for _, want := range []int64{80, 60} {
			s, err := b.Status(t.Context())
			testkit.NoError(t, err)
			if s.Pending != want || s.Sinks[1].Pending != 40 || s.Sinks[2].Pending != 40 {
				t.Errorf("%d events are pending, want %d; sinks %+v", s.Pending, want, s.Sinks)
			}
			all := b.Sink("all")
			for {
				batch, err := all.TakeOver(t.Context(), lease, buffer.DueRetry)
				testkit.NoError(t, err)
				if batch == nil {
					break
				}
				deliverAll(t, all, batch)
			}
		}
	})
}
