package postgres_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// journalDDL makes a table of an application that keeps what was sent.
const journalDDL = `
CREATE SCHEMA relay;
CREATE TABLE journal (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL, status text NOT NULL DEFAULT 'new' CHECK (status IN ('new', 'sent')),
	attempts integer NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT clock_timestamp(), processed_at timestamptz, group_id uuid);
CREATE INDEX ON journal (id) WHERE status = 'new';
INSERT INTO journal (body, status, processed_at) SELECT 'history', 'sent', now() FROM generate_series(1, 3)`

var journal = buffer.CustomTable{
	ID: "id", Project: "SELECT e.id, to_jsonb(e.body) AS payload FROM {events} e", Where: "status = 'new'",
	Mark: map[string]string{"status": "'sent'", "processed_at": "clock_timestamp()", "attempts": "attempts + 1 -- once"},
}

func newJournal(t *testing.T, n int) *customFixture {
	t.Helper()
	o := newCustomFixture(t, testserver.Postgres(t), journalDDL, journal, "journal")
	o.exec(t, fmt.Sprintf("INSERT INTO journal (body) SELECT 'event' FROM generate_series(1, %d)", n))
	return o
}

func (o *customFixture) journal(t *testing.T) string {
	t.Helper()
	return o.text(t, `SELECT status || attempts || CASE WHEN processed_at IS NULL THEN '' ELSE '!' END || coalesce(' ' || group_id::text, '') FROM journal WHERE body = 'event' ORDER BY id`)
}

func TestMark_RowsStay(t *testing.T) {
	t.Parallel()
	o := newJournal(t, 3)
	check(t, o.Check(t.Context()))
	b := o.claim(t, 10) // not the history
	if !slices.Equal(b.IDs(), []int64{4, 5, 6}) {
		t.Fatalf("claimed %v", b.IDs())
	}
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Delivered, IDs: []int64{4}}, buffer.Outcome{Verdict: buffer.Dead, IDs: []int64{5}, Error: "no"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{6}, GroupID: buffer.NewGroupID()})
	o.settle(t, o.takeOver(t), buffer.Outcome{Verdict: buffer.Delivered})
	if got := o.journal(t); got != "sent1! sent1! sent1!" {
		t.Fatalf("the journal says %q", got)
	}
	o.wantAgreement(t, "marks")

	// The row is still there: it is sent again, once.
	for _, want := range []int{1, 0} {
		if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != want || err != nil {
			t.Fatalf("replayed %d, %v; want %d", n, err, want)
		}
	}
	if b, err := o.Claim(t.Context(), 10, lease); b != nil || err != nil {
		t.Fatalf("claimed %+v, %v beside the replayed batch", b, err)
	}
	b = o.takeOver(t)
	if !slices.Equal(b.IDs(), []int64{5}) {
		t.Fatalf("replayed %v", b.IDs())
	}
	if got := o.journal(t); !strings.HasPrefix(got, "sent1! new0 "+b.GroupID.String()) {
		t.Fatalf("a replayed row is %q", got)
	}
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Delivered})
	if got := o.journal(t); got != "sent1! sent1! sent1!" {
		t.Fatalf("the journal says %q", got)
	}
}

// TestMark_ReusedIDs: another row has the id of a dead letter; and a row that was deleted goes back.
func TestMark_ReplayOfAnotherRow(t *testing.T) {
	t.Parallel()
	o := newJournal(t, 2)
	o.settle(t, o.claim(t, 10), buffer.Outcome{Verdict: buffer.Dead, Error: "no"})
	o.exec(t, `DELETE FROM journal WHERE id IN (4, 5)`)
	o.exec(t, `INSERT INTO journal (id, body, status) OVERRIDING SYSTEM VALUE VALUES (4, 'another', 'sent')`)
	if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
	if b := o.takeOver(t); !slices.Equal(b.IDs(), []int64{5}) || b.ProjectErr != nil {
		t.Fatalf("replayed %v, %v", b.IDs(), b.ProjectErr)
	}
}

// TestMark_Refused: a mark that the table refuses, or that leaves the row an event, is one error; nothing is lost, and nothing sent again.
func TestMark_Refused(t *testing.T) {
	t.Parallel()
	function := func(body string) string {
		return `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.status = 'sent' THEN ` + body + ` END IF; RETURN NEW; END $$;
			CREATE TRIGGER refuse BEFORE UPDATE ON journal FOR EACH ROW EXECUTE FUNCTION refuse()`
	}
	for name, c := range map[string]struct{ ddl, undo, says string }{
		"a check":          {"ALTER TABLE journal ADD CONSTRAINT never CHECK (processed_at IS NULL OR body <> 'event')", "ALTER TABLE journal DROP CONSTRAINT never", "never"},
		"a trigger raises": {function("RAISE 'not that one';"), "DROP TRIGGER refuse ON journal", "not that one"},
		"a trigger resets": {function("NEW.status = 'new';"), "DROP TRIGGER refuse ON journal", "still an event"},
		"a trigger skips":  {function("RETURN NULL;"), "DROP TRIGGER refuse ON journal", "were not marked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newJournal(t, 3)
			b := o.claim(t, 10)
			o.exec(t, c.ddl)
			err := o.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("settling: %v", err)
			}
			if _, refused := errors.AsType[*buffer.SettleError](err); refused {
				check(t, o.MarkDelivered(t.Context(), b, b.IDs()))
			}
			if b, err := o.Claim(t.Context(), 10, lease); b != nil || err != nil {
				t.Fatalf("claimed again: %+v, %v", b, err)
			}
			o.exec(t, c.undo)
			o.exec(t, "UPDATE relay.outbox_batches SET due_at = clock_timestamp() - interval '1 second'")
			again := o.takeOver(t)
			if !again.DeliveryRecorded() {
				t.Fatalf("taken over to be sent: %+v", again)
			}
			o.settle(t, again, buffer.Outcome{Verdict: buffer.Delivered})
			if got := o.journal(t); got != "sent1! sent1! sent1!" {
				t.Fatalf("the journal says %q", got)
			}
		})
	}
}

func TestMark_Check(t *testing.T) {
	t.Parallel()
	o := newJournal(t, 1)
	for says, c := range map[string]struct {
		where string
		mark  map[string]string
	}{
		"no column \"sent_at\"":       {"", map[string]string{"sent_at": "now()"}},
		"names the event":             {"", map[string]string{"id": "id + 1"}},
		"does not depend":             {"body = 'event'", map[string]string{"processed_at": "now()"}},
		"still true":                  {"", map[string]string{"status": "'new'"}},
		"source.mark.status is not":   {"", map[string]string{"status": "'sent') WHERE (true"}},
		"source.mark.attempts is not": {"", map[string]string{"attempts": "1, body = 'x'"}},
		"source.mark is not right":    {"", map[string]string{"status": "'sent'", "attempts": "now()"}},
		"has a parameter":             {"", map[string]string{"status": "$1"}},
	} {
		config := o.config
		config.Custom.Mark = maps.Clone(c.mark)
		if c.where != "" {
			config.Custom.Where = c.where
		}
		if err := o.open(t, config).Check(t.Context()); err == nil || !strings.Contains(err.Error(), says) || !errors.Is(err, buffer.ErrNotReady) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
}

// TestMark_Sinks: the last sink marks the row. Replays join the claim that still has the event, and take the mark off where none has.
func TestMark_Sinks(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivitySinks(t, key, "")
		check(t, o.Close())
		o.exec(t, "ALTER TABLE things ADD COLUMN done_at timestamptz")
		o.config.Custom.Where, o.config.Custom.Mark = "done_at IS NULL", map[string]string{"done_at": "now()"}
		o.Buffer = o.open(t, o.config)
		const events = "SELECT coalesce(string_agg(activity::text, ',' ORDER BY activity), '') || '/' || (SELECT count(*) FROM relay.outbox_batches) FROM things WHERE done_at IS NULL"
		o.activity(t, 1, "a.odd", "1")
		o.activity(t, 2, "b.odd", "1")
		routeAll(t, o.Buffer, "[all odd]")
		replay := func(want int) {
			t.Helper()
			if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != want || err != nil {
				t.Fatalf("replayed %d, %v; want %d", n, err, want)
			}
		}
		bury := func(sink string, topics ...string) {
			t.Helper()
			check(t, o.Sink(sink).Settle(t.Context(), takeOverOf(t, o.Sink(sink), topics...), []buffer.Outcome{{Verdict: buffer.Dead, Error: "refused"}}))
		}
		bury("odd", "a.odd", "b.odd")
		o.expect(t, events, "1,2/1")
		replay(2)
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd", "b.odd"))
		o.expect(t, events, "1,2/1")
		bury("odd", "a.odd", "b.odd")
		o.expect(t, events, "/0")
		o.expect(t, "SELECT count(*)::text FROM things WHERE group_id IS NULL", "2")

		o.exec(t, "DELETE FROM things WHERE activity = 2") // the journal is pruned
		replay(2)
		replay(0)
		o.wantAgreement(t, "a replay")
		o.expect(t, events, "1,2/1")
		deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "a.odd", "b.odd"))
		o.expect(t, events, "/0")
		o.expect(t, "SELECT count(*)::text FROM things WHERE group_id IS NULL", "2")
	})
}

// TestMark_SinksChanged: a row changes after one sink has it. It is marked in a version that all sinks have read, and otherwise sent to all of them again.
func TestMark_SinksChanged(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivitySinks(t, key, "")
		check(t, o.Close())
		o.exec(t, "ALTER TABLE things ADD COLUMN done_at timestamptz")
		o.config.Custom.Where, o.config.Custom.Mark = "done_at IS NULL", map[string]string{"done_at": "now()"}
		o.Buffer = o.open(t, o.config)
		for i, topic := range []string{"a.odd", "b.odd", "c.odd"} {
			o.activity(t, i+1, topic, "1")
		}
		o.exec(t, "INSERT INTO activities VALUES (9, 'changed.odd', '2')")
		routeAll(t, o.Buffer, "[all odd]")
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd", "b.odd", "c.odd"))
		o.exec(t, "UPDATE things SET activity = 9 WHERE activity = 2")
		batch := takeOverOf(t, o.Sink("odd"), "a.odd", "changed.odd", "c.odd")
		ids := batch.IDs()
		check(t, o.Sink("odd").Settle(t.Context(), batch, []buffer.Outcome{
			{Verdict: buffer.Delivered, IDs: ids[:1]}, {Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID()},
		}))
		deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "changed.odd", "c.odd"))
		const waiting = "SELECT coalesce(string_agg(activity::text, ',' ORDER BY activity), '') || '/' || (SELECT count(*) FROM relay.outbox_batches) FROM things WHERE done_at IS NULL AND group_id IS NULL"
		o.expect(t, waiting, "9/0")
		o.expect(t, "SELECT count(*)::text FROM things WHERE group_id IS NULL AND done_at IS NOT NULL", "2")

		o.Buffer = o.open(t, o.config) // a relay that starts looks at everything
		_, err := o.CountBacklog(t.Context(), 10)
		check(t, err)
		routeAll(t, o.Buffer, "[all odd]")
		for _, sink := range []string{"all", "odd"} {
			deliverAll(t, o.Sink(sink), takeOverOf(t, o.Sink(sink), "changed.odd"))
		}
		o.expect(t, waiting, "/0")
		o.wantAgreement(t, "marks")
	})
}

// TestMark_Reset: the application takes back a mark that is not there yet. Its UPDATE changes no value.
func TestMark_Reset(t *testing.T) {
	t.Parallel()
	o := newJournal(t, 2)
	b := o.claim(t, 10)
	o.exec(t, "UPDATE journal SET status = 'new' WHERE id = 5")
	o.exec(t, "BEGIN; SELECT FROM journal WHERE id = 4 FOR UPDATE; COMMIT") // a lock is no change
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Delivered})
	if got := o.journal(t); got != "sent1! new0" {
		t.Fatalf("the journal says %q", got)
	}
}
