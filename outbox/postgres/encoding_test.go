package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// encodedDB makes a migrated database with another encoding than UTF8.
func encodedDB(t *testing.T, encoding string) (pool *pgxpool.Pool, b *postgres.Buffer) {
	t.Helper()
	p := newMigratedDB(t, buffertest.Options{})
	u, err := url.Parse(p.url)
	check(t, err)
	name := strings.TrimPrefix(u.Path, "/") + "_encoded"
	_, err = p.pool.Exec(t.Context(), `CREATE DATABASE "`+name+`" ENCODING '`+encoding+`' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	check(t, err)
	t.Cleanup(func() {
		_, err := p.pool.Exec(context.Background(), `DROP DATABASE "`+name+`" WITH (FORCE)`)
		check(t, err)
	})
	u.Path = "/" + name
	_, err = postgres.Migrate(t.Context(), u.String(), postgres.SchemaConfig{})
	check(t, err)
	pool, err = pgxpool.New(t.Context(), u.String())
	check(t, err)
	t.Cleanup(pool.Close)
	b, err = postgres.Open(postgres.Config{URL: u.String(), Pipeline: "orders"})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	check(t, b.Check(t.Context()))
	return pool, b
}

// Texts arrive in UTF-8 whatever the database's encoding. A database with SQL_ASCII does not know its own: bytes arrive as they are.
func TestClaim_Encodings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ encoding, payload, want string }{
		{"LATIN1", `E'{"size": "Gr\xf6\xdfe"}'`, `{"size": "Größe"}`},
		{"SQL_ASCII", `E'{"size": "Gr\xf6\xdfe"}'`, "{\"size\": \"Gr\xf6\xdfe\"}"},
	} {
		t.Run(c.encoding, func(t *testing.T) {
			t.Parallel()
			pool, b := encodedDB(t, c.encoding)
			_, err := pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES ('t', "+c.payload+")")
			check(t, err)
			l, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			if l.Len() != 1 || string(l.Events[0].Payload) != c.want {
				t.Errorf("claimed %+v, want payload %q", l, c.want)
			}
		})
	}
}

// A history keeps characters that the database's encoding does not have.
func TestHistory_Encodings(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			pool, b := encodedDB(t, encoding)
			_, err := pool.Exec(t.Context(), `INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')`)
			check(t, err)
			l, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			const first, last = "400 größe € 🙂 \u202e", "422 <b>'größe'\\"
			check(t, b.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: l.GroupID, Tried: true, Error: first, Attempts: 1}}))
			l, err = b.TakeOver(t.Context(), lease, buffer.DueRetry)
			check(t, err)
			check(t, b.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Dead, Tried: true, Error: last, Attempts: 2}}))
			dead, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
			check(t, err)
			if len(dead) != 1 || len(dead[0].History) != 2 || dead[0].History[0].Error != first || dead[0].History[1].Error != last {
				t.Errorf("the dead letters are %+v", dead)
			}
		})
	}
}

// An event whose text has no equivalent in UTF-8 cannot be read: its batch says so, and holds nothing but its id.
func TestClaim_Unreadable(t *testing.T) {
	t.Parallel()
	pool, b := encodedDB(t, "WIN1252")
	_, err := pool.Exec(t.Context(), `INSERT INTO outbox_events (topic, payload) VALUES ('t', '1'), ('t', E'"\x81"')`)
	check(t, err)
	l, err := b.Claim(t.Context(), 10, lease)
	check(t, err)
	if l.Len() != 2 || !errors.Is(l.NotRead, buffer.ErrUnreadable) || !strings.Contains(l.NotRead.Error(), "no equivalent") {
		t.Fatalf("claimed %+v", l)
	}
	parts := []buffer.Outcome{
		{Verdict: buffer.Retry, IDs: []int64{1}, GroupID: buffer.NewGroupID()},
		{Verdict: buffer.Retry, IDs: []int64{2}, GroupID: buffer.NewGroupID()},
	}
	check(t, b.Settle(t.Context(), l, parts))
	for range parts {
		l, err := b.TakeOver(t.Context(), lease, buffer.DueRetry)
		check(t, err)
		bad := l.FirstID == 2
		if l.Len() != 1 || bad != errors.Is(l.NotRead, buffer.ErrUnreadable) {
			t.Errorf("took over %+v", l)
		}
		if bad && !errors.Is(b.Read(t.Context(), l), buffer.ErrUnreadable) {
			t.Errorf("read %+v", l)
		}
	}
}

// An answer of a sink can have characters that the encoding of the database lacks. It is still stored, with others in their place: otherwise
// the database refuses to settle the batch whatever becomes of it, and its good events wait for ever.
func TestSettle_Encodings(t *testing.T) {
	t.Parallel()
	const answer = "422 Unprocessable Entity: the name\u2019s too long \u6f22\x00"
	for _, encoding := range []string{"LATIN1", "WIN1252", "EUC_JP", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			pool, b := encodedDB(t, encoding)
			_, err := pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT 't', '1' FROM generate_series(1, 4)")
			check(t, err)
			l, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			whole := []buffer.Outcome{{Verdict: buffer.Retry, GroupID: l.GroupID, Outages: 1, Error: answer}}
			if err := b.Settle(t.Context(), l, whole); err != nil {
				t.Fatalf("a batch that waits: %v", err)
			}
			l, err = b.TakeOver(t.Context(), lease, buffer.DueRetry)
			check(t, err)
			if l == nil {
				t.Fatal("nothing is due")
			}
			parts := []buffer.Outcome{
				{Verdict: buffer.Delivered, IDs: []int64{1, 2}},
				{Verdict: buffer.Retry, IDs: []int64{3}, GroupID: buffer.NewGroupID(), Attempts: 1, Error: answer},
				{Verdict: buffer.Dead, IDs: []int64{4}, Attempts: 1, Error: answer},
			}
			if err := b.Settle(t.Context(), l, parts); err != nil {
				t.Fatalf("a batch in parts: %v", err)
			}
			var said string
			check(t, pool.QueryRow(t.Context(), "SELECT error FROM outbox_dead_letters WHERE event_id = 4").Scan(&said))
			if !strings.HasPrefix(said, "422 Unprocessable Entity: the name") || !strings.Contains(said, "too long") {
				t.Errorf("the dead letter says %q", said)
			}
			if err := b.ReportRelay(t.Context(), buffer.RelayReport{First: true, Version: "1", NotReady: answer, NotReadyClass: "sink", Notice: answer}); err != nil {
				t.Errorf("the report of the relay: %v", err)
			}
		})
	}
}

// Who paused and why is stored, too, also by a command whose first statement this is.
func TestPause_Encoding(t *testing.T) {
	t.Parallel()
	const reason = "Umzug \u2013 Dienstag"
	pool, claimer := encodedDB(t, "LATIN1")
	_, err := pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')")
	check(t, err)
	l, err := claimer.Claim(t.Context(), 10, lease)
	check(t, err)
	check(t, claimer.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
	for what, first := range map[string]func(b *postgres.Buffer) error{
		"pause": func(b *postgres.Buffer) error { _, err := b.Pause(t.Context(), "", "Ren\u00e9", reason); return err },
		"discard": func(b *postgres.Buffer) error {
			_, err := b.Discard(t.Context(), buffer.DeadFilter{ClosedBy: "Ren\u00e9", ClosedReason: reason}, 10)
			return err
		},
	} {
		b, err := postgres.Open(postgres.Config{URL: pool.Config().ConnString(), Pipeline: "orders", Owner: what})
		check(t, err)
		if err := first(b); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		check(t, b.Close())
	}
}
