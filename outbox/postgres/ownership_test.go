package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestOwnership: a pipeline with another name claims nothing from a buffer, until it gets the buffer and the dead letters. Relays
// with the same name claim side by side.
func TestOwnership(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opt    buffertest.Options
		custom *customShape
	}{
		"Range":  {opt: buffertest.Options{Claim: buffer.ClaimRange}},
		"Stamp":  {opt: buffertest.Options{Claim: buffer.ClaimStamp}},
		"Custom": {custom: integerKeys},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, table := newMigratedDB(t, c.opt), "outbox_events"
			if c.custom != nil {
				p, table = newTestDB(t, p.url, c.opt), "events"
				p.custom = c.custom
			}
			f := p.fixture(t, table, "orders")
			p.migrated = schemaOfFixture(p, table)
			event := outbox.Event{Topic: "t", Payload: []byte("{}")}
			f.Insert(t, event, event, event, event)
			dead, err := f.Buffer.Claim(t.Context(), 1, lease)
			check(t, err)
			check(t, f.Buffer.Settle(t.Context(), dead, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
			abandoned, err := f.Second(t).Claim(t.Context(), 1, lease) // the same name
			check(t, err)
			f.ExpireLease(t, abandoned.GroupID, lease)

			renamed := p.fixture(t, table, "new-orders")
			b := renamed.Buffer
			check(t, b.Check(t.Context()))
			refused := map[string]error{}
			_, refused["claim"] = b.Claim(t.Context(), 10, lease)
			_, refused["take over"] = testkit.TakeOver(t.Context(), b, lease)
			_, refused["count"] = b.CountBacklog(t.Context(), 10)
			_, refused["claim dead letters"] = renamed.Queue(t).Claim(t.Context(), 10, lease)
			for what, err := range refused {
				if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "pipeline orders owns buffer public."+table+" since 20") ||
					!strings.Contains(err.Error(), "relay migrate --rename-pipeline orders -c relay.yaml") {
					t.Errorf("%s: got %v", what, err)
				}
			}
			if text := findings(t, b, "owner"); !strings.Contains(text, "error ") || !strings.Contains(text, "--rename-pipeline orders") {
				t.Errorf("doctor: %s", text)
			}

			r, err := b.Rename(t.Context(), "orders")
			check(t, err)
			testkit.Equal(t, "renamed", r, buffer.Renamed{Owner: true, Owns: true, Letters: 1})
			if backlog, err := b.CountBacklog(t.Context(), 10); err != nil || backlog.Unclaimed != 2 || backlog.Due+backlog.Suspects != 1 {
				t.Errorf("counted %+v, %v", backlog, err)
			}
			batch, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			testkit.Equal(t, "claimed", batch.Len(), 2)
			taken, err := testkit.TakeOver(t.Context(), b, lease)
			check(t, err)
			testkit.Equal(t, "taken over", taken.IDs(), abandoned.IDs())
			letters, err := renamed.Queue(t).Claim(t.Context(), 10, lease)
			check(t, err)
			testkit.Equal(t, "dead letters for the hook", letters.IDs(), dead.IDs())
			if _, err := f.Buffer.CountBacklog(t.Context(), 10); !errors.Is(err, buffer.ErrNotReady) {
				t.Errorf("the old name counts: %v", err)
			}
			if _, err := f.Buffer.Claim(t.Context(), 10, lease); !errors.Is(err, buffer.ErrNotReady) {
				t.Errorf("the old name claims: %v", err)
			}
		})
	}
}

// TestOwnership_OrphanedLetters: doctor and run name open dead letters that no pipeline looks after.
func TestOwnership_OrphanedLetters(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("{}")})
	batch, err := f.Buffer.Claim(t.Context(), 1, lease)
	check(t, err)
	check(t, f.Buffer.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
	f.Exec(t, "UPDATE outbox_dead_letters SET pipeline = 'before'")
	warner := f.Buffer.(interface {
		Warnings(context.Context) []string
	})
	for what, text := range map[string]string{
		"doctor": findings(t, f.Buffer, "dead letters"), "run": strings.Join(warner.Warnings(t.Context()), "\n"),
	} {
		if !strings.Contains(text, "1 open dead letters belong to pipeline before") || !strings.Contains(text, "--rename-pipeline before") {
			t.Errorf("%s: %q", what, text)
		}
	}
	r, err := f.Buffer.Rename(t.Context(), "before")
	check(t, err)
	testkit.Equal(t, "renamed", r, buffer.Renamed{Owns: true, Letters: 1})
	if n, err := f.Buffer.CountDead(t.Context(), buffer.DeadFilter{}); err != nil || n.Open != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	testkit.Equal(t, "warnings", len(warner.Warnings(t.Context())), 0)
}

// findings are those of doctor about a subject.
func findings(t *testing.T, b buffer.Buffer, subject string) (text string) {
	t.Helper()
	for _, f := range b.Diagnose(t.Context()) {
		if f.Subject == subject {
			text += f.Level.String() + " " + f.Text + ": " + f.Fix + "\n"
		}
	}
	return text
}

// TestOwnership_OtherLedger has a second ledger for the same table, by source.schema: two ledgers would each claim all events.
func TestOwnership_OtherLedger(t *testing.T) {
	t.Parallel()
	for name, claim := range map[string]buffer.ClaimMode{"Range": buffer.ClaimRange, "Stamp": buffer.ClaimStamp} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Claim: claim})
			f := p.fixture(t, "outbox_events", "orders")
			event := outbox.Event{Topic: "t", Payload: []byte("{}")}
			f.Insert(t, event, event)
			_, err := f.Buffer.Claim(t.Context(), 1, lease)
			check(t, err)

			f.Exec(t, "CREATE SCHEMA other")
			migrateOther(t, p)
			b, err := postgres.Open(postgres.Config{URL: p.url, Table: "public.outbox_events", Schema: "other", Pipeline: "orders", Claim: claim})
			check(t, err)
			t.Cleanup(func() { check(t, b.Close()) })
			check(t, b.Check(t.Context()))
			refused := map[string]error{}
			_, refused["claim"] = b.Claim(t.Context(), 10, lease)
			_, refused["take over"] = testkit.TakeOver(t.Context(), b, lease)
			_, refused["count"] = b.CountBacklog(t.Context(), 10)
			for what, err := range refused {
				if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "pipeline orders owns buffer public.outbox_events in another ledger, that of public.outbox_buffers since 20") {
					t.Errorf("%s: got %v", what, err)
				}
			}
			const fix = "UPDATE public.outbox_buffers SET pipeline = NULL WHERE buffer = 'public.outbox_events'"
			if text := findings(t, b, "owner"); !strings.Contains(text, fix) {
				t.Errorf("doctor: %q", text)
			}
			f.Exec(t, fix)
			claimed, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			if claimed.Len() == 0 {
				t.Error("claimed nothing after the fix")
			}
		})
	}
}

// migrateOther makes a second ledger for the buffer, in schema other, which migrate refuses while the buffer's trigger names the first.
func migrateOther(t *testing.T, p *testDB) {
	t.Helper()
	other := postgres.SchemaConfig{Table: "public.outbox_events", Schema: "other"}
	_, err := postgres.Migrate(t.Context(), p.url, other)
	if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "belongs to the ledger in schema public, which its trigger outbox_truncated names") {
		t.Fatalf("migrating a second ledger: %v", err)
	}
	exec := func(sql string) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), sql)
		check(t, err)
	}
	exec("DROP TRIGGER outbox_truncated ON public.outbox_events")
	_, err = postgres.Migrate(t.Context(), p.url, other)
	if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "pipeline orders owns table public.outbox_events in another ledger, that of public.outbox_buffers") {
		t.Fatalf("migrating a second ledger of an owned buffer: %v", err)
	}
	exec("UPDATE public.outbox_buffers SET pipeline = NULL")
	_, err = postgres.Migrate(t.Context(), p.url, other)
	check(t, err)
	exec("UPDATE public.outbox_buffers SET pipeline = 'orders'") // a relay that runs takes it again
}

// TestOwnership_OtherLedgerUnreadable has two ledgers whose relays may read their own only. The buffer's trigger decides: a relay that runs
// notices the move at its next count.
func TestOwnership_OtherLedgerUnreadable(t *testing.T) {
	t.Parallel()
	for schema, quoted := range map[string]string{"other": `"other"`, `Öther "ledger"\1`: `"Öther ""ledger""\1"`} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
			exec := func(sql string) {
				t.Helper()
				_, err := p.pool.Exec(t.Context(), sql)
				check(t, err)
			}
			exec("CREATE SCHEMA " + pgx.Identifier{schema}.Sanitize())
			open := func(role, ledger string) *postgres.Buffer {
				url := p.asRole(t, role, "GRANT USAGE ON SCHEMA public", "GRANT SELECT, INSERT, UPDATE, DELETE ON public.outbox_events",
					"GRANT USAGE ON SCHEMA "+pgx.Identifier{ledger}.Sanitize(),
					"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "+pgx.Identifier{ledger}.Sanitize(),
					"GRANT USAGE ON ALL SEQUENCES IN SCHEMA "+pgx.Identifier{ledger}.Sanitize(), "GRANT USAGE, SELECT ON SEQUENCE public.outbox_events_id_seq")
				b, err := postgres.Open(postgres.Config{URL: url, Table: "public.outbox_events", Schema: ledger, Pipeline: "orders", Claim: buffer.ClaimRange})
				check(t, err)
				t.Cleanup(func() { check(t, b.Close()) })
				check(t, b.Check(t.Context()))
				return b
			}
			works := func(b *postgres.Buffer) {
				t.Helper()
				exec("INSERT INTO public.outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, 10)")
				_, err := b.CountBacklog(t.Context(), 100)
				check(t, err)
				l, err := b.Claim(t.Context(), 10, lease)
				check(t, err)
				testkit.Equal(t, "events claimed", l.Len(), 10)
				check(t, b.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			}
			refused := func(b *postgres.Buffer, ledger string) {
				t.Helper()
				all := map[string]error{}
				_, all["count"] = b.CountBacklog(t.Context(), 100)
				_, all["claim"] = b.Claim(t.Context(), 10, lease)
				_, all["take over"] = testkit.TakeOver(t.Context(), b, lease)
				want := "belongs to another ledger, that of " + ledger + ".outbox_buffers, which its trigger"
				for what, err := range all {
					if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: got %v; want one that %s", what, err, want)
					}
				}
				if text := findings(t, b, "owner"); !strings.Contains(text, "DROP TRIGGER outbox_truncated ON public.outbox_events") {
					t.Errorf("doctor: %q", text)
				}
			}
			first := open("first_", "public")
			works(first)
			move := func(from string) {
				exec("DROP TRIGGER outbox_truncated ON public.outbox_events")
				exec("UPDATE " + from + ".outbox_buffers SET pipeline = NULL")
			}
			move("public")
			_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "public.outbox_events", Schema: schema})
			check(t, err)
			second := open("second_", schema)
			refused(first, quoted)
			works(second)

			move(quoted)
			_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "public.outbox_events"})
			check(t, err)
			refused(second, "public")
			works(first)
		})
	}
}
