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

	oneSink  = "sink: {url: %[1]q}"
	twoSinks = "sinks: [{name: log, url: %[1]q}, {name: second, url: %[1]q, stream: second, batch_size: 20}]"
)

// A relay is killed while it drains a custom table. Events with a parent arrive once at each sink, the others become dead letters
// once.
func TestKill9_CustomTable(t *testing.T) {
	t.Parallel()
	const events, kills = 15_000, 6
	for name, of := range map[string]struct {
		key, sinks string
		streams    []string
	}{
		"integer":            {integerKey, oneSink, []string{"orders"}},
		"uuid":               {uuidKey, oneSink, []string{"orders"}},
		"integer, two sinks": {integerKey, twoSinks, []string{"orders", "second"}},
		"uuid, two sinks":    {uuidKey, twoSinks, []string{"orders", "second"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to, db := redisStream(t), newDatabase(t)
			for statement := range strings.SplitSeq(fmt.Sprintf(customSQL, of.key, events), ";\n") {
				db.exec(statement)
			}
			path := write(t, strings.Replace(fmt.Sprintf(customSource, db.url, fmt.Sprintf(of.sinks, to.url)), "Activity Events\n", "'\"Activity Events\"'\n", 1))
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
				if n := db.count(`SELECT (SELECT count(*) FROM "Activity Events") + (SELECT count(*) FROM relay.outbox_batches)`); n != 0 {
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
			const deadSQL = `SELECT count(*) FILTER (WHERE error = 'not projected' AND (event_row->>'activity_id')::int % 100 = 0) - 1000 * count(*) FILTER (WHERE error <> 'not projected') FROM relay.outbox_dead_letters`
			if n := db.count(deadSQL); n != events/100 {
				t.Errorf("%d dead letters of events without a parent, want %d", n, events/100)
			}
		})
	}
}
