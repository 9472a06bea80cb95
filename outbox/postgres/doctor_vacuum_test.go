package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestDiagnose_DeadRows(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.Postgres(t))
	p.exec("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
	p.exec("INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, 110000)")
	p.exec("DELETE FROM outbox_events")
	check(t, p.conn.Close(t.Context())) // which reports its statistics
	p.conn = connect(t, p.url)
	var f *buffer.Finding
	testserver.Eventually(t, func() error {
		if f = find(diagnose(t, p.url, time.Hour), buffer.LevelWarning, "dead rows", "110000 dead rows and 0 live ones"); f == nil {
			return fmt.Errorf("no finding about the dead rows")
		}
		return nil
	})
	p.exec(f.Fix)
	testserver.Eventually(t, func() error {
		if f := find(diagnose(t, p.url, time.Hour), buffer.LevelWarning, "dead rows", ""); f != nil {
			return fmt.Errorf("after the vacuum it finds %+v", f)
		}
		return nil
	})
}

func TestDiagnose_Autovacuum(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.OwnPostgres(t, testserver.PostgresOptions{}).URL)
	p.exec("ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf()")
	var f *buffer.Finding
	testserver.Eventually(t, func() error { // until the server has read it
		if f = find(diagnose(t, p.url, time.Hour), buffer.LevelWarning, "autovacuum", "autovacuum off"); f == nil {
			return fmt.Errorf("no finding about autovacuum")
		}
		return nil
	})
	p.exec(f.Fix)
	testserver.Eventually(t, func() error {
		if left := faults(diagnose(t, p.url, time.Hour)); len(left) > 0 {
			return fmt.Errorf("after the fix it finds %+v", left)
		}
		return nil
	})
}
