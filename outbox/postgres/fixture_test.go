package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testdb"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func TestMain(m *testing.M) { testserver.Main(m) }

func harness(mode buffer.ClaimMode) buffertest.Harness {
	return buffertest.Harness{RowLocks: true, Delays: true, Claim: mode, Open: func(t testing.TB, opt buffertest.Options) *buffertest.Fixture {
		return newMigratedDB(t, opt).fixture(t, "outbox_events", "orders")
	}}
}

// testDB is a database and a separate client.
type testDB struct {
	url      string
	opt      buffertest.Options
	pool     *pgxpool.Pool
	custom   *customShape          // nil: the tables are the relay's
	migrated postgres.SchemaConfig // the tables that are there; zero for none
}

// newMigratedDB returns a database with the relay's tables.
func newMigratedDB(t testing.TB, opt buffertest.Options) *testDB {
	t.Helper()
	c := schemaOf(opt, "outbox_events")
	p := newTestDB(t, testdb.Postgres(t, c), opt)
	p.migrated = c
	return p
}

func schemaOf(opt buffertest.Options, table string) postgres.SchemaConfig {
	c := postgres.SchemaConfig{Table: table}
	if opt.Bytes {
		c.Payload = postgres.PayloadBytes
	}
	if opt.Archive {
		c.Archive = "outbox_archive"
	}
	return c
}

func newTestDB(t testing.TB, url string, opt buffertest.Options) *testDB {
	t.Helper()
	p := &testDB{url: url, opt: opt}
	var err error
	p.pool, err = pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pool.Close)
	return p
}

func (p *testDB) fixture(t testing.TB, table, pipeline string) *buffertest.Fixture {
	t.Helper()
	schema := schemaOf(p.opt, table)
	var own buffer.CustomTable
	if p.custom != nil {
		own, schema.Custom = p.custom.projecting(table, p.opt.Project), true
		own.Where, own.Mark = p.opt.Marking("now()")
		if p.opt.Delays {
			own.AvailableAt = "available_at"
		}
	}
	if schema != p.migrated {
		if p.custom != nil {
			_, err := p.pool.Exec(t.Context(), p.custom.ddl(table, p.opt.Bytes))
			check(t, err)
		}
		if _, err := postgres.Migrate(t.Context(), p.url, schema); err != nil {
			t.Fatal(err)
		}
	}
	openAs := func(t testing.TB, owner string, ordered bool) *postgres.Buffer {
		b, err := postgres.Open(postgres.Config{
			URL: p.url, Table: table, Pipeline: pipeline, Owner: owner, Archive: schema.Archive, Ordered: ordered, Claim: p.opt.Claim, Custom: own, Connections: 16,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		return b
	}
	open := func(t testing.TB, owner string) *postgres.Buffer { return openAs(t, owner, p.opt.Ordered) }
	first := open(t, "first")
	hooks := 0
	return &buffertest.Fixture{
		Buffer:   first,
		Pipeline: pipeline,
		Table:    table,
		Second:   func(t testing.TB) buffer.Buffer { return open(t, "second") },
		Plain:    func(t testing.TB) buffer.Buffer { return openAs(t, "plain", false) },
		Queue: func(t testing.TB) buffer.Queue {
			if hooks++; hooks > 1 {
				return open(t, "second").DeadLetterQueue()
			}
			return first.DeadLetterQueue()
		},
		Neighbour: func(t testing.TB) *buffertest.Fixture { return p.fixture(t, "neighbour_events", "neighbour") },
		Begin: func(t buffertest.TB) buffertest.Tx {
			tx, err := p.pool.Begin(context.Background())
			check(t, err)
			return &applicationTx{tx: tx, table: table}
		},
		Exec: func(t buffertest.TB, statement string) {
			_, err := p.pool.Exec(context.Background(), statement)
			check(t, err)
		},
		ExpireLease: func(t buffertest.TB, groupID uuid.UUID, ago time.Duration) {
			_, err := p.pool.Exec(context.Background(),
				"UPDATE outbox_batches SET due_at = clock_timestamp() - $2::interval WHERE group_id = $1::uuid", groupID.String(), ago)
			check(t, err)
		},
		Rows: func(t buffertest.TB) []buffertest.Row {
			leased := `(SELECT l.group_id FROM outbox_batches l WHERE l.buffer = 'public.` + table + `' AND e.id::bigint <@ l.members)`
			if !query(t, p.pool, "SELECT to_regclass('outbox_batches') IS NOT NULL", pgx.RowTo[bool])[0] {
				leased = "NULL" // a case has dropped it
			}
			return query(t, p.pool, "SELECT id, coalesce(e.group_id, "+leased+", '00000000-0000-0000-0000-000000000000') FROM "+table+" e "+p.unmarked()+" ORDER BY id",
				func(row pgx.CollectableRow) (r buffertest.Row, err error) {
					var group string
					err = row.Scan(&r.ID, &group)
					r.GroupID = uuid.MustParse(group)
					return r, err
				})
		},
		Row: func(t buffertest.TB, id int64) string {
			rows := query(t, p.pool, fmt.Sprintf("SELECT (to_jsonb(e) - 'group_id')::text FROM %s e WHERE id = %d", table, id), pgx.RowTo[string])
			return strings.Join(rows, "; ")
		},
		Ledger: func(t buffertest.TB) []buffertest.LedgerRow { return query(t, p.pool, ledgerSQL, scanLedger) },
		Dead:   func(t buffertest.TB) []buffertest.DeadLetter { return query(t, p.pool, deadSQL(p.opt.Bytes), scanDead) },
		Archived: func(t buffertest.TB) []buffertest.ArchivedEvent {
			return query(t, p.pool, archivedSQL(p.opt.Bytes), scanArchived)
		},
	}
}

const lease = 30 * time.Second

func check(t buffertest.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func query[T any](t buffertest.TB, pool *pgxpool.Pool, statement string, scan pgx.RowToFunc[T]) []T {
	t.Helper()
	rows, err := pool.Query(context.Background(), statement)
	check(t, err)
	all, err := pgx.CollectRows(rows, scan)
	check(t, err)
	return all
}

const ledgerSQL = `
SELECT group_id::text, buffer, claim, state, lease_no,
       (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint, owner, unfinished_leases, attempts, outages,
       events, first_id, last_id, origins::text[], delivered, address, coalesce(error, ''), oldest_at, claimed_at
FROM outbox_batches ORDER BY group_id`

func scanLedger(row pgx.CollectableRow) (r buffertest.LedgerRow, err error) {
	var (
		group   string
		origins []string
		dueIn   int64
	)
	err = row.Scan(&group, &r.Buffer, &r.Claim, &r.State, &r.LeaseNo, &dueIn, &r.Owner, &r.UnfinishedLeases, &r.Attempts, &r.Outages,
		&r.Events, &r.FirstID, &r.LastID, &origins, &r.Delivered, &r.Address, &r.Error, &r.OldestAt, &r.ClaimedAt)
	if err != nil {
		return r, err
	}
	r.GroupID = uuid.MustParse(group)
	r.DueIn = time.Duration(dueIn) * time.Microsecond
	for _, o := range origins {
		r.Origins = append(r.Origins, uuid.MustParse(o))
	}
	if len(r.Delivered) == 0 {
		r.Delivered = nil
	}
	return r, nil
}

func deadSQL(bytes bool) string {
	return `SELECT pipeline, event_id, topic, key, ` + payloadSQL(bytes) + `, convert_to(headers::text, 'UTF8'),
       created_at, group_id::text, attempts, error, died_at, notified_at, closed_at, coalesce(closed_as, ''), coalesce(closed_by, ''), coalesce(closed_reason, ''), hook_group_id::text
FROM outbox_dead_letters ORDER BY event_id, died_at`
}

func payloadSQL(bytes bool) string {
	if bytes {
		return "payload"
	}
	return "convert_to(payload::text, 'UTF8')"
}

func scanDead(row pgx.CollectableRow) (d buffertest.DeadLetter, err error) {
	var (
		group            string
		notified, closed sql.NullTime
		hook             sql.NullString
	)
	err = row.Scan(&d.Pipeline, &d.EventID, &d.Topic, &d.Key, &d.Payload, &d.Headers, &d.CreatedAt, &group,
		&d.Attempts, &d.Error, &d.DiedAt, &notified, &closed, &d.ClosedAs, &d.ClosedBy, &d.ClosedReason, &hook)
	if err == nil {
		d.GroupID = uuid.MustParse(group)
		d.NotifiedAt, d.ClosedAt = notified.Time, closed.Time
	}
	if hook.Valid {
		d.HookGroupID = uuid.MustParse(hook.String)
	}
	return d, err
}

func archivedSQL(bytes bool) string {
	return `SELECT id, topic, key, ` + payloadSQL(bytes) + `, convert_to(headers::text, 'UTF8'), group_id::text, created_at, archived_at
FROM outbox_archive ORDER BY id, group_id`
}

func scanArchived(row pgx.CollectableRow) (a buffertest.ArchivedEvent, err error) {
	var group string
	err = row.Scan(&a.ID, &a.Topic, &a.Key, &a.Payload, &a.Headers, &group, &a.CreatedAt, &a.ArchivedAt)
	if err == nil {
		a.GroupID = uuid.MustParse(group)
	}
	return a, err
}

// applicationTx inserts as an application in any language would.
type applicationTx struct {
	tx    pgx.Tx
	table string
}

func (a *applicationTx) Insert(t buffertest.TB, events ...outbox.Event) []int64 {
	t.Helper()
	batch := &pgx.Batch{}
	for i := range events {
		e := &events[i]
		var headers *string
		if e.Headers != nil {
			text := string(e.Headers)
			headers = &text
		}
		if !e.AvailableAt.IsZero() {
			batch.Queue("INSERT INTO "+a.table+" (topic, key, payload, headers, available_at) VALUES ($1, $2, $3, $4, $5) RETURNING id",
				e.Topic, e.Key, e.Payload, headers, e.AvailableAt)
			continue
		}
		batch.Queue("INSERT INTO "+a.table+" (topic, key, payload, headers) VALUES ($1, $2, $3, $4) RETURNING id",
			e.Topic, e.Key, e.Payload, headers)
	}
	results := a.tx.SendBatch(context.Background(), batch)
	ids := make([]int64, len(events))
	for i := range ids {
		check(t, results.QueryRow().Scan(&ids[i]))
	}
	check(t, results.Close())
	return ids
}

func (a *applicationTx) Exec(t buffertest.TB, statement string) {
	t.Helper()
	_, err := a.tx.Exec(context.Background(), statement)
	check(t, err)
}

func (a *applicationTx) Commit(t buffertest.TB) {
	t.Helper()
	check(t, a.tx.Commit(context.Background()))
}

func (a *applicationTx) Rollback(t buffertest.TB) {
	t.Helper()
	if err := a.tx.Rollback(context.Background()); err != nil && err != pgx.ErrTxClosed { //nolint:errorlint // documented to be returned as it is
		t.Fatalf("%v", err)
	}
}

// unmarked is the condition for rows of a custom table that are not marked.
func (p *testDB) unmarked() string {
	if p.opt.Marked {
		return "WHERE processed_at IS NULL"
	}
	return ""
}
