package postgres_test

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// A column of json may hold what jsonb does not take: its event is buried, replayed and
// archived like all others, and the row comes back to the letter.
func TestRowsOfWhatJSONBDoesNotTake(t *testing.T) {
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
	_, err := postgres.Migrate(t.Context(), o.config.URL, postgres.SchemaConfig{Table: activitiesTable, Schema: "relay", Own: true, Archive: "outbox_archive"})
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
		if b.ProjectErr != nil || !b.Events[0].NoProjection || !strings.Contains(string(b.Events[0].Payload), `"note": "\"\\u0000\""`) {
			t.Fatalf("there are %v and %+v", b.ProjectErr, b.Events)
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
	p.agrees(t, "all of that")
	if n := o.text(t, "SELECT count(*)::text FROM relay.outbox_archive"); n != "4" {
		t.Errorf("%s events are archived", n)
	}
}

// A number that is longer than numeric is kept as it is in a letter.
func TestLettersOfLongNumbers(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 1)
	for payload, as := range map[string]string{
		"0." + strings.Repeat("1", 16_383):          "itself",
		"0." + strings.Repeat("1", 16_384):          "base64",
		strings.Repeat("1", 131_072):                "itself",
		strings.Repeat("1", 131_073):                "base64",
		"0.1e-16383":                                "base64",
		"[0.1e-16382, 1e131071, -12.5E+2, true, 0]": "itself",
		"1e131072":                                            "base64",
		strings.Repeat("1", 40_000) + "e99999":                "base64",
		`["1e999999", 1e-99999999999999999999]`:               "base64",
		strings.Repeat("[", 1000) + strings.Repeat("]", 1000): "itself",
		strings.Repeat("[", 9000) + strings.Repeat("]", 9000): "base64",
		`["` + strings.Repeat("[", 9000) + `"]`:               "itself",
	} {
		p := o.projecting(t, `SELECT 1 AS id, '`+payload+`'::text AS payload FROM `+activitiesTable+` WHERE group_id = $1`)
		o.refresh(t)
		o.exec(t, "DELETE FROM relay.outbox_dead_letters")
		b := p.claim(t, 10)
		if b.ProjectErr != nil || b.Events[0].ProjectErr != nil || string(b.Events[0].Payload) != payload {
			t.Fatalf("%.30s is claimed as %+v", payload, b)
		}
		p.settle(t, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "no"})
		got := o.text(t, "SELECT CASE WHEN payload ? 'payload_base64' THEN 'base64' ELSE 'itself' END FROM relay.outbox_dead_letters")
		if got != as {
			t.Errorf("%.30s (%d bytes) is %s in its letter, want %s", payload, len(payload), got, as)
		}
		if n, err := p.Replay(t.Context(), buffer.DeadFilter{}, 1); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v", n, err)
		}
	}
}
