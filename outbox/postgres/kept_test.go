package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

const keepingFunction = `
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`

// keepers are what makes a DELETE do nothing, with what ends it.
var keepers = map[string][2]string{
	"trigger": {keepingFunction + `; CREATE TRIGGER keep BEFORE DELETE ON %[1]s FOR EACH ROW EXECUTE FUNCTION keep()`, `DROP TRIGGER keep ON %[1]s`},
	"rule":    {`CREATE RULE keep AS ON DELETE TO %[1]s DO INSTEAD NOTHING`, `DROP RULE keep ON %[1]s`},
}

// TestSettle_KeptEvents: events that a DELETE leaves without an error are recorded as delivered, and deleted later.
func TestSettle_KeptEvents(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		for name, keeper := range keepers {
			t.Run(string(mode)+"/"+name, func(t *testing.T) {
				t.Parallel()
				f := newMigratedDB(t, buffertest.Options{Claim: mode}).fixture(t, "outbox_events", "orders")
				testKept(t, f, keeper)
			})
		}
	}
	t.Run("order", func(t *testing.T) {
		t.Parallel()
		testKept(t, newMigratedDB(t, buffertest.Options{Ordered: true}).fixture(t, "outbox_events", "orders"), keepers["trigger"])
	})
	t.Run("archive", func(t *testing.T) {
		t.Parallel()
		testKept(t, newMigratedDB(t, buffertest.Options{Archive: true}).fixture(t, "outbox_events", "orders"), keepers["trigger"])
	})
	for name, shape := range map[string]*customShape{"integer": integerKeys, "cursor": cursorKeys} {
		t.Run("custom table/"+name, func(t *testing.T) {
			t.Parallel()
			testKept(t, customHarness(shape).Open(t, buffertest.Options{}), keepers["trigger"])
		})
	}
}

func testKept(t *testing.T, f *buffertest.Fixture, keeper [2]string) {
	t.Helper()
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event, event, event)
	b, err := f.Buffer.Claim(t.Context(), 10, lease)
	check(t, err)
	f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, ids[0])) // by hand
	f.Exec(t, fmt.Sprintf(keeper[0], f.Table))
	part := buffer.NewGroupID()
	err = f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:2]},
		{Verdict: buffer.Dead, IDs: ids[2:3], Error: "no"},
		{Verdict: buffer.Retry, IDs: ids[3:], GroupID: part, After: lease},
	})
	wantKept(t, err, 2, 3)
	if dead := f.Dead(t); len(dead) != 1 {
		t.Errorf("dead letters: %+v", dead)
	}
	_, err = f.Buffer.CountBacklog(t.Context(), 10)
	check(t, err)
	if again, err := f.Buffer.Claim(t.Context(), 10, lease); err != nil || again != nil {
		t.Fatalf("claimed %+v, %v", again, err)
	}

	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	expectIDs(t, "to be deleted", b.Delivered, ids[1:3])
	wantKept(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}), 2, 2)
	rows := f.Ledger(t)
	i := slices.IndexFunc(rows, func(r buffertest.LedgerRow) bool { return r.GroupID == b.GroupID })
	if i < 0 || rows[i].State != "delivered" || rows[i].DueIn <= buffer.KeptRetry(1) {
		t.Fatalf("the ledger: %+v", rows)
	}
	audit, err := f.Buffer.Audit(t.Context())
	check(t, err)
	if !audit.Agrees() {
		t.Errorf("audit: %+v", audit)
	}

	// A lock is no keeper.
	f.Exec(t, fmt.Sprintf(keeper[1], f.Table))
	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	tx := f.Begin(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = topic WHERE id = %d", f.Table, ids[1]))
	err = f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}})
	tx.Rollback(t)
	if !errors.Is(err, buffer.ErrLocked) {
		t.Fatalf("got %v; want ErrLocked", err)
	}
	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if rows := f.Rows(t); len(rows) != 1 || rows[0].ID != ids[3] {
		t.Errorf("left: %v", rows)
	}
	if rows := f.Ledger(t); len(rows) != 1 || rows[0].GroupID != part {
		t.Errorf("the ledger: %+v", rows)
	}
}

// refusal is a trigger that raises.
var refusal = [2]string{
	"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not that one'' USING ERRCODE = ''45000''; END'; " +
		"CREATE TRIGGER refuse BEFORE DELETE ON %[1]s FOR EACH ROW WHEN (OLD.id = %[2]d) EXECUTE FUNCTION refuse()",
	"DROP TRIGGER refuse ON %s",
}

func TestSettle_Refused(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]buffertest.Options{
		"stamp": {Claim: buffer.ClaimStamp}, "range": {Claim: buffer.ClaimRange}, "order": {Ordered: true}, "archive": {Archive: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			buffertest.RefusedSettle(t, newMigratedDB(t, opt).fixture(t, "outbox_events", "orders"), refusal[0], refusal[1])
		})
	}
	for name, harness := range map[string]buffertest.Harness{
		"integer": customHarness(integerKeys), "cursor": customHarness(cursorKeys), "uuid": uuidHarness(),
	} {
		t.Run("custom table/"+name, func(t *testing.T) {
			t.Parallel()
			buffertest.RefusedSettle(t, harness.Open(t, buffertest.Options{}), refusal[0], refusal[1])
		})
	}
	t.Run("foreign key", func(t *testing.T) {
		t.Parallel()
		buffertest.RefusedSettle(t, newMigratedDB(t, buffertest.Options{}).fixture(t, "outbox_events", "orders"),
			"CREATE TABLE audit (id bigint CONSTRAINT refers REFERENCES %[1]s (id)); INSERT INTO audit VALUES (%[2]d)", "DROP TABLE audit; SELECT '%s'")
	})
}

func TestSettle_DroppedDeadLetter(t *testing.T) {
	t.Parallel()
	drops := func(when string) string {
		return "CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF TG_WHEN = ''AFTER'' THEN EXECUTE format(''DELETE FROM %s WHERE event_id = $1'', TG_RELID::regclass) USING NEW.event_id; END IF; RETURN NULL; END'; " +
			"CREATE TRIGGER drops " + when + " INSERT ON outbox_dead_letters FOR EACH ROW EXECUTE FUNCTION drops()"
	}
	const allow = "DROP TRIGGER drops ON outbox_dead_letters"
	for _, when := range []string{"BEFORE", "AFTER"} {
		for name, opt := range map[string]buffertest.Options{"stamp": {Claim: buffer.ClaimStamp}, "range": {Claim: buffer.ClaimRange}} {
			t.Run(when+"/"+name, func(t *testing.T) {
				t.Parallel()
				buffertest.DroppedDeadLetter(t, newMigratedDB(t, opt).fixture(t, "outbox_events", "orders"), drops(when), allow)
			})
		}
		for name, harness := range map[string]buffertest.Harness{
			"integer": customHarness(integerKeys), "cursor": customHarness(cursorKeys), "uuid": uuidHarness(),
		} {
			t.Run(when+"/custom table/"+name, func(t *testing.T) {
				t.Parallel()
				buffertest.DroppedDeadLetter(t, harness.Open(t, buffertest.Options{}), drops(when), allow)
			})
		}
	}
}

// TestSettle_RefusedPrivilege: a role that lost a privilege while the relay runs.
func TestSettle_RefusedPrivilege(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	o := opened(t, p.asRole(t, "relay_", "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public"), buffer.SupervisorPolicy{})
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("1")})
	b, err := o.Claim(t.Context(), 10, lease)
	check(t, err)
	f.Exec(t, "DO $$ BEGIN EXECUTE 'REVOKE DELETE ON outbox_events FROM ' || (SELECT grantee FROM information_schema.role_table_grants WHERE table_name = 'outbox_events' AND grantee LIKE 'relay_%' LIMIT 1); END $$")
	err = o.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}})
	if _, refused := errors.AsType[*buffer.SettleError](err); !refused || !strings.Contains(err.Error(), "DELETE") {
		t.Fatalf("got %v; want a *buffer.SettleError that names the privilege", err)
	}
	check(t, o.MarkDelivered(t.Context(), b, b.IDs()))
}

// TestSettle_KeptAgain: once a DELETE has left events, a settle records what is left in its own transaction, so that no
// claim comes before it.
func TestSettle_KeptAgain(t *testing.T) {
	t.Parallel()
	open := map[string]func(*testing.T) *buffertest.Fixture{
		"custom table": func(t *testing.T) *buffertest.Fixture {
			return customHarness(integerKeys).Open(t, buffertest.Options{})
		},
	}
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		open[string(mode)] = func(t *testing.T) *buffertest.Fixture {
			return newMigratedDB(t, buffertest.Options{Claim: mode}).fixture(t, "outbox_events", "orders")
		}
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			event := outbox.Event{Topic: "t", Payload: []byte("1")}
			f.Insert(t, event, event, event, event)
			f.Exec(t, fmt.Sprintf(keepers["trigger"][0], f.Table))
			settle := func() uuid.UUID {
				b, err := f.Buffer.Claim(t.Context(), 2, lease)
				check(t, err)
				wantKept(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
					{Verdict: buffer.Delivered, IDs: b.IDs()[:1]}, {Verdict: buffer.Dead, IDs: b.IDs()[1:], Error: "no"},
				}), 2, 2)
				return b.GroupID
			}
			settle()
			f.Exec(t, fmt.Sprintf(`DO $$ BEGIN ASSERT (SELECT l.xmin = d.xmin FROM outbox_batches l JOIN outbox_dead_letters d USING (group_id) WHERE group_id = '%s'); END $$`, settle()))
		})
	}
}

func wantKept(t *testing.T, err error, kept, of int) {
	t.Helper()
	got, ok := errors.AsType[*buffer.KeptError](err)
	if !ok || got.Kept != kept || got.Of != of || got.RetryIn <= 0 {
		t.Fatalf("got %+v; want %d of %d kept", err, kept, of)
	}
}

// TestSettle_DeletedByHand: events that somebody else has deleted are no error.
func TestSettle_DeletedByHand(t *testing.T) {
	t.Parallel()
	f := newMigratedDB(t, buffertest.Options{}).fixture(t, "outbox_events", "orders")
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event, event)
	b, err := f.Buffer.Claim(t.Context(), 10, lease)
	check(t, err)
	f.Exec(t, fmt.Sprintf("DELETE FROM outbox_events WHERE id = %d", ids[1]))
	check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if rows := f.Ledger(t); len(rows) != 0 {
		t.Errorf("the ledger: %+v", rows)
	}
}

// TestSettle_KeptByRowSecurity: the relay's role may read and delete, but no policy allows a DELETE.
func TestSettle_KeptByRowSecurity(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	url := p.asRole(t, "relay_", "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public")
	f.Exec(t, "ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY; CREATE POLICY reads ON outbox_events FOR SELECT USING (true)")
	o := opened(t, url, buffer.SupervisorPolicy{})
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	f.Insert(t, event, event)
	b, err := o.Claim(t.Context(), 10, lease)
	check(t, err)
	wantKept(t, o.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}), 2, 2)
	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(t.Context(), o, lease)
	check(t, err)
	wantKept(t, o.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}), 2, 2)
	found := o.Diagnose(t.Context())
	if !slices.ContainsFunc(found, func(f buffer.Finding) bool { return f.Level == buffer.LevelError && strings.Contains(f.Text, "DELETE") }) {
		t.Errorf("doctor: %+v", found)
	}
	f.Exec(t, "CREATE POLICY all_of_them ON outbox_events USING (true)")
	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(t.Context(), o, lease)
	check(t, err)
	check(t, o.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
}

// TestSettle_KeptUUIDs: the events of a custom table with uuid keys get new numbers.
func TestSettle_KeptUUIDs(t *testing.T) {
	t.Parallel()
	o := newUUIDs(t, 4)
	b := o.claim(t, 4)
	o.exec(t, fmt.Sprintf(keepers["trigger"][0], `"Changes"`))
	wantKept(t, o.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}), 4, 4)
	o.wantAgreement(t, "a settle that deletes nothing")
	marked := o.takeOver(t)
	if !slices.Equal(uuidsOf(marked), uuidsOf(b)) || !slices.Equal(marked.Delivered, marked.IDs()) {
		t.Fatalf("marked: %+v", marked)
	}
	wantKept(t, o.Settle(t.Context(), marked, []buffer.Outcome{{Verdict: buffer.Delivered}}), 4, 4)
	o.exec(t, fmt.Sprintf(keepers["trigger"][1], `"Changes"`))
	o.settle(t, o.takeOver(t), buffer.Outcome{Verdict: buffer.Delivered})
	if left := o.wantAgreement(t, "all of it"); left.Unclaimed != 0 {
		t.Fatalf("left: %+v", left)
	}
}

func TestDoctor_Deletes(t *testing.T) {
	t.Parallel()
	for name, keeper := range keepers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			f := p.fixture(t, "outbox_events", "orders")
			found := func() []buffer.Finding {
				all := opened(t, p.url, buffer.SupervisorPolicy{}).Diagnose(t.Context())
				return slices.DeleteFunc(all, func(f buffer.Finding) bool { return f.Subject != "deletes" })
			}
			f.Exec(t, `CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'`)
			f.Exec(t, `CREATE TRIGGER audit BEFORE DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION audit()`)
			if got := found(); len(got) != 0 {
				t.Fatalf("found %+v", got)
			}
			f.Exec(t, fmt.Sprintf(keeper[0], "outbox_events"))
			got := found()
			if len(got) != 1 || got[0].Level == buffer.LevelOK {
				t.Fatalf("found %+v", got)
			}
			_, drop, _ := strings.Cut(got[0].Fix, "DROP ")
			f.Exec(t, "DROP "+drop)
			if got := found(); len(got) != 0 {
				t.Fatalf("found %+v", got)
			}
		})
	}
}

// TestDoctor_Refusals: doctor names what may make the database refuse a settle, on the relay's own table too.
func TestDoctor_Refusals(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Exec(t, `CREATE FUNCTION talk() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''x''; RETURN OLD; END'`)
	f.Exec(t, `CREATE TRIGGER talk BEFORE DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION talk()`)
	f.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''x''; END'`)
	f.Exec(t, `CREATE TRIGGER refuse_a AFTER DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION refuse()`)
	f.Exec(t, `CREATE TRIGGER refuse_b BEFORE INSERT ON outbox_dead_letters FOR EACH ROW EXECUTE FUNCTION refuse()`)
	f.Exec(t, `CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	f.Exec(t, `CREATE TRIGGER drops BEFORE INSERT ON outbox_dead_letters FOR EACH ROW EXECUTE FUNCTION drops()`)
	f.Exec(t, `CREATE TRIGGER fine BEFORE INSERT ON outbox_events FOR EACH ROW EXECUTE FUNCTION refuse()`)
	f.Exec(t, `CREATE TABLE audit (event bigint PRIMARY KEY REFERENCES outbox_events)`)
	var found []string
	for _, one := range opened(t, p.url, buffer.SupervisorPolicy{}).Diagnose(t.Context()) {
		if one.Subject == "deletes" || one.Subject == "foreign keys" {
			found = append(found, one.Text)
		}
	}
	for i, want := range []string{
		"trigger refuse_b of table public.outbox_dead_letters fires on INSERT", "trigger refuse_a of table public.outbox_events fires on DELETE",
		"trigger drops of table public.outbox_dead_letters fires BEFORE INSERT", "of table public.audit prevents the delete",
	} {
		if i >= len(found) || !strings.Contains(found[i], want) {
			t.Errorf("found %q; want %q", found, want)
		}
	}
	testkit.Equal(t, "findings", len(found), 4)
}
