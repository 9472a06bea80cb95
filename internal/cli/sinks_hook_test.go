package cli

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// Each sink has a hook of its own or uses the pipeline's. The hook of crm is away, which costs the pipeline's nothing. Only dead letters that a hook is to be notified of
// wait for it before they are closed.
func TestRun_SinkHooks(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, notifiesHooks)
}

func notifiesHooks(t *testing.T, db *database) {
	t.Helper()
	redis := redisStream(t)
	crm, pipeline := newHookServer(t), newHookServer(t)
	pipeline.respond(http.StatusOK)
	file := func(hook string) string {
		return write(t, fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: p
    source: {url: %q}
    retry: {initial: 10ms, max: 50ms}
    %s
    sinks:
      - {name: stream, url: %q}
      - {name: crm, url: "http://127.0.0.1:9", match: [contacts], dead_letter: {hook: {url: %q, headers: {X-Key: hook-s3cret}}}}
      - {name: mail, url: "http://127.0.0.1:9/mail", match: [mail]}
`, db.url, hook, redis.url, crm.url+"/?key=planted-s3cret"))
	}
	path := file(fmt.Sprintf("dead_letter: {hook: {url: %q}}", pipeline.url))
	db.bury("p", [3]string{"1", "contacts", "refused"}, [3]string{"2", "mail", "refused"}, [3]string{"3", "other", "unmatched"})
	db.exec("UPDATE outbox_dead_letters SET sink = CASE event_id WHEN 1 THEN 'crm' WHEN 2 THEN 'mail' ELSE '*' END")
	r := start(t, nil, "run", "-c", path)
	notified := func(ids string) {
		t.Helper()
		testserver.Eventually(t, func() error {
			got := db.text("SELECT coalesce(string_agg(CAST(event_id AS text), ' ' ORDER BY event_id), '') FROM outbox_dead_letters WHERE notified_at IS NOT NULL")
			if got != ids {
				return fmt.Errorf("hooks were notified of %q, want %q", got, ids)
			}
			return nil
		})
	}
	notified("2 3")
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_batches WHERE sink = 'crm' AND error LIKE '%503%'"); n != 1 {
			return fmt.Errorf("%d batches wait for the hook of crm", n)
		}
		return nil
	})
	var status result
	testserver.Eventually(t, func() error { // while the hook is asked, its batch does not wait
		if status = do(t, nil, "status", "-c", path, "--json"); !strings.Contains(status.stdout, `"unnotified": 1`) {
			return fmt.Errorf("the status is %s", status.stdout)
		}
		return nil
	})
	if strings.Contains(status.stdout, "s3cret") {
		t.Errorf("the status shows a secret:\n%s", status.stdout)
	}

	// With only the hook of crm, the dead letters of others are closed without one.
	only := file("")
	db.exec("UPDATE outbox_dead_letters SET notified_at = NULL")
	do(t, nil, "dead", "list", "-c", only).want(t, 0, "  -         unmatched\n", "")
	do(t, nil, "dead", "discard", "-c", only, "--id", "1").want(t, 1, "p: discarded 0 dead letters; skipped 1: the dead-letter hook was not notified yet\n", "relay: 1: the dead-letter hook was not notified yet")
	do(t, nil, "dead", "discard", "-c", only, "--all").want(t, 0, "p: discarded 2 dead letters; skipped 1: the dead-letter hook was not notified yet\n", "")

	crm.respond(http.StatusOK)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE event_id = 1 AND notified_at IS NOT NULL"); n != 1 {
			return fmt.Errorf("the hook of crm was not notified")
		}
		return nil
	})
	for h, want := range map[*hookServer]int{crm: 1, pipeline: 2} {
		h.mu.Lock()
		if len(h.got) < want || len(h.got) > 2*want { // those that were set to NULL may come again
			t.Errorf("a hook received %q, want %d", h.got, want)
		}
		h.mu.Unlock()
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}
