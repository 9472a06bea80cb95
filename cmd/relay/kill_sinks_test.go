package main

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
		"custom table":  `url: %q, table: things, project: "SELECT e.id, p.topic, to_jsonb(p) AS payload FROM {events} e JOIN parents p ON p.id = e.parent"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killSinks(t, source)
		})
	}
}

// killSinks kills with events in the relay's table, or as many in the custom table things.
func killSinks(t *testing.T, source string) {
	redis, nats, db := redisStream(t), jetStream(t), newDatabase(t)
	left := "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)"
	if strings.Contains(source, "things") {
		db.exec("CREATE TABLE parents (id bigint PRIMARY KEY, topic text)")
		db.exec("CREATE TABLE things (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent bigint, group_id uuid)")
		db.exec("INSERT INTO parents SELECT i, 'orders' FROM generate_series(1, $1::int) i", killEvents)
		db.exec("INSERT INTO things (parent) SELECT i FROM generate_series(1, $1::int) i", killEvents)
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
