package cli

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// With wake: notify, migrate installs the trigger, doctor finds it, and a commit is sent although the next distribution
// is hours away.
func TestRun_WakeNotify(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	path := write(t, onePipeline("orders", db.url, url, "    wake: notify", "    schedule: '@every 9h'"))
	before := doctorJSON(t, path, 0)
	if warned := before.find("orders", "warning", "wake-ups"); !strings.Contains(warned, "relay migrate -c "+path) {
		t.Errorf("without the trigger doctor says %q", warned)
	}
	do(t, nil, "migrate", "-c", path).want(t, 0, "orders: applied trigger outbox_notify\n", "")
	do(t, nil, "migrate", "-c", path).want(t, 0, "orders: up to date\n", "")
	after := doctorJSON(t, path, 0)
	if warned := after.find("orders", "warning", "wake-ups"); warned != "" {
		t.Errorf("with the trigger doctor says %q", warned)
	}
	r := start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if db.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
			AND objid = 'outbox_events'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 0 {
			return errors.New("the relay is not idle yet")
		}
		return nil
	})
	db.insert(1)
	arrive(t, client, 1)
	db.insert(2500)
	arrive(t, client, 2501)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if strings.Contains(r.stderr.String(), "level=WARN") {
		t.Errorf("unexpected warning: %s", r.stderr.String())
	}
}
