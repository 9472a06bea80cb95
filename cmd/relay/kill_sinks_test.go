package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

// Two relays with three sinks are killed in turn during a drain. Every event arrives once at the Redis stream and once at JetStream, and
// an API that is not there costs them nothing.
func TestKill9_Sinks(t *testing.T) {
	t.Parallel()
	redis, nats, db := redisStream(t), jetStream(t), newDatabase(t)
	db.insert(killEvents)
	path := write(t, fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: orders
    source: {url: %q}
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
	finish(t, db, redis, path, killEvents)
	finish(t, db, nats, path, killEvents)
	for _, r := range relays {
		r.signal(syscall.SIGTERM)
		if code := r.exit(); code != 0 {
			t.Errorf("exit status %d", code)
		}
	}
}
