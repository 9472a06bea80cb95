package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestDelayed_OrderBelow: a claim of delayed events that are due takes no other event with `order: key`: an earlier one of its key may be
// waiting.
func TestDelayed_OrderBelow(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Ordered: true})
	b := p.fixture(t, "outbox_events", "orders").Buffer
	run := func(sql string) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	claim := func() (payloads string, l *buffer.Lease) {
		t.Helper()
		l, err := b.Claim(t.Context(), 100, time.Hour)
		testkit.NoError(t, err)
		if l != nil {
			for _, e := range l.Events {
				payloads += string(e.Payload)
			}
		}
		return payloads, l
	}
	// Key k: one is in a live batch, and two wait for it. The delayed events are between those.
	run("INSERT INTO outbox_events (topic, key, payload) VALUES ('t', 'k', '1')")
	_, first := claim()
	run(`INSERT INTO outbox_events (topic, key, payload, available_at) VALUES ('t', 'k', '2', NULL), ('t', 'other', '3', clock_timestamp() + interval '4 s'),
		('t', 'k', '4', NULL), ('t', 'other', '5', clock_timestamp() + interval '4 s'), ('t', 'free', '6', NULL)`)
	free, _ := claim()
	testkit.Equal(t, "claimed while the key is held", free, "6")
	testkit.NoError(t, b.Settle(t.Context(), first, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	run("SELECT pg_sleep(4.1)")
	_, err := b.CountBacklog(t.Context(), 100)
	testkit.NoError(t, err)
	due, _ := claim()
	testkit.Equal(t, "claimed when it is due", due, "35")
	rest, _ := claim()
	testkit.Equal(t, "claimed next", rest, "24")
}

// TestDelayed_Sinks: delayed events are routed when they are due, in every mode.
func TestDelayed_Sinks(t *testing.T) {
	t.Parallel()
	for _, c := range []postgres.Config{{Claim: buffer.ClaimRange}, {Claim: buffer.ClaimStamp}, {Ordered: true}} {
		t.Run(string(c.Claim), func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			c.URL, c.Pipeline, c.Owner = p.url, "orders", "suite"
			c.Sinks = []buffer.Route{{Sink: "all", BatchSize: 10, Ordered: c.Ordered}, {Sink: "crm", Match: []string{"contact.*"}, BatchSize: 10}}
			b, err := postgres.Open(c)
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			testkit.NoError(t, b.RegisterSinks(t.Context()))
			_, err = p.pool.Exec(t.Context(), `INSERT INTO outbox_events (topic, key, payload, available_at)
				VALUES ('contact.new', 'k', '1', clock_timestamp() + interval '1 s'), ('contact.new', 'k', '2', 'infinity')`)
			testkit.NoError(t, err)
			route := func() *buffer.Routed {
				t.Helper()
				routed, err := b.Route(t.Context(), 100, time.Hour, func(string) bool { return false })
				testkit.NoError(t, err)
				return routed
			}
			testkit.Eventually(t, func() error {
				backlog, err := b.CountBacklog(t.Context(), 100)
				if err == nil && backlog.Unclaimed == 0 {
					err = fmt.Errorf("nothing is counted; the next is due in %v", backlog.NextDelayed)
				}
				return err
			})
			routed := route()
			if routed == nil || fmt.Sprint(routed.Sinks) != "[all crm]" || routed.Events != 1 {
				t.Fatalf("routed %+v, want one event to all and crm", routed)
			}
			if again := route(); again != nil {
				t.Errorf("routed %+v again", again)
			}
		})
	}
}
