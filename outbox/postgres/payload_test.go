package postgres_test

import (
	"errors"
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
			for _, text := range []string{`{"b" :3}`, written} {
				letters, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
				check(t, err)
				check(t, b.EditDead(t.Context(), buffer.DeadEdit{ID: letters[0].ID, Old: letters[0].Payload, New: []byte(text)}))
			}
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
		testkit.Eventually(t, func() (err error) { // prepared statements know the old type: the first read after the change fails
			batch, err = claimRead(t, running)
			return err
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

// TestPayloadTypes_Changed: a buffer that is open notices that the type of its payloads has changed. They begin like binary jsonb.
func TestPayloadTypes_Changed(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newMigratedDB(t, buffertest.Options{Claim: mode}).fixture(t, "outbox_events", "orders")
			arrives := func(payload, want string, isJSON bool) {
				t.Helper()
				f.Exec(t, "INSERT INTO outbox_events (topic, payload) VALUES ('t', "+payload+")")
				var batch *buffer.Lease
				testkit.Eventually(t, func() (err error) {
					batch, err = claimRead(t, f.Buffer)
					return err
				})
				if got := string(batch.Events[0].Payload); got != want || batch.PayloadIsJSON != isJSON {
					t.Errorf("got %q, JSON: %v; want %q, %v", got, batch.PayloadIsJSON, want, isJSON)
				}
				check(t, f.Buffer.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			}
			arrives("'1'", "1", true)
			f.Exec(t, "ALTER TABLE outbox_events ALTER payload TYPE bytea USING convert_to(payload::text, 'UTF8')")
			arrives(`'\x01020304'`, "\x01\x02\x03\x04", false)
			f.Exec(t, "ALTER TABLE outbox_events ALTER payload TYPE jsonb USING convert_from(payload, 'UTF8')::jsonb")
			arrives("'2'", "2", true)
		})
	}
}

// claimRead claims a batch, or takes over one that could not be read, because a prepared statement knew the table as it was.
func claimRead(t *testing.T, b buffer.Buffer) (*buffer.Lease, error) {
	t.Helper()
	batch, err := b.Claim(t.Context(), 10, lease)
	if batch == nil && err == nil {
		batch, err = testkit.TakeOver(t.Context(), b, lease)
	}
	switch {
	case err != nil:
		return nil, err
	case batch == nil:
		return nil, errors.New("no batch")
	case batch.NotRead != nil:
		check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Error: "not read"}}))
	}
	return batch, batch.NotRead
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
