package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// Columns of json may contain values that jsonb refuses. Their events are buried, replayed
// and archived like all others, and the row is restored exactly.
func TestReplay_RestoresRowsThatJSONBWouldRefuse(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 4)
	o.exec(t, `
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TYPE pair AS (a json, b text);
CREATE DOMAIN paper AS json;
ALTER TABLE `+activitiesTable+` ADD "jsons of 'it'" json[], ADD two pair, ADD feels mood, ADD paper paper, ADD checked jsonb NOT NULL DEFAULT 'null', ADD nothing json;
UPDATE `+activitiesTable+` SET note = '"\u0000"', "jsons of 'it'" = '{"1e999999","{\"a\":  1}",null}', two = ROW('"\ud83d"', 'b'), feels = 'bad', paper = 'null';
UPDATE `+activitiesTable+` SET note = '1e999999' WHERE activity = 2;
UPDATE `+activitiesTable+` SET note = 'null' WHERE activity = 3`)
	_, err := postgres.Migrate(t.Context(), o.config.URL, postgres.SchemaConfig{Table: activitiesTable, Schema: "relay", Custom: true, Archive: "outbox_archive"})
	check(t, err)
	const rows = `SELECT string_agg((e.*)::text, E'\n' ORDER BY activity) FROM (SELECT * FROM ` + activitiesTable + `) e`
	before := o.text(t, rows)
	o.config.Archive = "relay.outbox_archive"
	// Of two of them the projection has no row.
	p := o.projecting(t, strings.Replace(activitiesProject, "WHERE", "WHERE activity > 2 AND", 1))

	peeked, err := p.Peek(t.Context(), 10)
	check(t, err)
	b := p.claim(t, 10)
	for _, b := range []*buffer.Lease{peeked, b, p.takeOver(t)} {
		if b.ProjectErr != nil || len(b.Rejected) == 0 || !strings.Contains(string(b.Rejected[0].Event.Payload), `"note":"\"\\u0000\""`) {
			t.Fatalf("there are %v and %+v", b.ProjectErr, b.Rejected)
		}
	}
	b = p.takeOver(t)
	p.settle(t, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "no"})
	if n, err := p.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 4 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
	b = p.takeOver(t)
	o.exec(t, "UPDATE "+activitiesTable+" SET group_id = NULL")
	if after := o.text(t, rows); after != before {
		t.Errorf("after the replay:\n%s\nwant\n%s", after, before)
	}
	o.exec(t, "UPDATE "+activitiesTable+" SET group_id = '"+b.GroupID.String()+"'")
	p.settle(t, b, buffer.Outcome{Verdict: buffer.Delivered})
	p.wantAgreement(t, "all of that")
	if n := o.text(t, "SELECT count(*)::text FROM relay.outbox_archive"); n != "4" {
		t.Errorf("%s events are archived", n)
	}
}

// A dead letter keeps JSON as it was projected, also JSON that jsonb would refuse. Only
// JSON that is nested too deep for the server is kept as base64.
func TestDeadLetters_KeepProjectedJSON(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 1)
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for payload, kept := range map[string]bool{
		`"\u0000"`: true, `"\ud83d"`: true, `"\\u0000 \ud83d\ude00 e123456789"`: true, `{"a": [1.5e3, "\"", true],  "a": 0}`: true,
		"1e999999": true, "0." + strings.Repeat("1", 16_384): true, `["` + nested(9000) + `"]`: true,
		nested(1000): true, nested(1001): false,
	} {
		p := o.projecting(t, `SELECT 1 AS id, '`+payload+`'::text AS payload FROM `+activitiesTable+` WHERE group_id = $1`)
		o.refresh(t)
		o.exec(t, "DELETE FROM relay.outbox_dead_letters")
		b := p.claim(t, 10)
		if b.ProjectErr != nil || len(b.Events) != 1 || string(b.Events[0].Payload) != payload {
			t.Fatalf("%.30s is claimed as %+v", payload, b)
		}
		p.settle(t, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "no"})
		got := o.text(t, "SELECT payload::text FROM relay.outbox_dead_letters")
		if (got == payload) != kept || !kept && !strings.HasPrefix(got, `{"payload_base64":`) {
			t.Errorf("payload %.30s is %.30s in its dead letter; expected it as it was: %t", payload, got, kept)
		}
		if n, err := p.Replay(t.Context(), buffer.DeadFilter{}, 1); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v", n, err)
		}
	}
}

// Check refuses jsonb in an archive and in the dead letters, because a delivered event may have JSON that jsonb refuses.
// After the fix that it names, such events are settled.
func TestCheck_JSONB(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 2)
	_, err := postgres.Migrate(t.Context(), o.config.URL, postgres.SchemaConfig{Table: activitiesTable, Schema: "relay", Custom: true, Archive: "outbox_archive"})
	check(t, err)
	o.config.Archive = "relay.outbox_archive"
	const odd = `{"text": "\u0000 \ud83d"}`
	p := o.projecting(t, `SELECT "Id of ""it""" AS id, '`+odd+`'::text AS payload, '`+odd+`'::text AS headers FROM `+activitiesTable+` WHERE group_id = $1`)
	fixes := map[string]string{
		"relay.outbox_archive":      "ALTER payload TYPE json, ALTER headers TYPE json",
		"relay.outbox_dead_letters": "ALTER payload TYPE json, ALTER headers TYPE json, ALTER event_row TYPE json",
	}
	for table, fix := range fixes {
		fix = "ALTER TABLE " + table + " " + fix
		o.exec(t, strings.ReplaceAll(fix, "TYPE json", "TYPE jsonb"))
		if err := p.Check(t.Context()); !errors.Is(err, buffer.ErrNotReady) || !strings.HasSuffix(err.Error(), ": "+fix) {
			t.Fatalf("got %v; expected the fix %s", err, fix)
		}
		o.exec(t, fix)
	}
	o.exec(t, "ALTER TABLE relay.outbox_archive DROP COLUMN payload")
	const add = "ALTER TABLE relay.outbox_archive ADD COLUMN IF NOT EXISTS payload json NOT NULL"
	if err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), add) {
		t.Fatalf("got %v; expected the fix %s", err, add)
	}
	o.exec(t, add)
	check(t, p.Check(t.Context()))
	p.settle(t, p.claim(t, 10), buffer.Outcome{Verdict: buffer.Delivered, IDs: []int64{1}}, buffer.Outcome{Verdict: buffer.Dead, IDs: []int64{2}, Attempts: 1, Error: "no"})
	for table := range fixes {
		if got := o.text(t, "SELECT payload::text || headers::text FROM "+table); got != odd+odd {
			t.Errorf("%s has %s", table, got)
		}
	}
}
