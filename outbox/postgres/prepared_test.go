package postgres_test

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// cycle inserts an event, claims it and settles it.
func cycle(t *testing.T, f *buffertest.Fixture) error {
	t.Helper()
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte(`{"a": 1}`)})
	b, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
	if err != nil {
		return err
	}
	if b == nil || len(b.Events) != 1 {
		t.Fatalf("claimed %v", b)
	}
	return f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}})
}

// A type that changes under a statement that was prepared for another is an error once,
// and no longer than that.
func TestPrepared_TypeChanges(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Claim: mode})
			f := p.fixture(t, "outbox_events", "orders")
			check(t, cycle(t, f))
			f.Exec(t, "ALTER TABLE outbox_events ALTER topic TYPE varchar(100)")
			testserver.Eventually(t, func() error {
				f.Exec(t, "TRUNCATE outbox_events")
				return cycle(t, f)
			})
		})
	}
}

// A transparent pooler gives a connection another session, without its prepared statements. From then
// on the relay prepares none.
func TestPrepared_Lost(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	f := p.fixture(t, "outbox_events", "orders")
	check(t, cycle(t, f))
	f.Exec(t, `CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF current_setting('application_name') = 'relay' THEN EXECUTE 'DEALLOCATE ALL'; END IF;
			RETURN NULL;
		END $$`)
	f.Exec(t, "CREATE TRIGGER forget AFTER DELETE ON outbox_batches FOR EACH STATEMENT EXECUTE FUNCTION forget()")
	failed := 0
	for range 20 {
		if err := cycle(t, f); err != nil {
			failed++
			t.Log(err)
			f.Exec(t, "TRUNCATE outbox_events")
		}
	}
	if failed == 0 || failed > 10 {
		t.Errorf("%d of 20 failed; want some, until nothing is prepared any more", failed)
	}
}
