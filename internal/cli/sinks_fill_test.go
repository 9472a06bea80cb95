package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

func fillConfig(db *database, sinks ...string) string {
	return fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: orders\n    source: {url: %q}\n    archive: {table: kept}\n    batch_size: 25\n    lease: 1s\n    sinks:\n      - %s\n",
		db.url, strings.Join(sinks, "\n      - "))
}

// `relay sinks fill` and two relays are killed again and again. Two sinks that are added late get every event once: those in the archive, those that wait for a sink that is
// away, and those that are inserted meanwhile. The other sink gets each of them once, too.
func TestKill9_SinksFill(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, testKill9SinksFill)
}

func testKill9SinksFill(t *testing.T, db *database) {
	t.Helper()
	first, late, other := redisStream(t), redisStream(t), redisStream(t)
	redis, api, added := fmt.Sprintf("{name: redis, url: %q}", first.url), "{name: api, url: 'http://127.0.0.1:9/batch'}", fmt.Sprintf("{name: late, url: %q}\n      - {name: other, url: %q}", late.url, other.url)
	archived, old := write(t, fillConfig(db, redis)), write(t, fillConfig(db, redis, api))
	path := write(t, fillConfig(db, redis, api, added))
	const events = 6_000 // of each kind
	total := 0
	for _, config := range []string{archived, old} {
		do(t, nil, "migrate", "-c", config)
		db.insert(events)
		total += events
		r := start(t, nil, "run", "-c", config)
		testserver.Eventually(t, func() error {
			if n := first.count(t.Context()); n != total {
				return fmt.Errorf("%d events arrived, want %d", n, total)
			}
			return nil
		})
		testserver.Eventually(t, func() error {
			if n := db.count("SELECT count(*) FROM outbox_batches WHERE sink = 'redis'"); n > 0 {
				return fmt.Errorf("%d batches are not settled", n)
			}
			return nil
		})
		r.signal(os.Kill)
		r.exit()
	}
	relays := []*relay{start(t, nil, "run", "-c", path), start(t, nil, "run", "-c", path)}
	for _, r := range relays {
		r.waitForLog("pipeline runs")
	}
	for i := range 6 {
		db.insert(100)
		total += 100
		sink, stream := "late", late
		if i >= 2 && i < 5 { // late has a part of the events by then
			sink, stream = "other", other
		}
		lacks := func() string {
			return do(t, nil, "sinks", "fill", sink, "-c", path, "--since", "24h", "--dry-run").stdout
		}
		before := lacks()
		fill := start(t, nil, "sinks", "fill", sink, "-c", path, "--since", "24h", "--yes")
		got := func() int {
			return db.count("SELECT count(*) FROM outbox_batches WHERE sink = '"+sink+"'") + stream.count(t.Context())
		}
		has := got()
		testserver.Eventually(t, func() error {
			if n := got(); n <= has+700*(i%3) && !strings.Contains(before, "lacks 0") {
				return fmt.Errorf("%d batches and events, want more than %d", n, has+700*(i%3))
			}
			return nil
		})
		fill.signal(os.Kill)
		fill.exit()
		t.Log(before, lacks())
		relays[i%2].signal(os.Kill)
		relays[i%2].exit()
		relays[i%2] = start(t, nil, "run", "-c", path)
	}
	for _, sink := range []string{"late", "other"} {
		do(t, nil, "sinks", "fill", sink, "-c", path, "--since", "24h")
		do(t, nil, "sinks", "fill", sink, "-c", path, "--since", "24h").want(t, 0, "orders: sink "+sink+" lacks 0 events\n", "")
	}
	for _, r := range relays {
		r.signal(os.Kill)
		r.exit()
	}
	do(t, nil, "sinks", "drop", "api", "-c", path, "--yes")
	done := write(t, fillConfig(db, redis, added))
	finish(t, db, first, done, total)
	finish(t, db, late, done, total)
	finish(t, db, other, done, total)
	if n := db.count("SELECT count(DISTINCT id) FROM kept"); n != total {
		t.Errorf("%d events are archived, want %d", n, total)
	}
}

// The command counts first, names what is wrong, and changes nothing with --dry-run.
func TestSinksFill(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, testSinksFill)
}

func testSinksFill(t *testing.T, db *database) {
	t.Helper()
	first := redisStream(t)
	redis := fmt.Sprintf("{name: redis, url: %q}", first.url)
	old, path := write(t, fillConfig(db, redis)), write(t, fillConfig(db, redis, "{name: api, url: 'http://127.0.0.1:9/batch', match: [orders]}"))
	do(t, nil, "migrate", "-c", old)
	db.insert(30)
	db.exec("INSERT INTO outbox_events (topic, payload) VALUES ('other', '{}')")
	r := start(t, nil, "run", "-c", old)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM kept"); n != 31 {
			return fmt.Errorf("%d events are archived", n)
		}
		return nil
	})
	r.signal(os.Kill)
	r.exit()
	r = start(t, nil, "run", "-c", path)
	r.waitForLog("pipeline runs")
	for args, text := range map[string]string{
		"api":                         "--since is missing; expected a time like",
		"api --since yesterday":       `--since is "yesterday"; expected a time like`,
		"api --since -1h":             `--since is "-1h"; expected`,
		"none --since 1h":             `no sink is "none"; expected api or redis`,
		"--since 1h":                  "0 names are given",
		"api --since 1h --pipeline x": "x",
	} {
		do(t, nil, append([]string{"sinks", "fill", "-c", path}, strings.Fields(args)...)...).want(t, 2, "", text)
	}
	fill := func(args ...string) result {
		t.Helper()
		return do(t, nil, append([]string{"sinks", "fill", "api", "-c", path, "--since"}, args...)...)
	}
	fill("0s").want(t, 0, "orders: sink api lacks 0 events\n", "")
	fill("1h", "--dry-run").want(t, 0, "orders: sink api lacks 30 events, 30 of them from the archive\n", "")
	fill("2026-01-31").want(t, 0, "orders: gave sink api 30 events, 30 of them from the archive\n", "")
	fill("2026-01-31T08:00:00+01:00", "--yes").want(t, 0, "orders: sink api lacks 0 events\n", "")
	do(t, nil, "status", "-c", path).want(t, 0, "  api          30 ", "")
	do(t, nil, "verify", "-c", path).want(t, 0, "agree", "")
	r.signal(os.Kill)
	r.exit()
}
