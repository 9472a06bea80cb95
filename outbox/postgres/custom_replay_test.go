package postgres_test

import (
	"slices"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// A row that the table rejects, at once or at the commit, stays a dead letter and does not block
// the others.
func TestReplay_CustomTableRejectsRow(t *testing.T) {
	t.Parallel()
	o := newActivities(t, testserver.Postgres(t), 9)
	b := o.claim(t, 10)
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "no"})
	o.exec(t, `
DELETE FROM "The ""app""".activities WHERE id = 7;
ALTER TABLE `+activitiesTable+` ADD CONSTRAINT never CHECK (activity <> 2),
	ADD CONSTRAINT parent FOREIGN KEY (activity) REFERENCES "The ""app""".activities DEFERRABLE INITIALLY DEFERRED;
UPDATE relay.outbox_dead_letters SET event_row = event_row::jsonb || '{"activity": 1e30}' WHERE event_id = 1;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON `+activitiesTable+` FOR EACH ROW WHEN (NEW.activity = 9) EXECUTE FUNCTION refuse()`)
	replay := func(limit, want int, what string) {
		t.Helper()
		if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, limit); n != want || err != nil {
			t.Fatalf("replaying %s: %d, %v; want %d", what, n, err, want)
		}
	}
	replay(2, 2, "two")
	replay(10, 3, "the rest")
	replay(10, 0, "what is refused")
	if in := o.text(t, "SELECT activity::text FROM "+activitiesTable+" ORDER BY activity"); in != "3 4 5 6 8" {
		t.Errorf("activities %s are back", in)
	}
	o.wantAgreement(t, "a replay")
	o.exec(t, `
DROP TRIGGER refuse ON `+activitiesTable+`;
ALTER TABLE `+activitiesTable+` DROP CONSTRAINT never, DROP CONSTRAINT parent;
UPDATE relay.outbox_dead_letters SET event_row = event_row::jsonb || '{"activity": 1}' WHERE event_id = 1`)
	replay(10, 4, "what was refused")
	o.wantAgreement(t, "another replay")

	// A column that has to have a value keeps all of them out.
	for {
		b, err := testkit.TakeOver(t.Context(), o, lease)
		check(t, err)
		if b == nil {
			break
		}
		o.settle(t, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "no"})
	}
	o.exec(t, `ALTER TABLE `+activitiesTable+` ADD COLUMN since text NOT NULL`)
	replay(10, 0, "all")
	var ids []int64
	deadLetters, err := o.ListDead(t.Context(), buffer.DeadFilter{}, nil, 20)
	check(t, err)
	for _, l := range deadLetters {
		ids = append(ids, l.ID)
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("the open deadLetters are those of %v", ids)
	}
}
