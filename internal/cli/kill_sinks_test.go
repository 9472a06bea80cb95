package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Two relays with three sinks are killed in turn during a drain. Every event arrives once at the Redis stream and once at JetStream, and
// an API that is not there costs them nothing.
func TestKill9_Sinks(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]string{
		"relay's table": "url: %q",
		"custom table":  `url: %q, table: things, project: "SELECT e.id, p.topic, PAYLOAD AS payload FROM {events} e JOIN parents p ON p.id = e.parent"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDatabase(t, func(t *testing.T, db *database) { killSinks(t, db, source) })
		})
	}
}

// killSinks kills with events in the relay's table, or as many in the custom table things.
func killSinks(t *testing.T, db *database, source string) {
	redis, nats := redisStream(t), jetStream(t)
	left := "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)"
	if strings.Contains(source, "things") {
		payload, key, group, numbers := "to_jsonb(p)", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "uuid", "SELECT generate_series(1, $1::int)"
		if db.file != nil {
			payload, key, group = "json_object('id', p.id)", "INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT"
			numbers = "WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ?1) SELECT n FROM i"
		}
		source = strings.Replace(source, "PAYLOAD", payload, 1)
		db.exec("CREATE TABLE parents (id bigint PRIMARY KEY, topic text)")
		db.exec("CREATE TABLE things (id " + key + ", parent bigint, group_id " + group + ")")
		db.exec("INSERT INTO parents (id) "+numbers, killEvents)
		db.exec("UPDATE parents SET topic = 'orders'")
		db.exec("INSERT INTO things (parent) SELECT id FROM parents ORDER BY id")
		left = strings.Replace(left, "outbox_events", "things", 1)
	} else {
		db.insert(killEvents)
	}
	path := write(t, fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: orders
    source: {`+source+`}
    batch_size: 50
    lease: 1s
    sinks:
      - {name: redis, url: %q}
      - {name: nats, url: %q, match: ["orders", "contacts.#"]}
      - {name: api, url: "http://127.0.0.1:9/batch", match: [contacts.*]}
`, db.url, redis.url, nats.url))
	if db.file != nil {
		do(t, nil, "migrate", "-c", path)
	}
	relays := []*relay{start(t, nil, "run", "-c", path), start(t, nil, "run", "-c", path)}
	for i := range 10 {
		waitForMore(t, []destination{redis, nats}[i%2], killEvents)
		relays[i%2].signal(os.Kill)
		relays[i%2].exit()
		relays[i%2] = start(t, nil, "run", "-c", path)
	}
	wait(t, 2*time.Minute, func() error {
		if n := db.count(left); n != 0 {
			return fmt.Errorf("%d rows are left in buffer and ledger", n)
		}
		return nil
	})
	finish(t, db, redis, path, killEvents)
	finish(t, db, nats, path, killEvents)
	for _, r := range relays {
		r.signal(syscall.SIGTERM)
		if code := r.exit(); code != 0 {
			t.Errorf("exit status %d", code)
		}
	}
}
