package cli

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// TestNotices: what running relays say of themselves is in status and doctor, once for a sink, although they make progress.
func TestNotices(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	db.exec(`INSERT INTO outbox_relays (buffer, sink, owner, version, seen_at, delivered, dead, last_minute, notice) VALUES
		('public.outbox_events', '', 'a/17/orders', 'v1', clock_timestamp(), 5, 0, 5, E'the sink is slow\nits answers are odd'),
		('public.outbox_events', '', 'b/18/orders', 'v1', clock_timestamp() - interval '1 second', 5, 0, 5, 'the sink is slow'),
		('public.outbox_events', '', 'c/19/orders', 'v1', clock_timestamp() - interval '1 hour', 5, 0, 5, 'was slow')`)
	status := do(t, nil, "status", "-c", path)
	status.want(t, 0, "orders: 2 relays (a/17, b/18): the sink is slow\norders: relay a/17: its answers are odd\n", "")
	doctor := do(t, nil, "doctor", "-c", path)
	for _, want := range []string{"WARN  relays", "2 relays (a/17, b/18): the sink is slow\n", "relay a/17: its answers are odd\n"} {
		doctor.want(t, 0, want, "")
	}
	for _, r := range []result{status, doctor} {
		if strings.Count(r.stdout, "the sink is slow") != 1 || strings.Contains(r.stdout, "was slow") {
			t.Errorf("the output is %s", r.stdout)
		}
	}
	do(t, nil, "status", "-c", path, "--json").want(t, 0, `"notices": [`, "")
}

// TestNotices_Archive: a relay without an archive says that other ones copied what they delivered, until archiving is ended on purpose.
func TestNotices_Archive(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		t.Helper()
		runs := func(archive string) (path string, stop func()) {
			t.Helper()
			path = write(t, onePipeline("orders", db.url, "stdout:", archive))
			do(t, nil, "migrate", "-c", path).want(t, 0, "orders: ", "")
			r := start(t, nil, "run", "-c", path)
			r.waitForLog("pipeline runs")
			return path, func() {
				r.signal(syscall.SIGTERM)
				r.exit()
			}
		}
		remembered := func(want int) {
			t.Helper()
			testserver.Eventually(t, func() error {
				if n := db.count("SELECT count(*) FROM outbox_buffers WHERE archive = 'outbox_archive'"); n != want {
					return fmt.Errorf("%d buffers have an archive; want %d", n, want)
				}
				return nil
			})
		}
		const says = "the configuration has no archive, and relays of this table copied delivered events to outbox_archive: what is delivered now is deleted without a copy"
		_, stop := runs("    archive: {table: outbox_archive}")
		remembered(1)
		stop()
		path, stop := runs("")
		testserver.Eventually(t, func() error {
			if r := do(t, nil, "status", "-c", path); !strings.Contains(r.stdout, says) {
				return fmt.Errorf("status prints\n%s", r.stdout)
			}
			return nil
		})
		stop()
		do(t, nil, "doctor", "-c", path).want(t, 0, says, "")
		path, stop = runs("    archive: {enabled: false}")
		remembered(0)
		stop()
		for _, path := range []string{path, write(t, onePipeline("orders", db.url, "stdout:"))} {
			if r := do(t, nil, "doctor", "-c", path); strings.Contains(r.stdout, says) {
				t.Errorf("after archiving was ended doctor prints\n%s", r.stdout)
			}
		}
	})
}

// TestNotices_Match: relays whose sink has another match than the one that was registered last say so, and those that run with an older file that takes
// topics from a sink.
func TestNotices_Match(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		t.Helper()
		file := func(match string) string {
			t.Helper()
			return write(t, fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: orders\n    source: {url: %q}\n    sinks:\n      - {name: all, url: \"stdout:\"}\n      - {name: audit, url: 'file://%s'%s}\n",
				db.url, filepath.Join(t.TempDir(), "audit"), match))
		}
		everything, narrow := file(""), file(", match: [orders.*]")
		do(t, nil, "migrate", "-c", everything).want(t, 0, "orders: ", "")
		runs := func(path string) *relay {
			t.Helper()
			db.exec("UPDATE outbox_sinks SET seen_at = NULL")
			r := start(t, nil, "run", "-c", path)
			testserver.Eventually(t, func() error { // it has registered its sinks
				if n := db.count("SELECT count(*) FROM outbox_sinks WHERE seen_at IS NOT NULL"); n != 2 {
					return fmt.Errorf("%d sinks are served; want 2", n)
				}
				return nil
			})
			return r
		}
		stop := func(r *relay) {
			t.Helper()
			r.signal(syscall.SIGTERM)
			r.exit()
		}
		const (
			differs = "sink audit: match is everything in the configuration, and orders.* as a relay has registered it last: events that only the first matches are not sent to the sink"
			changed = "sink audit: match changed from everything to orders.* on "
		)
		stop(runs(everything))
		old := runs(narrow)
		old.waitForLog(changed)
		testserver.Eventually(t, func() error {
			if r := do(t, nil, "status", "-c", everything); !strings.Contains(r.stdout, changed) {
				return fmt.Errorf("status prints\n%s", r.stdout)
			}
			return nil
		})
		stop(old)
		for _, command := range [][]string{{"doctor"}, {"sinks", "list"}} {
			do(t, nil, append(command, "-c", everything)...).want(t, 0, strings.TrimPrefix(differs, "sink audit: "), "")
			do(t, nil, append(command, "-c", narrow)...).want(t, 0, strings.TrimPrefix(changed, "sink audit: "), "")
		}
		stop(runs(everything))
		if r := do(t, nil, "doctor", "-c", everything); strings.Contains(r.stdout, "match") {
			t.Errorf("after a start with the right file doctor prints\n%s", r.stdout)
		}
	})
}

// TestGone: a relay that was killed is named for an hour.
func TestGone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	db.exec(`INSERT INTO outbox_relays (buffer, sink, owner, version, seen_at, delivered, dead, last_minute, stopped) VALUES
		('public.outbox_events', '', 'runs/17/orders', 'v1', clock_timestamp() + interval '1 hour', 5, 0, 5, false),
		('public.outbox_events', '', 'killed/18/orders', 'v2', clock_timestamp() - interval '30 minutes', 5, 0, 5, false),
		('public.outbox_events', '', 'old/19/orders', 'v2', clock_timestamp() - interval '2 hours', 5, 0, 5, false),
		('public.outbox_events', '', 'ended/20/orders', 'v2', clock_timestamp() - interval '29 minutes', 5, 0, 5, true)`)
	for _, command := range []string{"status", "doctor"} {
		r := do(t, nil, command, "-c", path)
		r.want(t, 0, "relay killed/18 (v2) reported last 30m ", "")
		if n := strings.Count(r.stdout, "did not stop in order"); n != 1 {
			t.Errorf("%s names %d relays:\n%s", command, n, r.stdout)
		}
	}
	db.exec(`INSERT INTO outbox_relays (buffer, sink, owner, version, seen_at, delivered, dead, last_minute, stopped)
		SELECT 'public.outbox_events', '', 'more' || n || '/1/orders', 'v2', clock_timestamp() - interval '40 minutes' - n * interval '1 minute', 5, 0, 5, false FROM generate_series(1, 6) n`)
	for _, command := range []string{"status", "doctor"} {
		do(t, nil, command, "-c", path).want(t, 0, "7 relays did not stop in order in the last hour: they were killed, hang, or cannot reach the database. They reported last: killed/18 30m ", "")
		do(t, nil, command, "-c", path).want(t, 0, " ago, and 2 more", "")
	}
	db.exec("DELETE FROM outbox_relays WHERE owner LIKE 'runs/%' OR owner LIKE 'more%'")
	do(t, nil, "status", "-c", path).want(t, 0, "orders: relay killed/18 (v2) reported last 30m ", "")
	db.exec("DELETE FROM outbox_relays WHERE owner LIKE 'ended/%'")
	do(t, nil, "status", "-c", path).want(t, 0, "; killed/18 did not stop in order: it was killed, or it runs and hangs, or cannot reach the database. > relay run -c ", "")
	do(t, nil, "status", "-c", path).want(t, 0, "; stop one that still runs before: it reads its secrets at its start\n", "")
}

// TestGone_Replaced: a relay that hangs now comes before those that were killed and started again.
func TestGone_Replaced(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	insert := func(owner, started, seen string) {
		db.exec(`INSERT INTO outbox_relays (buffer, sink, owner, version, started_at, seen_at, delivered, dead, last_minute, stopped) VALUES
			('public.outbox_events', '', '` + owner + `/orders', 'v1', clock_timestamp() - interval '` + started + `', clock_timestamp() - interval '` + seen + `', 5, 0, 5, false)`)
	}
	expect := func(want string) {
		t.Helper()
		for _, command := range []string{"status", "doctor"} {
			do(t, nil, command, "-c", path).want(t, 0, want, "")
		}
	}
	insert("vm/1", "2 hours", "50 minutes")
	insert("vm/2", "49 minutes", "35 minutes")
	insert("vm/3", "-26 minutes", "-1 hours") // it has run for 34 minutes, whenever it is asked
	expect("2 relays did not stop in order in the last hour, and as many started on their hosts since: they were killed, hang, or cannot reach the database. They reported last: vm/2 35m ")
	expect("s ago, vm/1 50m ")
	insert("vm/4", "2 hours", "10 minutes")
	expect("or cannot reach the database. They reported last: vm/4 10m ")
	expect("s ago; and, with as many started on their hosts since: vm/2 35m ")
	db.exec("DELETE FROM outbox_relays WHERE owner LIKE 'vm/1/%' OR owner LIKE 'vm/4/%'")
	expect("relay vm/2 (v1) reported last 35m ")
	expect("it was killed, hangs, or cannot reach the database; another relay started on its host since")
	insert("vm/1", "2 hours", "50 minutes")
	db.exec("DELETE FROM outbox_relays WHERE owner LIKE 'vm/3/%'")
	do(t, nil, "status", "-c", path).want(t, 0, "orders: no relay has reported for 35m ", "")
	expect("They reported last: vm/2 35m ")
	expect("s ago; and, with as many started on their hosts since: vm/1 50m ")
}

// TestGone_SeveralPipelines: a process that was killed is named once, and not for each of its pipelines.
func TestGone_SeveralPipelines(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:",
		"  - {name: crm, source: {url: \""+db.url+"\", table: crm_events}, sink: {url: \"stdout:\"}}",
		"  - {name: mail, source: {url: \""+db.url+"\", table: mail_events}, sink: {url: \"stdout:\"}}"))
	do(t, nil, "migrate", "-c", path).want(t, 0, "created table public.mail_events", "")
	killed := func(owner, pipeline, table string) {
		db.exec(`INSERT INTO outbox_relays (buffer, sink, owner, version, seen_at, delivered, dead, last_minute, stopped)
			VALUES ('public.` + table + `', '', '` + owner + "/" + pipeline + `', 'v2', clock_timestamp() - interval '30 minutes' - random() * interval '20 seconds', 5, 0, 5, false)`)
	}
	expect := func(want ...string) {
		t.Helper()
		for _, command := range []string{"status", "doctor"} {
			r := do(t, nil, command, "-c", path)
			for _, want := range want {
				r.want(t, 0, want, "")
			}
			if n := strings.Count(r.stdout, "did not stop in order"); n != len(want) {
				t.Errorf("%s says %d times which relays did not stop in order, want %d:\n%s", command, n, len(want), r.stdout)
			}
		}
	}
	for pipeline, table := range map[string]string{"orders": "outbox_events", "crm": "crm_events", "mail": "mail_events"} {
		killed("killed/18", pipeline, table)
		killed("killed/19", pipeline, table)
		db.exec(`INSERT INTO outbox_relays (buffer, sink, owner, version, seen_at, delivered, dead, last_minute, stopped)
			VALUES ('public.` + table + `', '', 'runs/17/` + pipeline + `', 'v1', clock_timestamp() + interval '1 hour', 5, 0, 5, false)`)
	}
	expect("2 relays did not stop in order in the last hour")
	do(t, nil, "status", "-c", path).want(t, 0, "\nall pipelines: 2 relays did not stop in order in the last hour", "")
	killed("other/20", "mail", "mail_events")
	expect("2 relays did not stop in order in the last hour", "3 relays did not stop in order in the last hour")
	do(t, nil, "status", "-c", path).want(t, 0, "\norders, crm: 2 relays did not stop in order in the last hour", "")
}
