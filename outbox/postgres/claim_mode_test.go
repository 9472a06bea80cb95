package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// as opens the buffer as a process does that claims so.
func (p *testDB) as(t *testing.T, mode buffer.ClaimMode) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders", Owner: string(mode), Claim: mode})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	return b
}

func (p *testDB) storedMode(t *testing.T) string {
	t.Helper()
	return query(t, p.pool, "SELECT claim FROM outbox_buffers", pgx.RowTo[string])[0]
}

func expectMode(t *testing.T, b *postgres.Buffer, want buffer.ClaimMode) {
	t.Helper()
	if got := b.ClaimMode(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

var oneEvent = outbox.Event{Topic: "t", Payload: []byte("1")}

// The mode changes only while the ledger is empty. Before that, a relay with another mode does not
// claim, but sends existing batches.
func TestClaimMode_ChangesWhenLedgerEmpty(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]buffer.ClaimMode{
		{buffer.ClaimStamp, buffer.ClaimRange},
		{buffer.ClaimRange, buffer.ClaimStamp},
	} {
		t.Run(fmt.Sprintf("%s to %s", c[0], c[1]), func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Claim: c[0]})
			f := p.fixture(t, "outbox_events", "orders")
			ctx := t.Context()
			ids := f.Insert(t, oneEvent, oneEvent, oneEvent)
			first, err := f.Buffer.Claim(ctx, 2, lease)
			check(t, err)
			other := p.as(t, c[1])
			check(t, other.Check(ctx))
			for range 2 {
				_, err = other.Claim(ctx, 10, lease)
				if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), fmt.Sprintf("claimed by %q; this relay would claim by %q", c[0], c[1])) {
					t.Fatalf("a claim in another mode: %v", err)
				}
			}
			f.ExpireLease(t, first.GroupID, lease)
			taken, err := testkit.TakeOver(ctx, other, lease)
			check(t, err)
			expectIDs(t, "taken over", taken.IDs(), ids[:2])
			part := buffer.NewGroupID()
			check(t, other.Settle(ctx, taken, []buffer.Outcome{
				{Verdict: buffer.Delivered, IDs: ids[:1]}, {Verdict: buffer.Retry, IDs: ids[1:2], GroupID: part},
			}))
			_, err = other.Claim(ctx, 10, lease)
			if !errors.Is(err, buffer.ErrNotReady) {
				t.Fatalf("a claim while a part lives: %v", err)
			}
			taken, err = testkit.TakeOver(ctx, other, lease)
			check(t, err)
			expectIDs(t, "part taken over", taken.IDs(), ids[1:2])
			check(t, other.Settle(ctx, taken, []buffer.Outcome{{Verdict: buffer.Delivered}}))

			b, err := other.Claim(ctx, 10, lease)
			check(t, err)
			expectIDs(t, "claimed when nothing lived", b.IDs(), ids[2:])
			expectMode(t, other, c[1])
			_, err = f.Buffer.Claim(ctx, 10, lease)
			if !errors.Is(err, buffer.ErrNotReady) {
				t.Fatalf("a claim in the mode of before: %v", err)
			}
			check(t, other.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		})
	}
}

// Auto uses range. While batches of another mode exist, it uses that mode, and then range again.
func TestClaimMode_AutoFollows(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimStamp})
	f := p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()
	ids := f.Insert(t, oneEvent, oneEvent)
	stamped, err := f.Buffer.Claim(ctx, 1, lease)
	check(t, err)
	auto := p.as(t, buffer.ClaimAuto)
	expectMode(t, auto, "")
	b, err := auto.Claim(ctx, 10, lease)
	check(t, err)
	expectIDs(t, "claimed while another batch is leased", b.IDs(), ids[1:])
	expectMode(t, auto, buffer.ClaimStamp)
	check(t, auto.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	check(t, f.Buffer.Settle(ctx, stamped, []buffer.Outcome{{Verdict: buffer.Delivered}}))

	testserver.Eventually(t, func() error {
		if b, err := auto.Claim(ctx, 10, lease); b != nil || err != nil {
			return fmt.Errorf("claimed %v, %w", b, err)
		}
		if mode := auto.ClaimMode(); mode != buffer.ClaimRange {
			return fmt.Errorf("got %s", mode)
		}
		return nil
	})
	if mode := p.storedMode(t); mode != "range" {
		t.Errorf("the stored mode is %q", mode)
	}
	ids = f.Insert(t, oneEvent)
	b, err = auto.Claim(ctx, 10, lease)
	check(t, err)
	expectIDs(t, "claimed by range", b.IDs(), ids)
	if claim := f.Ledger(t)[0].Claim; claim != "range" {
		t.Errorf("the ledger says %q", claim)
	}
}

// A range claim that is under way keeps the mode as it is.
func TestClaimMode_WaitsForRange(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	f := p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()
	f.Insert(t, oneEvent)
	check(t, f.Buffer.Check(ctx))
	stamp := p.as(t, buffer.ClaimStamp)
	tx, err := p.pool.Begin(ctx)
	check(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // committed, or the test has failed
	_, err = tx.Exec(ctx, `INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
			attempts, outages, events, first_id, last_id, oldest_at, members)
		SELECT gen_random_uuid(), buffer, 'range', 'leased', 1, now() + interval '1h', 'other', 1, 0, 0, 1, 1, 1, now(), '{[1,1]}'
		FROM outbox_buffers`)
	check(t, err)
	claimed := make(chan error, 1)
	go func() {
		_, err := stamp.Claim(ctx, 10, lease)
		claimed <- err
	}()
	testserver.Eventually(t, func() error { // it waits, or has waited long enough
		var waits bool
		err := p.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks
			WHERE relation = 'outbox_batches'::regclass AND mode = 'ShareLock' AND NOT granted)`).Scan(&waits)
		if err == nil && !waits && len(claimed) == 0 {
			err = errors.New("no session waits for the claim")
		}
		return err
	})
	check(t, tx.Commit(ctx))
	if err := <-claimed; !errors.Is(err, buffer.ErrNotReady) {
		t.Errorf("a claim in another mode: %v", err)
	}
	if mode := p.storedMode(t); mode != "range" {
		t.Errorf("the mode is %q, while a batch lives that was claimed by range", mode)
	}
}

// If range claims do not suit the ids, a message says so and names the mode in use.
func TestClaimMode_RangeIneligible(t *testing.T) {
	t.Parallel()
	for says, does := range map[string]string{
		"has no default from sequence": "ALTER TABLE outbox_events ALTER id DROP IDENTITY; CREATE SEQUENCE ids OWNED BY outbox_events.id",
		"counts down":                  "ALTER SEQUENCE outbox_events_id_seq INCREMENT BY -1 MINVALUE -1000 RESTART -1",
		"outbox_events_id_seq cycles":  "ALTER SEQUENCE outbox_events_id_seq CYCLE",
		"ids far beyond its sequence":  "INSERT INTO outbox_events (id, topic, payload) VALUES (1000000, 't', '1')",
		"a subscription fills": `CREATE SUBSCRIPTION orders CONNECTION 'dbname=none' PUBLICATION none WITH (connect = false);
			INSERT INTO pg_subscription_rel SELECT oid, 'outbox_events'::regclass, 'r' FROM pg_subscription WHERE subname = 'orders'`,
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			p.fixture(t, "outbox_events", "orders")
			ctx := t.Context()
			for statement := range strings.SplitSeq(does, ";") {
				_, err := p.pool.Exec(ctx, statement)
				check(t, err)
			}
			if strings.Contains(does, "SUBSCRIPTION") {
				defer func() {
					for _, s := range []string{"ALTER SUBSCRIPTION orders SET (slot_name = NONE)", "DROP SUBSCRIPTION orders"} {
						_, err := p.pool.Exec(ctx, s)
						check(t, err)
					}
				}()
			}
			for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimAuto} {
				b := p.as(t, mode)
				check(t, b.Check(ctx))
				expectMode(t, b, buffer.ClaimStamp)
				warnings := strings.Join(b.Warnings(ctx), "; ")
				asked := mode == buffer.ClaimRange
				if asked != strings.Contains(warnings, says) || asked != strings.Contains(warnings, "claimed by stamp") {
					t.Errorf("%s: it warns: %q", mode, warnings)
				}
				level := buffer.LevelOK
				if asked {
					level = buffer.LevelWarning
				}
				about := slices.DeleteFunc(b.Diagnose(ctx), func(f buffer.Finding) bool { return f.Subject != "claim" })
				if len(about) != 1 || about[0].Level != level || !strings.Contains(about[0].Text, says) ||
					!strings.HasPrefix(about[0].Text, "by stamp") || about[0].Fix == "" {
					t.Errorf("%s: it is found: %+v", mode, about)
				}
			}
			stamp := p.as(t, buffer.ClaimStamp)
			check(t, stamp.Check(ctx))
			if warnings := stamp.Warnings(ctx); len(warnings) > 0 {
				t.Errorf("stamp was asked for, and it warns: %q", warnings)
			}
		})
	}
	p := newMigratedDB(t, buffertest.Options{})
	p.fixture(t, "outbox_events", "orders")
	b := p.as(t, buffer.ClaimRange)
	check(t, b.Check(t.Context()))
	expectMode(t, b, buffer.ClaimRange)
	if warnings := b.Warnings(t.Context()); len(warnings) > 0 {
		t.Errorf("range holds, and it warns: %q", warnings)
	}
}

// TestClaimMode_GeneratedMeanwhile: ids that are generated between the two reads do not look like another numbering.
func TestClaimMode_GeneratedMeanwhile(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()
	tx, err := p.pool.Begin(ctx)
	check(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	_, err = tx.Exec(ctx, "LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
	check(t, err)
	b := p.as(t, buffer.ClaimRange)
	checked := make(chan error, 1)
	go func() { checked <- b.Check(ctx) }()
	testserver.Eventually(t, func() error {
		var waits bool
		err := p.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks
			WHERE relation = 'outbox_events'::regclass AND mode = 'AccessShareLock' AND NOT granted)`).Scan(&waits)
		if err == nil && !waits {
			err = errors.New("the check does not wait for the table")
		}
		return err
	})
	_, err = tx.Exec(ctx, "INSERT INTO outbox_events (topic, payload) SELECT 't', '1' FROM generate_series(1, 3000)")
	check(t, err)
	check(t, tx.Commit(ctx))
	check(t, <-checked)
	expectMode(t, b, buffer.ClaimRange)
}

// Without its trigger TRUNCATE would leave batches behind; doctor says how to make it
// again.
func TestDiagnose_TruncateTrigger(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()
	b := p.as(t, buffer.ClaimRange)
	about := func() []buffer.Finding {
		return slices.DeleteFunc(b.Diagnose(ctx), func(f buffer.Finding) bool { return f.Subject != "claim" || f.Level == buffer.LevelOK })
	}
	if got := about(); len(got) > 0 {
		t.Errorf("the trigger is there: %+v", got)
	}
	f.Exec(t, "DROP TRIGGER outbox_truncated ON outbox_events")
	got := about()
	if len(got) != 1 || !strings.Contains(got[0].Text, "leaves its batches") {
		t.Fatalf("the trigger is gone: %+v", got)
	}
	f.Exec(t, got[0].Fix)
	if got := about(); len(got) > 0 {
		t.Errorf("it was made again: %+v", got)
	}
}

// A claim by stamp needs room on its pages, a claim by range full ones. The fix suits the mode.
func TestDiagnose_Fillfactor(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	for _, c := range []struct {
		fillfactor string
		mode       buffer.ClaimMode
		wrong      string // "" for no warning
	}{
		{"", buffer.ClaimRange, ""},
		{"", buffer.ClaimStamp, "is 100; a claim by stamp"},
		{"50", buffer.ClaimStamp, ""},
		{"50", buffer.ClaimRange, "is 50; a claim by range"},
		{"100", buffer.ClaimRange, ""},
		{"100", buffer.ClaimStamp, "is 100; a claim by stamp"},
	} {
		if c.fillfactor != "" {
			f.Exec(t, "ALTER TABLE outbox_events SET (fillfactor = "+c.fillfactor+")")
		}
		b := p.as(t, c.mode)
		got := find(b.Diagnose(t.Context()), buffer.LevelWarning, "fillfactor", c.wrong)
		if (got != nil) != (c.wrong != "") {
			t.Errorf("fillfactor %q, %s: got %+v", c.fillfactor, c.mode, got)
		}
		if got == nil {
			continue
		}
		f.Exec(t, got.Fix)
		if got := find(b.Diagnose(t.Context()), buffer.LevelWarning, "fillfactor", ""); got != nil {
			t.Errorf("after the fix: %+v", got)
		}
	}
}
