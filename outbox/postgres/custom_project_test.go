package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// projecting is the same table with another projection.
func (o *customFixture) projecting(t *testing.T, project string) *customFixture {
	t.Helper()
	c := o.config
	c.Custom.Project = project
	return &customFixture{testDB: o.testDB, Buffer: o.open(t, c), config: c}
}

// refresh takes all claims back.
func (o *customFixture) refresh(t *testing.T) {
	t.Helper()
	o.exec(t, `UPDATE `+activitiesTable+` SET group_id = NULL; DELETE FROM relay.outbox_batches`)
}

// See also the suite: event 2 alone is bad, whichever of its rows comes first.
func TestProjection_RejectsEvent(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 3)
	for columns, says := range map[string]string{
		`CASE WHEN activity <> 2 OR n = 1 THEN '{}'::jsonb END AS payload`:                                 "event 2 is returned twice",
		`CASE WHEN activity <> 2 OR n = 2 THEN '{}'::jsonb END AS payload`:                                 "event 2 has payload NULL",
		`'{}'::jsonb AS payload, CASE WHEN activity = 2 THEN E' \n' ELSE 't' END AS topic, n::text AS key`: "event 2 is returned twice",
	} {
		p := o.projecting(t, `SELECT "Id of ""it""" AS id, `+columns+` FROM `+activitiesTable+` e CROSS JOIN generate_series(1, 2) n
			WHERE e.group_id = $1 AND (n = 1 OR activity = 2) ORDER BY n`)
		o.refresh(t)
		b := p.claim(t, 10)
		if b.ProjectErr != nil || len(b.Events) != 2 || len(b.Rejected) != 1 || !b.Projected {
			t.Fatalf("%s: claimed %+v", columns, b)
		}
		if r := b.Rejected[0]; r.Event.ID != 2 || r.Event.Payload != nil || r.Event.Key != nil || r.Event.Topic != "Activity.events" || !strings.Contains(r.Err.Error(), says) {
			t.Errorf("%s: rejected %+v; want event 2 and an error that says %q", columns, r, says)
		}
	}
}

// Errors of the database, and what causes them.
func TestProjection_ErrorKinds(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 3)
	o.exec(t, `CREATE FUNCTION fail(sqlstate text) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE 'it is %', sqlstate USING ERRCODE = sqlstate; END $$`)
	kinds := []error{buffer.ErrEventData, buffer.ErrDatabaseUnavailable}
	// Locks, cancellations, a shutdown and other servers say nothing of the rows: the batch waits whole.
	asBefore := []string{
		"fail('55P03')", "fail('57014')", "fail('40P01')", "fail('53100')", "fail('57P01')", "fail('08006')", "to_jsonb(pg_terminate_backend(pg_backend_pid()))",
	}
	for payload, kind := range map[string]error{
		`to_jsonb(1 / (activity - 2))`:                        buffer.ErrEventData,
		`to_jsonb(('x' || activity)::bigint)`:                 buffer.ErrEventData,
		`(SELECT to_jsonb(id) FROM "The ""app""".activities)`: buffer.ErrEventData,
		`fail('53100')`: buffer.ErrDatabaseUnavailable, `fail('57P01')`: buffer.ErrDatabaseUnavailable, `fail('58030')`: buffer.ErrDatabaseUnavailable,
		`fail('XX000')`: buffer.ErrDatabaseUnavailable, `fail('53200')`: buffer.ErrDatabaseUnavailable, `fail('57P02')`: buffer.ErrDatabaseUnavailable, `fail('55P03')`: buffer.ErrDatabaseUnavailable, `fail('57014')`: buffer.ErrDatabaseUnavailable,
		`fail('08006')`: buffer.ErrDatabaseUnavailable, `fail('40P01')`: buffer.ErrDatabaseUnavailable,
		`to_jsonb(pg_terminate_backend(pg_backend_pid()))`: buffer.ErrDatabaseUnavailable,
		`fail('42501')`: nil, `fail('P0001')`: nil,
	} {
		p := o.projecting(t, strings.Replace(activitiesProject, "a.data AS payload", payload+" AS payload", 1))
		o.refresh(t)
		for starts, claim := range []func(*testing.T) *buffer.Lease{
			func(t *testing.T) *buffer.Lease { return p.claim(t, 10) }, p.takeOver, p.takeOver, p.takeOver, // a further one would not read it: buffer.ErrKillsReader
		} {
			b := claim(t)
			why := cmp.Or(b.ProjectErr, b.NotRead)
			if wants := errors.Is(why, buffer.ErrDatabaseUnavailable) && !slices.Contains(asBefore, payload); (b.NotRead != nil) != wants {
				t.Errorf("%s: not read: %v, want %t", payload, b.NotRead, wants)
			}
			if err := why; err == nil || strings.Contains(err.Error(), "\n") || b.UnfinishedLeases != starts+1 || !slices.Equal(b.IDs(), []int64{1, 2, 3}) {
				t.Fatalf("%s: %+v", payload, b)
			}
			for _, k := range kinds {
				if is := errors.Is(why, k); is != errors.Is(kind, k) {
					t.Errorf("%s: %v is %v: %t", payload, why, k, is)
				}
			}
			for _, e := range b.AllEvents() {
				if e.Payload != nil {
					t.Errorf("%s: %+v", payload, e)
				}
			}
		}
	}
}

// An endless projection is cancelled in time to settle its batch.
func TestProjection_TimeLimit(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 1)
	p := o.projecting(t, strings.Replace(activitiesProject, "a.data AS payload", "to_jsonb(pg_sleep(600)::text) AS payload", 1))
	expect := func(b *buffer.Lease, err error, says string) {
		t.Helper()
		if err != nil || b == nil || b.ProjectErr == nil || errors.Is(b.ProjectErr, buffer.ErrDatabaseUnavailable) || b.ProjectErr.Error() != says {
			t.Fatalf("got %+v, %v; want one that says %q", b, err, says)
		}
	}
	const ofTheLease = "source.project did not end within 1s, half of the lease; add an index for what it looks up, or use a smaller batch_size or a longer lease"
	const byGroup = "; write FROM {events} e in source.project, or CREATE INDEX CONCURRENTLY ON " + activitiesTable + " (group_id) WHERE group_id IS NOT NULL"
	b, err := p.Claim(t.Context(), 1, 2*time.Second)
	expect(b, err, ofTheLease+byGroup)
	o.exec(t, "UPDATE relay.outbox_batches SET due_at = clock_timestamp() - interval '1 second'")
	b, err = testkit.TakeOver(t.Context(), p, 2*time.Second)
	expect(b, err, ofTheLease+byGroup)
	p.settle(t, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID})

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	b, err = testkit.TakeOver(ctx, p, time.Hour)
	if err != nil || b == nil || b.ProjectErr == nil || !strings.Contains(b.ProjectErr.Error(), "did not end within 3.") || !strings.HasSuffix(b.ProjectErr.Error(), byGroup) || strings.Contains(b.ProjectErr.Error(), "lease") {
		t.Fatalf("got %+v, %v", b, err)
	}

	o.refresh(t)
	p = o.projecting(t, `SELECT "Id of ""it""" AS id, pg_sleep(600)::text AS payload FROM {events} e`)
	b, err = p.Claim(t.Context(), 1, 2*time.Second)
	expect(b, err, ofTheLease)
}

// A column whose name differs only in case is another column on PostgreSQL.
func TestProjection_ColumnNamesAreExact(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 1)
	p := o.projecting(t, strings.Replace(activitiesProject, "a.data AS payload", `a.data AS payload, 'elsewhere' AS "Topic", 1 AS "ID"`, 1))
	check(t, p.Check(t.Context()))
	b := p.claim(t, 10)
	if b.ProjectErr != nil || len(b.Events) != 1 || b.Events[0].Topic != "Activity.events" {
		t.Errorf("claimed %+v", b)
	}
}

// A table that does not say when an event was created, or not of every event: its batch says the same at each attempt, because its group_id
// promises the same request. An API that compares would refuse the second one.
func TestProjection_CreatedAtOfRepeatedBatch(t *testing.T) {
	t.Parallel()
	const integer, uuid = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "id uuid PRIMARY KEY DEFAULT gen_random_uuid()"
	const oneIsNull = ", created_at timestamptz DEFAULT nullif(current_setting('test.created_at', true), '')::timestamptz"
	for name, id := range map[string]string{
		"integer": integer, "uuid": uuid, "integer, one NULL": integer + oneIsNull, "uuid, one NULL": uuid + oneIsNull,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			custom := buffer.CustomTable{ID: "id", Project: "SELECT id, to_jsonb(n) AS payload FROM {events} e"}
			o := newCustomFixture(t, testserver.Postgres(t), "CREATE SCHEMA relay; CREATE TABLE changes ("+id+", n integer, group_id uuid)", custom, "changes")
			o.exec(t, "INSERT INTO changes (n) SELECT generate_series(1, 2)")
			o.exec(t, "SET test.created_at = '2026-01-01 00:00:00Z'; INSERT INTO changes (n) VALUES (3)")
			b, err := o.Claim(t.Context(), 10, lease)
			check(t, err)
			o.settle(t, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID})
			again := o.takeOver(t)
			if len(again.Events) != 3 {
				t.Fatalf("taken over: %+v", again)
			}
			for i := range again.Events {
				if first, second := b.Events[i].CreatedAt, again.Events[i].CreatedAt; !first.Equal(second) {
					t.Errorf("event %d was created at %v, and at the second attempt at %v", i, first, second)
				}
			}
		})
	}
}
