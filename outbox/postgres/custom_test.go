package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// activitiesDDL makes a table with all difficulties: names with quotes and dots, a generated key and
// column, at most one unclaimed event per contact, times without a zone, and no event columns.
const (
	activitiesTable = `"The ""app"""."Activity.events"`
	activitiesDDL   = `
CREATE SCHEMA relay;
CREATE SCHEMA "The ""app""";
CREATE TABLE "The ""app""".activities (id bigint PRIMARY KEY, lead text, data jsonb);
CREATE TABLE ` + activitiesTable + ` (
	"Id of ""it""" integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	activity bigint NOT NULL, doubled bigint GENERATED ALWAYS AS (activity * 2) STORED, note json NOT NULL DEFAULT 'null',
	created_at timestamp NOT NULL DEFAULT '2026-01-02 03:04:05.123456', group_id uuid);
CREATE UNIQUE INDEX ON ` + activitiesTable + ` (activity) WHERE group_id IS NULL;
CREATE INDEX ON ` + activitiesTable + ` (group_id) WHERE group_id IS NOT NULL`
	activitiesProject = `
SELECT e."Id of ""it""" AS id, a.lead AS key, a.data AS payload, jsonb_build_object('lead', a.lead) AS headers, a.id AS ignored
FROM ` + activitiesTable + ` e JOIN "The ""app""".activities a ON a.id = e.activity
WHERE e.group_id = $1; -- of the batch`
)

func newActivities(t *testing.T, url string, n int) *customFixture {
	t.Helper()
	o := newCustomFixture(t, url, activitiesDDL, buffer.CustomTable{ID: `Id of "it"`, Project: activitiesProject}, activitiesTable)
	o.add(t, n)
	return o
}

// add inserts events 1 to n and their activities.
func (o *customFixture) add(t *testing.T, n int) {
	t.Helper()
	o.exec(t, fmt.Sprintf(`INSERT INTO "The ""app""".activities SELECT i, 'lead ' || i, jsonb_build_object('n', i) FROM generate_series(1, %d) i`, n))
	o.exec(t, fmt.Sprintf(`INSERT INTO %s (activity) SELECT i FROM generate_series(1, %d) i`, activitiesTable, n))
}

func TestCustomTable_OddNames(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	o := newActivities(t, direct, 4)
	pooled := o.config
	pooled.URL = testserver.PgBouncer(t, direct)
	o.Buffer = o.open(t, pooled)
	check(t, o.Check(t.Context()))
	rows := `SELECT (to_jsonb(e) - 'group_id')::text FROM ` + activitiesTable + ` e ORDER BY 1`
	before := o.text(t, rows)

	b := o.claim(t, 10)
	if b.ProjectErr != nil || !slices.Equal(b.IDs(), []int64{1, 2, 3, 4}) || !b.PayloadIsJSON {
		t.Fatalf("claimed %+v", b)
	}
	e := b.Events[2]
	if e.Topic != "Activity.events" || *e.Key != "lead 3" || string(e.Payload) != `{"n": 3}` || string(e.Headers) != `{"lead": "lead 3"}` ||
		e.CreatedAt.Format("2006-01-02 15:04:05.999999 MST") != "2026-01-02 03:04:05.123456 UTC" || e.UUID != uuid.Nil {
		t.Fatalf("an event comes as %+v", e)
	}

	// The application changes the same activities. Claimed events stay claimed.
	o.exec(t, `INSERT INTO `+activitiesTable+` (activity) SELECT i FROM generate_series(1, 2) i`)
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID, Error: "unavailable"})
	o.exec(t, `DELETE FROM "The ""app""".activities WHERE id = 2`)
	b = o.takeOver(t)
	if b.ProjectErr != nil || len(b.Rejected) != 1 || b.Rejected[0].Event.ID != 2 || !errors.Is(b.Rejected[0].Err, buffer.ErrNotProjected) {
		t.Fatalf("an event that lost its parent while it waited: %+v", b.Events)
	}
	rest := buffer.NewGroupID()
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Dead, IDs: []int64{2}, Error: buffer.ErrNotProjected.Error()},
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{1, 3, 4}, GroupID: rest})
	b = o.takeOver(t)
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "no"})
	if left := o.text(t, `SELECT activity::text FROM `+activitiesTable+` ORDER BY 1`); left != "1 2" {
		t.Fatalf("left: %s", left)
	}

	// All of them go back as they were, identity, generated column and JSON null too.
	o.exec(t, `DELETE FROM `+activitiesTable)
	if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 4 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
	if after := o.text(t, rows); after != before {
		t.Errorf("after the replay: %s, want %s", after, before)
	}
	if b = o.takeOver(t); !slices.Equal(b.IDs(), []int64{1, 2, 3, 4}) {
		t.Fatalf("replayed: %+v", b)
	}
}

// A projection cannot write. Its errors belong to the batch; errors of the
// database do not.
func TestProjection_Transaction(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 3)
	o.exec(t, `CREATE FUNCTION says() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
		RETURN current_setting('transaction_isolation') || ', ' || current_setting('transaction_read_only') || ', ' || current_setting('TimeZone'); END $$`)
	project := func(what string) string {
		return strings.Replace(activitiesProject, "a.data AS payload", what+" AS payload", 1)
	}
	with := func(what string) *buffer.Lease {
		t.Helper()
		c := o.config
		c.Custom.Project = project(what)
		b, err := o.open(t, c).Claim(t.Context(), 1, lease)
		check(t, err)
		return b
	}
	if b := with("to_jsonb(says())"); string(b.Events[0].Payload) != `"read committed, on, UTC"` {
		t.Errorf("a projection runs in %s", b.Events[0].Payload)
	}
	o.exec(t, `CREATE OR REPLACE FUNCTION says() RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO "The ""app""".activities VALUES (99); RETURN 'x'; END $$`)
	b := with("to_jsonb(says())")
	if b.ProjectErr == nil || !strings.Contains(b.ProjectErr.Error(), "read-only") || b.Len() != 1 || b.AllEvents()[0].Payload != nil {
		t.Errorf("a projection that writes: %+v", b)
	}

	// The session ends in the middle: the claim is committed, and nothing is the batch's fault.
	if b = with("to_jsonb(pg_terminate_backend(pg_backend_pid()))"); !errors.Is(b.ProjectErr, buffer.ErrDatabaseUnavailable) || b.AllEvents()[0].Payload != nil {
		t.Fatalf("claimed %+v although the session was ended", b)
	}
	if rows := o.text(t, "SELECT events::text || ' ' || state FROM relay.outbox_batches WHERE first_id = 3"); rows != "1 leased" {
		t.Fatalf("the ledger says %q of the batch whose session was ended", rows)
	}
	for range 3 {
		if b = o.takeOver(t); b.ProjectErr != nil {
			t.Fatal(b.ProjectErr)
		}
		o.settle(t, b, buffer.Outcome{Verdict: buffer.Delivered})
	}
	o.wantAgreement(t, "all of that")
}

// A migration rewrites a table that the projection reads (ALTER COLUMN TYPE). To a snapshot from before that, the table is empty
// afterwards; see https://www.postgresql.org/docs/current/mvcc-caveats.html.
func TestProjection_RewrittenTable(t *testing.T) {
	t.Parallel()
	o := newCustomFixture(t, testserver.Postgres(t), `
		CREATE SCHEMA relay;
		CREATE TABLE contacts (id integer PRIMARY KEY, name text);
		CREATE TABLE changes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, contact integer, group_id uuid);
		INSERT INTO contacts VALUES (1, 'Ada'); INSERT INTO changes (contact) VALUES (1), (1)`,
		buffer.CustomTable{ID: "id", Project: "SELECT e.id, to_jsonb(c.name) AS payload FROM {events} e JOIN contacts c ON c.id = e.contact"}, "changes")
	o.settle(t, o.claim(t, 10), buffer.Outcome{Verdict: buffer.Delivered}) // from now on the projection is known
	o.exec(t, "INSERT INTO changes (contact) VALUES (1), (1)")
	migration, err := o.pool.Begin(t.Context())
	check(t, err)
	_, err = migration.Exec(t.Context(), "ALTER TABLE contacts ALTER COLUMN id TYPE bigint")
	check(t, err)
	claimed := make(chan *buffer.Lease, 1)
	go func() {
		defer close(claimed)
		b, err := o.Claim(t.Context(), 10, lease)
		if err != nil {
			t.Error(err)
		}
		claimed <- b
	}()
	testserver.Eventually(t, func() error {
		var waits int
		err := o.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()`).Scan(&waits)
		if err == nil && waits == 0 {
			err = errors.New("the projection does not wait for the migration")
		}
		return err
	})
	check(t, migration.Commit(t.Context()))
	if b := <-claimed; b == nil || len(b.Rejected) > 0 || b.ProjectErr != nil || len(b.Events) != 2 || string(b.Events[0].Payload) != `"Ada"` {
		t.Errorf("claimed %+v", b)
	}
}

// TestProjection_Columns covers the columns that a projection may and may not return. See also the suite.
func TestProjection_Columns(t *testing.T) {
	t.Parallel()
	const batch = ` FROM ` + activitiesTable + ` e WHERE e.group_id = $1`
	o := newActivities(t, testserver.Postgres(t), 1)
	for _, c := range []struct{ project, event, says string }{
		{`SELECT 1::numeric AS id, 'x'::json AS payload`, "", "invalid input syntax for type json"},
		{`SELECT e."Id of ""it"""::text AS id, '{"a":  1}'::json AS payload, 17 AS key, '2026-01-01 00:00:00+02'::timestamptz AS created_at`, `17 {"a":  1} 2025-12-31T22:00:00Z`, ""},
		{`SELECT 1::bigint AS id, '\x00ff'::bytea AS payload, NULL AS topic, 'infinity'::timestamptz AS created_at`, "\x00\xff", ""},
		{`SELECT 1::bigint AS id, ' [1] '::text AS payload, '' AS topic`, "", "event 1 has an empty topic"},
		{`SELECT 1 AS id, 1 AS payload`, "", "jsonb"},
		{`SELECT 1 AS id, 2 AS id, '1'::jsonb AS payload`, "", "column id twice"},
		{`SELECT 1 AS id, '1'::jsonb AS payload, '["a"]'::json AS headers`, "", "event 1 has headers"},
		{`SELECT 1 AS id, '1'::jsonb AS payload, 'soon' AS created_at`, "", "created_at"},
	} {
		config := o.config
		config.Custom.Project = c.project + batch
		buf := o.open(t, config)
		o.exec(t, `UPDATE `+activitiesTable+` SET group_id = NULL; DELETE FROM relay.outbox_batches`)
		b, err := buf.Claim(t.Context(), 10, lease)
		if err == nil {
			if err = b.ProjectErr; err == nil && len(b.Rejected) > 0 {
				err = b.Rejected[0].Err
			}
		}
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got %v, want an error that says %q", c.project, err, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.project, err)
			continue
		}
		e, got := b.Events[0], string(b.Events[0].Payload)
		if e.Key != nil {
			got = *e.Key + " " + got + " " + e.CreatedAt.Format("2006-01-02T15:04:05Z07:00")
		}
		if got != c.event || e.Topic != "Activity.events" {
			t.Errorf("%s: %q of topic %s, want %q", c.project, got, e.Topic, c.event)
		}
	}
}

func TestOpen_CustomTable(t *testing.T) {
	t.Parallel()
	own := buffer.CustomTable{ID: "id", Project: "SELECT 1"}
	for says, c := range map[string]postgres.Config{
		"ID is empty":       {Custom: buffer.CustomTable{Project: "SELECT 1"}},
		"Ordered":           {Custom: own, Ordered: true},
		`"auto" or "stamp"`: {Custom: own, Claim: buffer.ClaimRange},
		`"auto" or "poll"`:  {Custom: own, Wake: buffer.WakeNotify},
	} {
		c.URL, c.Pipeline = "postgres://localhost/x", "orders"
		if _, err := postgres.Open(c); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(says)) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
}
