package sqlite_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(applicationFile); file != "" {
		runApplication(file)
		return
	}
	goleak.VerifyTestMain(m)
}

func TestBuffer_Stamp(t *testing.T) {
	t.Parallel()
	buffertest.Run(t, harness("outbox_events", buffer.ClaimStamp))
}

func TestBuffer_Range(t *testing.T) {
	t.Parallel()
	buffertest.Run(t, harness("outbox_events", buffer.ClaimRange))
}

// TestBuffer_OddNames: the table's name is quoted everywhere.
func TestBuffer_OddNames(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := harness(`or"der's 'outbox_events' % ?1 {{.}}`, mode).Open(t, buffertest.Options{Claim: mode})
			f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("1")}, outbox.Event{Topic: "t", Payload: []byte("2")})
			testkit.NoError(t, f.Buffer.Check(t.Context()))
			b, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
			testkit.NoError(t, err)
			testkit.NoError(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Dead, IDs: b.IDs()[:1]}, {Verdict: buffer.Delivered, IDs: b.IDs()[1:]}}))
			if rows := f.Rows(t); len(rows) != 0 {
				t.Fatalf("rows left: %v", rows)
			}
		})
	}
}

// TestClaim_BetweenOtherBatches: a claim takes only the events without a group_id among those of a
// live batch, and a new process finds them.
func TestClaim_BetweenOtherBatches(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimStamp).Open(t, buffertest.Options{Claim: buffer.ClaimStamp})
	one := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, one, one, one, one, one)
	first, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
	testkit.NoError(t, err)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_events SET group_id = NULL WHERE id IN (%d, %d)", ids[1], ids[3]))
	second, err := f.Second(t).Claim(t.Context(), 10, time.Hour)
	testkit.NoError(t, err)
	want := []buffertest.Row{
		{ID: ids[0], GroupID: first.GroupID},
		{ID: ids[1], GroupID: second.GroupID},
		{ID: ids[2], GroupID: first.GroupID},
		{ID: ids[3], GroupID: second.GroupID},
		{ID: ids[4], GroupID: first.GroupID},
	}
	if d := cmp.Diff(want, f.Rows(t)); d != "" {
		t.Fatalf("unexpected rows (-want +got):\n%s", d)
	}
}

// TestCountBacklog_AdoptsOrphans: events that carry a uuid without a ledger row, as after a
// restore of the buffer alone, are sent again under a new one. Live batches stay unchanged.
func TestCountBacklog_AdoptsOrphans(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimStamp).Open(t, buffertest.Options{Claim: buffer.ClaimStamp})
	one := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, one, one, one)
	live, err := f.Second(t).Claim(t.Context(), 1, time.Hour)
	testkit.NoError(t, err)
	lost := buffer.NewGroupID()
	f.Exec(t, fmt.Sprintf("UPDATE outbox_events SET group_id = '%s' WHERE id IN (%d, %d)", lost, ids[1], ids[2]))

	backlog, err := f.Buffer.CountBacklog(t.Context(), 10)
	testkit.NoError(t, err)
	if backlog != (buffer.Backlog{Due: 1, Waiting: 1}) {
		t.Fatalf("backlog %+v, want one batch that is due", backlog)
	}
	b, err := testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
	testkit.NoError(t, err)
	if b.GroupID == lost || len(b.Origins) > 0 || !slices.Equal(b.IDs(), ids[1:3]) {
		t.Fatalf("taken over: %s of %v with %v, want another than %s with %v", b.GroupID, b.Origins, b.IDs(), lost, ids[1:3])
	}
	testkit.NoError(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	testkit.NoError(t, f.Buffer.Settle(t.Context(), live, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if rows, ledger := f.Rows(t), f.Ledger(t); len(rows)+len(ledger) != 0 {
		t.Fatalf("left: %v %v", rows, ledger)
	}
}

func BenchmarkBuffer(b *testing.B) {
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		b.Run(string(mode), func(b *testing.B) { buffertest.Benchmark(b, harness("outbox_events", mode)) })
	}
	b.Run("own", func(b *testing.B) { buffertest.Benchmark(b, customHarness("contact_activity_events", "TEXT")) })
	b.Run("marked", func(b *testing.B) {
		buffertest.Benchmark(b, marked(customHarness("contact_activity_events", "TEXT")))
	})
}

func harness(table string, mode buffer.ClaimMode) buffertest.Harness {
	return buffertest.Harness{Delays: true, Claim: mode, Open: func(t testing.TB, opt buffertest.Options) *buffertest.Fixture {
		return newTestDB(t, opt).fixture(t, table, "orders")
	}}
}

// testDB is a file and a separate client.
type testDB struct {
	url string
	opt buffertest.Options
	db  *sql.DB
	// group is the type of group_id of custom tables; "" for the relay's own.
	group string
}

func newTestDB(t testing.TB, opt buffertest.Options) *testDB {
	t.Helper()
	file := filepath.Join(t.TempDir(), "app & more?.db")
	db, err := sql.Open("sqlite", applicationDSN(file))
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, db.Close()) })
	return &testDB{url: urlOf(file), opt: opt, db: db}
}

func (p *testDB) fixture(t testing.TB, table, pipeline string) *buffertest.Fixture {
	t.Helper()
	archive := ""
	if p.opt.Archive {
		archive = "outbox_archive"
	}
	var own buffer.CustomTable
	if p.group != "" {
		own = p.makeCustom(t, table)
		if p.opt.Delays {
			own.AvailableAt = "available_at"
		}
	}
	_, err := sqlite.Migrate(t.Context(), p.url, sqlite.SchemaConfig{Table: table, Bytes: p.opt.Bytes, Archive: archive, Custom: own.Is()})
	testkit.NoError(t, err)
	openAs := func(t testing.TB, owner string, ordered bool) *sqlite.Buffer {
		t.Helper()
		b, err := sqlite.Open(sqlite.Config{URL: p.url, Table: table, Pipeline: pipeline, Owner: owner, Archive: archive, Ordered: ordered, Claim: p.opt.Claim, Custom: own})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		return b
	}
	open := func(t testing.TB, owner string) *sqlite.Buffer { return openAs(t, owner, p.opt.Ordered) }
	quoted := quote(table)
	buf := open(t, "first")
	if own.AvailableAt != "" {
		p.makeDelayedIndex(t, buf)
	}
	hooks := 0
	return &buffertest.Fixture{
		Buffer:   buf,
		Pipeline: pipeline,
		Table:    quoted,
		Second:   func(t testing.TB) buffer.Buffer { return open(t, "second") },
		Plain:    func(t testing.TB) buffer.Buffer { return openAs(t, "plain", false) },
		Queue: func(t testing.TB) buffer.Queue {
			if hooks++; hooks == 1 {
				return buf.DeadLetterQueue()
			}
			return open(t, "another").DeadLetterQueue()
		},
		Neighbour: func(t testing.TB) *buffertest.Fixture { return p.fixture(t, "neighbour_events", "neighbour") },
		Begin: func(t buffertest.TB) buffertest.Tx {
			tx, err := p.db.Begin()
			testkit.NoError(t, err)
			return &applicationTx{tx: tx, table: quoted, bytes: p.opt.Bytes, own: p.group != "", group: p.group}
		},
		Exec: func(t buffertest.TB, statement string) {
			_, err := p.db.Exec(p.groupAsBytes(statement, quoted))
			testkit.NoError(t, err)
		},
		ExpireLease: func(t buffertest.TB, groupID uuid.UUID, ago time.Duration) {
			_, err := p.db.Exec(`UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ? || ' seconds') WHERE group_id = ?`,
				-ago.Seconds(), groupID.String())
			testkit.NoError(t, err)
		},
		Rows: func(t buffertest.TB) []buffertest.Row {
			return p.rows(t, table)
		},
		Row:    func(t buffertest.TB, id int64) string { return p.row(t, table, id) },
		Ledger: func(t buffertest.TB) []buffertest.LedgerRow { return query(t, p.db, ledgerSQL, scanLedger) },
		Dead:   func(t buffertest.TB) []buffertest.DeadLetter { return query(t, p.db, deadSQL, scanDead) },
		Archived: func(t buffertest.TB) []buffertest.ArchivedEvent {
			return query(t, p.db, archivedSQL, scanArchived)
		},
	}
}

// rows says of each event which batch it is in: the one it is stamped with, or the one
// that has it among its members.
func (p *testDB) rows(t buffertest.TB, table string) []buffertest.Row {
	t.Helper()
	batches := query(t, p.db, "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'outbox_batches')", func(rows *sql.Rows) (there bool, err error) { return there, rows.Scan(&there) })
	if !batches[0] { // a test dropped it
		return query(t, p.db, "SELECT id FROM "+quote(table)+" ORDER BY id", func(rows *sql.Rows) (r buffertest.Row, err error) { return r, rows.Scan(&r.ID) })
	}
	unmarked := ""
	if p.opt.Marked {
		unmarked = "WHERE processed_at IS NULL"
	}
	return query(t, p.db, `
		SELECT id, coalesce(CASE WHEN typeof(group_id) = 'blob' THEN hex(group_id) ELSE group_id END, (
		         SELECT l.group_id FROM outbox_batches AS l, json_each(l.members) AS run
		         WHERE l.buffer = '`+strings.ReplaceAll(table, "'", "''")+`' AND e.id BETWEEN run.value ->> 0 AND run.value ->> 1
		       ), '00000000-0000-0000-0000-000000000000')
		FROM `+quote(table)+` AS e `+unmarked+` ORDER BY id`,
		func(rows *sql.Rows) (r buffertest.Row, err error) {
			return r, rows.Scan(&r.ID, &r.GroupID)
		})
}

func query[T any](t buffertest.TB, db *sql.DB, statement string, scan func(*sql.Rows) (T, error)) []T {
	t.Helper()
	rows, err := db.Query(statement)
	testkit.NoError(t, err)
	defer rows.Close()
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		testkit.NoError(t, err)
		all = append(all, one)
	}
	testkit.NoError(t, rows.Err())
	return all
}

const ledgerSQL = `
SELECT group_id, buffer, claim, state, lease_no, (julianday(due_at) - julianday('now')) * 86400, owner,
       unfinished_leases, attempts, outages, events, first_id, last_id, origins, delivered, coalesce(error, ''),
       address, oldest_at, claimed_at
FROM outbox_batches ORDER BY group_id`

func scanLedger(rows *sql.Rows) (r buffertest.LedgerRow, err error) {
	var (
		dueIn                                   float64
		origins, delivered, oldestAt, claimedAt string
	)
	err = rows.Scan(&r.GroupID, &r.Buffer, &r.Claim, &r.State, &r.LeaseNo, &dueIn, &r.Owner,
		&r.UnfinishedLeases, &r.Attempts, &r.Outages, &r.Events, &r.FirstID, &r.LastID, &origins, &delivered, &r.Error,
		&r.Address, &oldestAt, &claimedAt)
	if err != nil {
		return r, err
	}
	r.DueIn = time.Duration(dueIn * float64(time.Second))
	r.OldestAt, err = timeOf(&oldestAt)
	if err != nil {
		return r, err
	}
	if r.ClaimedAt, err = timeOf(&claimedAt); err != nil {
		return r, err
	}
	const none = "[]" // is nil
	if origins != none {
		err = json.Unmarshal([]byte(origins), &r.Origins)
	}
	if delivered != none {
		err = errors.Join(err, json.Unmarshal([]byte(delivered), &r.Delivered))
	}
	return r, err
}

const deadSQL = `
SELECT pipeline, event_id, topic, key, payload, headers, created_at, group_id, attempts, error,
       died_at, notified_at, closed_at, coalesce(closed_as, ''), coalesce(closed_by, ''), coalesce(closed_reason, ''), coalesce(hook_group_id, '00000000-0000-0000-0000-000000000000')
FROM outbox_dead_letters ORDER BY event_id, died_at`

func scanDead(rows *sql.Rows) (d buffertest.DeadLetter, err error) {
	var created, died, notified, closed *string
	err = rows.Scan(&d.Pipeline, &d.EventID, &d.Topic, &d.Key, &d.Payload, &d.Headers, &created, &d.GroupID, &d.Attempts, &d.Error,
		&died, &notified, &closed, &d.ClosedAs, &d.ClosedBy, &d.ClosedReason, &d.HookGroupID)
	for text, at := range map[*string]*time.Time{created: &d.CreatedAt, died: &d.DiedAt, notified: &d.NotifiedAt, closed: &d.ClosedAt} {
		if err == nil {
			*at, err = timeOf(text)
		}
	}
	return d, err
}

const archivedSQL = `
SELECT id, topic, key, payload, headers, group_id, created_at, archived_at
FROM outbox_archive ORDER BY id, group_id`

func scanArchived(rows *sql.Rows) (a buffertest.ArchivedEvent, err error) {
	var created, archived string
	if err := rows.Scan(&a.ID, &a.Topic, &a.Key, &a.Payload, &a.Headers, &a.GroupID, &created, &archived); err != nil {
		return a, err
	}
	if a.CreatedAt, err = timeOf(&created); err != nil {
		return a, err
	}
	a.ArchivedAt, err = timeOf(&archived)
	return a, err
}

func timeOf(text *string) (time.Time, error) {
	if text == nil {
		return time.Time{}, nil
	}
	return time.Parse("2006-01-02T15:04:05.000Z", *text)
}

// applicationTx inserts as an application in any language would.
type applicationTx struct {
	tx    *sql.Tx
	table string
	bytes bool
	own   bool
	group string
}

// availableAt is a time as the application writes it. Custom tables hold every form.
func (a *applicationTx) availableAt(at time.Time) any {
	switch a.group {
	case "BLOB":
		return at.UnixMilli()
	case "TEXT":
		return at.Format("2006-01-02 15:04:05.000")
	}
	return at.Format("2006-01-02T15:04:05.000Z")
}

func (a *applicationTx) Insert(t buffertest.TB, events ...outbox.Event) []int64 {
	t.Helper()
	statement := "INSERT INTO " + a.table + " (topic, key, payload, headers) VALUES (?, ?, ?, ?)"
	if a.own {
		statement = "INSERT INTO " + a.table + " (topic, key, payload, headers, raw) VALUES (?, ?, ?, ?, X'00FF80277B7D')"
	}
	insert, err := a.tx.Prepare(statement)
	testkit.NoError(t, err)
	defer insert.Close()
	ids := make([]int64, len(events))
	for i, e := range events {
		var payload, headers any = string(e.Payload), nil
		if a.bytes {
			payload = e.Payload
		}
		if e.Headers != nil {
			headers = string(e.Headers)
		}
		var result sql.Result
		if e.AvailableAt.IsZero() {
			result, err = insert.Exec(e.Topic, e.Key, payload, headers)
		} else {
			delayed := strings.NewReplacer("(topic", "(available_at, topic", "VALUES (", "VALUES (?, ").Replace(statement)
			result, err = a.tx.Exec(delayed, a.availableAt(e.AvailableAt.UTC()), e.Topic, e.Key, payload, headers)
		}
		testkit.NoError(t, err)
		ids[i], err = result.LastInsertId()
		testkit.NoError(t, err)
	}
	return ids
}

func (a *applicationTx) Exec(t buffertest.TB, statement string) {
	t.Helper()
	_, err := a.tx.ExecContext(context.Background(), statement)
	testkit.NoError(t, err)
}

func (a *applicationTx) Commit(t buffertest.TB) {
	t.Helper()
	testkit.NoError(t, a.tx.Commit())
}

func (a *applicationTx) Rollback(t buffertest.TB) {
	t.Helper()
	if err := a.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		t.Fatalf("%v", err)
	}
}
