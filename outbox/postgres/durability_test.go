package postgres_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// TestClaim_SynchronousCommit: with any default of the database, a statement that makes a
// group_id, or leases it, is not forgotten by a crash after its batch was sent.
func TestClaim_SynchronousCommit(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	u, err := url.Parse(p.url)
	check(t, err)
	database := pgx.Identifier{strings.TrimPrefix(u.Path, "/")}.Sanitize()
	for _, statement := range []string{
		"CREATE TABLE seen (no int GENERATED ALWAYS AS IDENTITY, state text, setting text)",
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen (state, setting) VALUES (NEW.state, current_setting('synchronous_commit'));
			RETURN NULL;
		END $$`,
		"CREATE TRIGGER see AFTER INSERT OR UPDATE ON outbox_batches FOR EACH ROW EXECUTE FUNCTION see()",
		"ALTER DATABASE " + database + " SET synchronous_commit = off",
	} {
		f.Exec(t, statement)
	}
	p.pool.Reset() // the default is for new sessions
	byDefault := query(t, p.pool, "SHOW synchronous_commit", pgx.RowTo[string])
	if diff := cmp.Diff([]string{"off"}, byDefault); diff != "" {
		t.Fatalf("the database's default: %s", diff)
	}
	sees := func(doing string, want ...string) {
		t.Helper()
		got := query(t, p.pool, "SELECT state || ' ' || setting FROM seen ORDER BY no", pgx.RowTo[string])
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", doing, diff)
		}
		f.Exec(t, "TRUNCATE seen")
	}

	ids := f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("1")}, outbox.Event{Topic: "t", Payload: []byte("2")}, outbox.Event{Topic: "t", Payload: []byte("3")})
	batch, err := f.Buffer.Claim(t.Context(), 10, lease)
	check(t, err)
	sees("claim", "leased on")

	f.ExpireLease(t, batch.GroupID, lease)
	sees("expired lease", "leased off")
	batch, err = testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	sees("take over", "leased on")

	check(t, f.Buffer.Settle(t.Context(), batch, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:1]},
		{Verdict: buffer.Retry, IDs: ids[1:2], GroupID: buffer.NewGroupID(), After: lease},
		{Verdict: buffer.Retry, IDs: ids[2:], GroupID: buffer.NewGroupID(), After: lease},
	}))
	sees("a settle with several outcomes", "waiting on", "waiting on")
}
