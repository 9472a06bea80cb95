package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

const written = `{"b" :1.0e2, "b":2}`

// Tables of each payload type: an event arrives, is buried, replayed, delivered and archived. Only jsonb changes its text.
func TestPayloadTypes(t *testing.T) {
	t.Parallel()
	for payload, want := range map[postgres.Payload]string{"": written, postgres.PayloadJSON: written, postgres.PayloadBytes: written, postgres.PayloadJSONB: `{"b": 2}`} {
		t.Run(string(payload), func(t *testing.T) {
			t.Parallel()
			p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
			c := postgres.SchemaConfig{Payload: payload, Archive: "outbox_archive"}
			_, err := postgres.Migrate(t.Context(), p.url, c)
			check(t, err)
			b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders", Archive: c.Archive})
			check(t, err)
			t.Cleanup(func() { check(t, b.Close()) })
			check(t, b.Check(t.Context()))
			_, err = p.pool.Exec(t.Context(), `INSERT INTO outbox_events (topic, payload, headers) VALUES ('t', '`+written+`', '{"a" : "1"}')`)
			check(t, err)
			batch, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			arrives := func(what string) {
				t.Helper()
				if got := string(batch.Events[0].Payload); got != want {
					t.Errorf("%s: got %s, want %s", what, got, want)
				}
			}
			arrives("claimed")
			check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "refused"}}))
			n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10)
			check(t, err)
			if n != 1 {
				t.Fatalf("replayed %d", n)
			}
			batch, err = testkit.TakeOver(t.Context(), b, lease)
			check(t, err)
			arrives("replayed")
			check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			text := "payload::text"
			if payload == postgres.PayloadBytes {
				text = "convert_from(payload, 'UTF8')"
			}
			if got := query(t, p.pool, "SELECT "+text+" FROM outbox_archive", pgx.RowTo[string]); len(got) != 1 || got[0] != want {
				t.Errorf("archived %q, want %s", got, want)
			}
		})
	}
}

// Migrate keeps the payload type of a table. Doctor says what jsonb costs. Its fix leaves a relay
// that runs with a table that it can use.
func TestDiagnose_PayloadJSONB(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	for _, c := range []postgres.SchemaConfig{{Payload: postgres.PayloadJSONB}, {}} {
		_, err := postgres.Migrate(t.Context(), p.url, c)
		check(t, err)
	}
	running, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders"})
	check(t, err)
	defer func() { check(t, running.Close()) }()
	next := func(want string) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), `INSERT INTO outbox_events (topic, payload) VALUES ('t', '`+written+`')`)
		check(t, err)
		var batch *buffer.Lease
		testkit.Eventually(t, func() error { // prepared statements know the old type: the first read after the change fails
			var failed error
			if batch, failed = running.Claim(t.Context(), 10, lease); batch == nil {
				batch, err = testkit.TakeOver(t.Context(), running, lease)
				failed = errors.Join(failed, err)
			}
			if batch == nil {
				return fmt.Errorf("no batch: %w", failed)
			}
			if batch.NotRead != nil {
				err = running.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Error: "not read"}})
				return errors.Join(batch.NotRead, err)
			}
			return nil
		})
		if string(batch.Events[0].Payload) != want {
			t.Fatalf("got %+v, want %s", batch, want)
		}
		check(t, running.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	next(`{"b": 2}`)
	f := find(diagnose(t, p.url, 0), buffer.LevelOK, "payload", "jsonb")
	if f == nil || !strings.Contains(f.Fix, "lock_timeout") {
		t.Fatalf("got %+v", f)
	}
	_, err = p.pool.Exec(t.Context(), f.Fix, pgx.QueryExecModeSimpleProtocol)
	check(t, err)
	next(written)
	if f := find(diagnose(t, p.url, 0), buffer.LevelOK, "payload", ""); f != nil {
		t.Errorf("after the fix: %+v", f)
	}
	_, err = p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload, headers) VALUES ('t', '1', '[]')")
	if err == nil || !strings.Contains(err.Error(), "outbox_events_headers_check") {
		t.Errorf("headers that are no object: got %v", err)
	}
}

// Check refuses an archive of jsonb if the payload is json: what jsonb refuses could never be settled.
func TestCheck_ArchiveJSONB(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Archive: true})
	f := p.fixture(t, "outbox_events", "orders")
	f.Exec(t, "ALTER TABLE outbox_archive ALTER payload TYPE jsonb")
	err := f.Buffer.Check(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), ": ALTER TABLE public.outbox_archive ALTER payload TYPE json") {
		t.Fatalf("got %v", err)
	}
	f.Exec(t, "ALTER TABLE outbox_archive ALTER payload TYPE json")
	check(t, f.Buffer.Check(t.Context()))
}
