package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
)

// TestExamineDeadRows: many of them are told, and gone after a vacuum.
func TestExamineDeadRows(t *testing.T) {
	t.Parallel()
	p := newPatient(t, testserver.Postgres(t))
	p.exec("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
	p.exec("INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, 110000)")
	p.exec("DELETE FROM outbox_events")
	var f *outbox.Finding
	testserver.Eventually(t, func() error {
		if f = find(examined(t, p.url, time.Hour), outbox.Warning, "dead rows", "110000 dead rows beside 0 live ones"); f == nil {
			return fmt.Errorf("it does not see the dead rows")
		}
		return nil
	})
	p.exec(f.Mend)
	testserver.Eventually(t, func() error {
		if f := find(examined(t, p.url, time.Hour), outbox.Warning, "dead rows", ""); f != nil {
			return fmt.Errorf("after the vacuum it finds %+v", f)
		}
		return nil
	})
}

// TestExamineHolders: what keeps vacuum back is named, each with what ends it.
func TestExamineHolders(t *testing.T) {
	t.Parallel()
	p := newPatient(t, testserver.OwnPostgres(t, testserver.PostgresOptions{Settings: map[string]string{"wal_level": "logical", "autovacuum": "off"}}).URL)
	mend := func(about, says string) {
		t.Helper()
		f := find(examined(t, p.url, 0), outbox.Warning, about, says)
		if f == nil {
			t.Fatalf("it does not find %q: %+v", says, bad(examined(t, p.url, 0)))
		}
		p.exec(f.Mend)
		testserver.Eventually(t, func() error { // the terminated need a moment
			if f := find(examined(t, p.url, 0), outbox.Warning, about, says); f != nil {
				return fmt.Errorf("after mending it finds %+v", f)
			}
			return nil
		})
	}
	other := connect(t, p.url)
	for _, statement := range []string{"SET application_name = 'report'", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"} {
		if _, err := other.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if some := bad(examined(t, p.url, time.Hour)); find(some, outbox.Warning, "vacuum horizon", "") != nil {
		t.Errorf("of transactions that are young it says %+v", some)
	}
	mend("vacuum horizon", `role relay, application "report", database postgres, idle in transaction`)

	p.exec("BEGIN; INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}'); PREPARE TRANSACTION 'half''done'")
	mend("vacuum horizon", "prepared as 'half''done'")

	p.exec("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
	mend("vacuum horizon", "slot 'forgotten'")
}

// TestExamineAutovacuum: a server that never vacuums is told of.
func TestExamineAutovacuum(t *testing.T) {
	t.Parallel()
	p := newPatient(t, testserver.OwnPostgres(t, testserver.PostgresOptions{}).URL)
	p.exec("ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf()")
	var f *outbox.Finding
	testserver.Eventually(t, func() error { // until the server has read it
		if f = find(examined(t, p.url, time.Hour), outbox.Warning, "autovacuum", "autovacuum off"); f == nil {
			return fmt.Errorf("it does not see that autovacuum is off")
		}
		return nil
	})
	p.exec(f.Mend)
	testserver.Eventually(t, func() error {
		if left := bad(examined(t, p.url, time.Hour)); len(left) > 0 {
			return fmt.Errorf("after mending it finds %+v", left)
		}
		return nil
	})
}
