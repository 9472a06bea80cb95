package cli

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

var replayedBefore = regexp.MustCompile(`of before (\S+) again`)

// `relay replay` and the relay are killed again and again. With the same --until, the archive is sent once more, and each event of it once.
func TestKill9_Replay(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, testKill9Replay)
}

func testKill9Replay(t *testing.T, db *database) {
	t.Helper()
	stream := redisStream(t)
	path := write(t, fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: orders\n    source: {url: %q}\n    archive: {table: kept}\n    batch_size: 50\n    lease: 1s\n    sink: {url: %q}\n",
		db.url, stream.url))
	const events = 6_000
	do(t, nil, "migrate", "-c", path)
	db.insert(events)
	r := start(t, nil, "run", "-c", path)
	archived := func(want int) {
		t.Helper()
		testserver.Eventually(t, func() error {
			if n := db.count("SELECT count(*) FROM kept"); n != want {
				return fmt.Errorf("%d events are archived, want %d", n, want)
			}
			return nil
		})
	}
	archived(events)
	dry := do(t, nil, "replay", "-c", path, "--since", "1h", "--dry-run")
	dry.want(t, 0, "orders: would send 6,000 events of before ", "")
	until := replayedBefore.FindStringSubmatch(dry.stdout)[1]
	for i := range 3 {
		replay := start(t, nil, "replay", "-c", path, "--since", "1h", "--until", until, "--rate", "1500", "--yes")
		testserver.Eventually(t, func() error {
			n := db.count("SELECT count(*) FROM kept") + db.count("SELECT count(*) FROM outbox_events")
			if n < events+1200*(i+1) {
				return fmt.Errorf("%d events are archived or back", n)
			}
			return nil
		})
		replay.signal(os.Kill)
		replay.exit()
		r.signal(os.Kill)
		r.exit()
		r = start(t, nil, "run", "-c", path)
	}
	do(t, nil, "replay", "-c", path, "--since", "1h", "--until", until, "--yes").want(t, 0, "orders: sends ", "")
	archived(2 * events)
	do(t, nil, "replay", "-c", path, "--since", "1h", "--until", until).want(t, 0, "orders: would send 0 events of before "+until+" again; left out 6,000 events that were delivered again since\n", "")
	sent := map[int64]int{}
	for _, id := range stream.ids(t) {
		sent[id]++
	}
	if len(sent) != events {
		t.Errorf("%d events were sent, want %d", len(sent), events)
	}
	for id, n := range sent {
		if n != 2 {
			t.Errorf("event %d was sent %d times, want 2", id, n)
		}
	}
	r.signal(os.Kill)
	r.exit()
}

// The command counts first, names what is wrong, and changes nothing with --dry-run.
func TestReplay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	stream := redisStream(t)
	api := "{name: api, url: 'http://127.0.0.1:9/batch', match: [orders]}"
	path := write(t, fillConfig(db, fmt.Sprintf("{name: redis, url: %q}", stream.url), api))
	for args, text := range map[string]string{
		"":                             "--since is missing; expected a time like",
		"--since yesterday":            `--since is "yesterday"; expected a time like`,
		"--since 1h --until yesterday": `--until is "yesterday"; expected a time like`,
		"--since 1h --until 2h":        "--until is not after --since",
		"--since 1h --rate -1":         "--rate is -1; expected",
		"--since 1h --topic a..b":      "--topic: ",
		"--since 1h --pipeline x":      `--pipeline is "x"; expected orders`,
	} {
		do(t, nil, append([]string{"replay", "-c", path}, strings.Fields(args)...)...).want(t, 2, "", text)
	}
	do(t, nil, "migrate", "-c", path)
	none := write(t, strings.Replace(fillConfig(db, fmt.Sprintf("{name: redis, url: %q}", stream.url), api), "    archive: {table: kept}\n", "", 1))
	do(t, nil, "replay", "-c", none, "--since", "1h").want(t, 2, "", "pipeline orders has no archive")
	r := start(t, nil, "run", "-c", path)
	r.waitForLog("pipeline runs")
	db.exec("INSERT INTO kept (id, topic, payload, created_at, group_id) SELECT -1, 'orders', '{}', '2026-01-01T00:00:00.000Z', '01234567-89ab-7def-8123-456789abcdef'")
	db.exec("INSERT INTO kept (id, topic, payload, created_at, group_id) SELECT -2, 'other', '{}', '2026-01-01T00:00:00.000Z', '01234567-89ab-7def-8123-456789abcdef'")
	replay := func(args ...string) result {
		t.Helper()
		return do(t, nil, append([]string{"replay", "-c", path, "--since", "1h"}, args...)...)
	}
	replay("--dry-run").want(t, 0, "orders: would send 2 events of before ", "")
	replay("--sink", "crm").want(t, 1, "", `is "crm"; expected api or redis`)
	replay("--sink", "api").want(t, 0, "orders: sink api gets new Idempotency-Keys with the old event ids; an API that drops ids that it knows drops these events\n", "")
	db.exec("INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, sink) SELECT 'orders', -2, 'other', '{}', '2026-01-01T00:00:00.000Z', '01234567-89ab-7def-8123-456789abcdef', 0, 'no sink', '*'")
	replay("--dry-run").want(t, 0, "orders: would send 0 events of before ", "")
	replay("--dry-run").want(t, 0, "; left out 1 event that is a dead letter: relay dead replay sends those that are open\n", "")
	db.exec("DELETE FROM outbox_dead_letters WHERE event_id = -2")
	replay("--topic", "ord*", "--dry-run").want(t, 2, "", "--topic: ")
	replay("--topic", "other").want(t, 0, "orders: sends 1 event of before ", "")
	replay().want(t, 0, "left out ", "")
	r.signal(os.Kill)
	r.exit()
}
