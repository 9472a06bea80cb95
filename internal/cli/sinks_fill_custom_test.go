package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
)

// fillThings creates a custom table whose rows have a parent each, and returns what makes its configuration.
func fillThings(t *testing.T, db *database, key, more string) func(sinks ...string) (path string) {
	t.Helper()
	db.exec("CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text DEFAULT 'orders')")
	db.exec("CREATE TABLE things (id " + key + " PRIMARY KEY, parent bigint, group_id uuid)")
	db.exec("CREATE INDEX ON things (id) WHERE group_id IS NULL")
	return func(sinks ...string) string {
		return write(t, fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: things
    source:
      url: %q
      table: things
      schema: relay
      project: SELECT e.id, p.topic, p.id::text AS key, to_jsonb(p) AS payload FROM {events} e JOIN parents p ON p.id = e.parent
    batch_size: 25
    lease: 1s
    %s
    sinks:
      - %s
`, db.url, more, strings.Join(sinks, "\n      - ")))
	}
}

func (d *database) insertThings(n int) {
	d.exec("WITH p AS (INSERT INTO parents (topic) SELECT 'orders' FROM generate_series(1, $1::int) RETURNING id) INSERT INTO things (parent) SELECT id FROM p", n)
}

// arrivedOnce fails the test unless the stream has each of n parents once.
func arrivedOnce(t *testing.T, name string, to destination, n int) {
	t.Helper()
	entries, err := connect(t, to.url).XRange(t.Context(), "orders", "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	arrived := map[string]int{}
	for _, e := range entries {
		arrived[e.Values["key"].(string)]++
	}
	for key, times := range arrived {
		if times != 1 {
			t.Errorf("%s: event %s arrived %d times", name, key, times)
		}
	}
	if len(arrived) != n {
		t.Errorf("%s: %d events arrived, want %d", name, len(arrived), n)
	}
}

// As TestKill9_SinksFill, with a custom table. The sink that is added gets what waits for one that is away.
func TestKill9_SinksFillCustom(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"integer": integerKey, "uuid": uuidKey} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, late, db := redisStream(t), redisStream(t), newDatabase(t)
			config := fillThings(t, db, key, "")
			redis, api, added := fmt.Sprintf("{name: redis, url: %q}", first.url), "{name: api, url: 'http://127.0.0.1:9/batch'}", fmt.Sprintf("{name: late, url: %q}", late.url)
			old, path := config(redis, api), config(redis, api, added)
			total := 2_000
			db.insertThings(total)
			do(t, nil, "migrate", "-c", old)
			r := start(t, nil, "run", "-c", old)
			testserver.Eventually(t, func() error {
				if n := db.count("SELECT count(*) FROM relay.outbox_batches WHERE sink <> 'api'"); n > 0 || first.count(t.Context()) != total {
					return fmt.Errorf("%d batches are not settled, and %d events arrived", n, first.count(t.Context()))
				}
				return nil
			})
			r.signal(os.Kill)
			r.exit()
			relays := []*relay{start(t, nil, "run", "-c", path), start(t, nil, "run", "-c", path)}
			for _, r := range relays {
				r.waitForLog("pipeline runs")
			}
			for i := range 3 {
				db.insertThings(100)
				total += 100
				got := func() int {
					return db.count("SELECT coalesce(sum(events), 0) FROM relay.outbox_batches WHERE sink = 'late'") + late.count(t.Context())
				}
				has := got()
				fill := start(t, nil, "sinks", "fill", "late", "-c", path, "--since", "24h", "--yes")
				testserver.Eventually(t, func() error {
					if n := got(); n < min(has+500, total) {
						return fmt.Errorf("%d events, want more than %d", n, has)
					}
					return nil
				})
				fill.signal(os.Kill)
				fill.exit()
				relays[i%2].signal(os.Kill)
				relays[i%2].exit()
				relays[i%2] = start(t, nil, "run", "-c", path)
			}
			do(t, nil, "sinks", "fill", "late", "-c", path, "--since", "24h")
			do(t, nil, "sinks", "fill", "late", "-c", path, "--since", "24h").want(t, 0, "things: sink late lacks 0 events\n", "")
			do(t, nil, "verify", "-c", path).want(t, 0, "agree", "")
			do(t, nil, "sinks", "drop", "api", "-c", path, "--yes")
			for _, r := range relays {
				r.waitForLog("pipeline runs")
			}
			wait(t, 2*time.Minute, func() error {
				if n := db.count("SELECT (SELECT count(*) FROM things) + (SELECT count(*) FROM relay.outbox_batches)"); n != 0 {
					return fmt.Errorf("%d rows are left in buffer and ledger", n)
				}
				return nil
			})
			for _, r := range relays {
				r.signal(syscall.SIGTERM)
				r.exit()
			}
			arrivedOnce(t, "redis", first, total)
			arrivedOnce(t, "late", late, total)
		})
	}
}

// What a fill of a custom table leaves out is said, and how to get it.
func TestSinksFill_Custom(t *testing.T) {
	t.Parallel()
	to, db := redisStream(t), newDatabase(t)
	config := fillThings(t, db, integerKey, "archive: {table: kept}")
	redis, api := fmt.Sprintf("{name: redis, url: %q}", to.url), "{name: api, url: 'http://127.0.0.1:9/batch', match: [orders]}"
	waits := "{name: waits, url: 'http://127.0.0.1:9/other'}"
	old, path := config(redis, waits), config(redis, waits, api)
	db.insertThings(30)
	do(t, nil, "migrate", "-c", old)
	r := start(t, nil, "run", "-c", old)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT coalesce(sum(events), 0) FROM relay.outbox_batches WHERE sink = 'waits' AND state = 'waiting'"); n != 30 {
			return fmt.Errorf("%d events wait", n)
		}
		return nil
	})
	r.signal(os.Kill)
	r.exit()
	r = start(t, nil, "run", "-c", path)
	r.waitForLog("pipeline runs")
	fill := func(args ...string) result {
		t.Helper()
		return do(t, nil, append([]string{"sinks", "fill", "api", "-c", path, "--since", "24h"}, args...)...)
	}
	const archive = "things: left out the archive: that of a custom table has what was sent, not the rows\n"
	db.exec("DELETE FROM parents WHERE id = 7")
	db.exec("UPDATE parents SET topic = 'other' WHERE id = 8")
	const rejected = "things: left out 1 event, for which source.project returns no row, or a wrong one\n"
	fill("--dry-run").want(t, 0, "things: sink api lacks 28 events\n"+rejected+archive, "")
	fill().want(t, 0, "things: gave sink api 28 events\n", "")
	fill().want(t, 0, "things: sink api lacks 0 events\n"+archive, "")
	r.signal(os.Kill)
	r.exit()
}

// A pipeline that keeps order says why it has no fill, and what to do.
func TestSinksFill_Order(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, order := range []string{"    order: key\n    sinks:\n      - {name: a, url: 'http://127.0.0.1:9/a'}\n", "    sinks:\n      - {name: a, url: 'http://127.0.0.1:9/a', order: key}\n"} {
		path := write(t, fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: orders\n    source: {url: %q}\n%s      - {name: b, url: 'http://127.0.0.1:9/b', order: none}\n", db.url, order))
		do(t, nil, "migrate", "-c", path)
		r := start(t, nil, "run", "-c", path)
		testserver.Eventually(t, func() error {
			if n := db.count("SELECT count(*) FROM outbox_sinks WHERE match = '{}'"); n != 2 {
				return fmt.Errorf("%d sinks are registered", n)
			}
			return nil
		})
		for _, name := range []string{"a", "b"} {
			do(t, nil, "sinks", "fill", name, "-c", path, "--since", "1h").want(t, 2, "", "orders: sink "+name+" cannot be filled, because the pipeline or one of its sinks has order: key, "+
				"and earlier events would arrive behind later ones of their keys. Set order: none for all of them until")
		}
		r.signal(os.Kill)
		r.exit()
	}
}
