package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// customSQL creates a custom table with an integer or a uuid key. One parent in a hundred is missing.
const customSQL = `
CREATE TABLE activities (id bigint PRIMARY KEY, lead text NOT NULL);
CREATE TABLE "Activity Events" ("The Id" %s PRIMARY KEY, activity_id bigint NOT NULL, group_id uuid);
INSERT INTO activities SELECT i, 'lead ' || i FROM generate_series(1, %[2]d) i WHERE i %% 100 <> 0;
INSERT INTO "Activity Events" (activity_id) SELECT i FROM generate_series(1, %[2]d) i`

const customSource = `pipelines:
  - name: activities
    source:
      url: %q
      table: Activity Events
      schema: relay
      id: The Id
      %s
      project: |
        SELECT e."The Id" AS id, 'orders' AS topic, a.lead AS key, to_jsonb(a) AS payload
        FROM {events} e JOIN activities a ON a.id = e.activity_id
    batch_size: 50
    lease: 1s
    %s
admin: {listen: ""}
`

const (
	integerKey = "bigint GENERATED ALWAYS AS IDENTITY"
	uuidKey    = "uuid DEFAULT gen_random_uuid()"

	// A marked row has been sent once, and history never.
	marks     = "where: sent_at IS NULL\n      done: mark\n      mark: {sent_at: now(), sends: sends + 1}"
	markedSQL = `
ALTER TABLE "Activity Events" ADD COLUMN sent_at timestamptz, ADD COLUMN sends integer NOT NULL DEFAULT 0;
CREATE INDEX ON "Activity Events" ("The Id") WHERE sent_at IS NULL;
INSERT INTO "Activity Events" (activity_id, sent_at, sends) SELECT i, now(), 1 FROM generate_series(1, 1000) i`

	oneSink  = "sink: {url: %[1]q}"
	twoSinks = "sinks: [{name: log, url: %[1]q}, {name: second, url: %[1]q, stream: second, batch_size: 20}]"
)

// A relay is killed while it drains a custom table. Events with a parent arrive once at each sink, the others become dead letters
// once. Rows are deleted, or marked once.
func TestKill9_CustomTable(t *testing.T) {
	t.Parallel()
	const events, kills = 15_000, 6
	for name, of := range map[string]struct {
		key, sinks string
		streams    []string
		marks      string
	}{
		"integer":            {integerKey, oneSink, []string{"orders"}, ""},
		"uuid":               {uuidKey, oneSink, []string{"orders"}, ""},
		"integer, two sinks": {integerKey, twoSinks, []string{"orders", "second"}, ""},
		"uuid, two sinks":    {uuidKey, twoSinks, []string{"orders", "second"}, ""},
		"marked":             {integerKey, oneSink, []string{"orders"}, marks},
		"marked, two sinks":  {integerKey, twoSinks, []string{"orders", "second"}, marks},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to, db := redisStream(t), newDatabase(t)
			ddl, left := fmt.Sprintf(customSQL, of.key, events), `SELECT (SELECT count(*) FROM "Activity Events") + (SELECT count(*) FROM relay.outbox_batches)`
			if of.marks != "" {
				ddl += ";" + markedSQL
				left = `SELECT (SELECT count(*) FROM "Activity Events" WHERE sent_at IS NULL OR group_id IS NOT NULL) + (SELECT count(*) FROM relay.outbox_batches)`
			}
			for statement := range strings.SplitSeq(ddl, ";\n") {
				db.exec(statement)
			}
			path := write(t, strings.Replace(fmt.Sprintf(customSource, db.url, of.marks, fmt.Sprintf(of.sinks, to.url)), "Activity Events\n", "'\"Activity Events\"'\n", 1))
			do(t, nil, "migrate", "-c", path).want(t, 0, "activities: applied schema relay, 0001_", "")
			for range kills {
				r := start(t, nil, "run", "-c", path)
				waitForMore(t, to, events-events/100)
				r.signal(os.Kill)
				r.exit()
			}
			r := start(t, nil, "run", "-c", path)
			r.waitForLog("pipeline runs")
			wait(t, 2*time.Minute, func() error {
				if n := db.count(left); n != 0 {
					return fmt.Errorf("%d rows are left in buffer and ledger", n)
				}
				return nil
			})
			r.signal(syscall.SIGTERM)
			if code := r.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			var want []string
			for i := 1; i <= events; i++ {
				if i%100 != 0 {
					want = append(want, fmt.Sprintf("lead %d", i))
				}
			}
			slices.Sort(want)
			for _, stream := range of.streams {
				entries, err := connect(t, to.url).XRange(t.Context(), stream, "-", "+").Result()
				if err != nil {
					t.Fatal(err)
				}
				var arrived []string
				for _, e := range entries {
					arrived = append(arrived, e.Values["key"].(string))
				}
				slices.Sort(arrived)
				if diff := cmp.Diff(want, arrived); diff != "" {
					t.Errorf("arrived in stream %s (-want +got):\n%.2000s", stream, diff)
				}
			}
			if of.marks != "" {
				if n := db.count(`SELECT count(*) FROM "Activity Events" WHERE sends = 1`); n != events+1000 {
					t.Errorf("%d rows were marked once, want all %d", n, events+1000)
				}
			}
			const deadSQL = `SELECT count(*) FILTER (WHERE error = 'not projected' AND (event_row->>'activity_id')::int % 100 = 0) - 1000 * count(*) FILTER (WHERE error <> 'not projected') FROM relay.outbox_dead_letters`
			if n := db.count(deadSQL); n != events/100 {
				t.Errorf("%d dead letters of events without a parent, want %d", n, events/100)
			}
		})
	}
}
