package postgres_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestCustomTable_UUIDKeys runs the suite on a custom table whose key is a uuid, without a
// cursor. The suite sees the column id; the uuid is computed from it.
func TestCustomTable_UUIDKeys(t *testing.T) { buffertest.Run(t, uuidHarness()) }

var uuidKeys = &customShape{
	first: `"The ""key""" uuid GENERATED ALWAYS AS (lpad(to_hex(id), 32, '0')::uuid) STORED PRIMARY KEY,`, id: "id bigserial UNIQUE",
	custom: buffer.CustomTable{ID: `The "key"`},
}

func uuidHarness() buffertest.Harness {
	return buffertest.Harness{RowLocks: true, Custom: true, UUIDKeys: true, Claim: buffer.ClaimStamp, Open: func(t testing.TB, opt buffertest.Options) *buffertest.Fixture {
		schema := schemaOf(opt, customName)
		schema.Custom = true
		url := testserver.PostgresFrom(t, fmt.Sprintf("%+v uuid", schema), func(ctx context.Context, url string) error {
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				return err
			}
			_, err = conn.Exec(ctx, uuidKeys.ddl(customName, opt.Bytes))
			if err = errors.Join(err, conn.Close(ctx)); err != nil {
				return err
			}
			_, err = postgres.Migrate(ctx, url, schema)
			return err
		})
		p := newTestDB(t, url, opt)
		p.custom, p.migrated = uuidKeys, schema
		ids := &uuidIDs{db: p, numbers: map[groupID]int64{}, ids: map[int64]int64{}}
		return ids.fixture(p.fixture(t, customName, "orders"))
	}}
}

// uuidIDs converts between the ids of the suite and the numbers that stand for uuids in leases,
// ledger and dead letters. A number belongs to one event in one group_id.
type uuidIDs struct {
	db *testDB

	mu      sync.Mutex
	numbers map[groupID]int64
	ids     map[int64]int64 // by number
}

type groupID struct {
	group uuid.UUID
	id    int64
}

func uuidOf(id int64) (u uuid.UUID) {
	binary.BigEndian.PutUint64(u[8:], uint64(id))
	return u
}

func idOf(u uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(u[8:])) }

func (n *uuidIDs) learn(group uuid.UUID, number, id int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.numbers[groupID{group, id}], n.ids[number] = number, id
}

func (n *uuidIDs) id(number int64) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ids[number]
}

func (n *uuidIDs) idsOf(numbers []int64) (ids []int64) {
	for _, number := range numbers {
		ids = append(ids, n.id(number))
	}
	return ids
}

func (n *uuidIDs) numbersOf(group uuid.UUID, ids []int64) (numbers []int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range ids {
		number, known := n.numbers[groupID{group, id}]
		if !known {
			number = -id // no event's
		}
		numbers = append(numbers, number)
	}
	return numbers
}

// fixture wraps f, whose buffers and tables have numbers.
func (n *uuidIDs) fixture(f *buffertest.Fixture) *buffertest.Fixture {
	wrapped := *f
	wrapped.Buffer = uuidBuffer{f.Buffer, uuidQueue{f.Buffer, n}}
	wrapped.Second = func(t testing.TB) buffer.Buffer { b := f.Second(t); return uuidBuffer{b, uuidQueue{b, n}} }
	wrapped.Queue = func(t testing.TB) buffer.Queue { return uuidQueue{f.Queue(t), n} }
	wrapped.Neighbour = func(t testing.TB) *buffertest.Fixture { return n.fixture(f.Neighbour(t)) }
	wrapped.Exec = func(t buffertest.TB, statement string) { f.Exec(t, uuidStatement(statement)) }
	wrapped.Ledger = func(t buffertest.TB) []buffertest.LedgerRow {
		n.learnTables(t)
		ledger := f.Ledger(t)
		for i := range ledger {
			l := &ledger[i]
			l.FirstID, l.LastID, l.Delivered = n.id(l.FirstID), n.id(l.LastID), n.idsOf(l.Delivered)
		}
		return ledger
	}
	wrapped.Dead = func(t buffertest.TB) []buffertest.DeadLetter {
		n.learnTables(t)
		dead := f.Dead(t)
		for i := range dead {
			dead[i].EventID = n.id(dead[i].EventID)
		}
		slices.SortStableFunc(dead, func(a, b buffertest.DeadLetter) int {
			return cmp.Or(cmp.Compare(a.EventID, b.EventID), a.DiedAt.Compare(b.DiedAt))
		})
		return dead
	}
	return &wrapped
}

// learnTables learns the numbers in the ledger and the dead letters.
func (n *uuidIDs) learnTables(t buffertest.TB) {
	t.Helper()
	type row struct {
		group  string
		number int64
		key    string
	}
	for _, r := range query(t, n.db.pool, `
		SELECT group_id::text, first_id + u.n - 1, u.find::text FROM outbox_batches, unnest(uuids) WITH ORDINALITY u(find, n)
		UNION ALL
		SELECT group_id::text, event_id, event_uuid::text FROM outbox_dead_letters WHERE event_uuid IS NOT NULL`,
		func(collectable pgx.CollectableRow) (r row, err error) {
			return r, collectable.Scan(&r.group, &r.number, &r.key)
		}) {
		n.learn(uuid.MustParse(r.group), r.number, idOf(uuid.MustParse(r.key)))
	}
}

var (
	eventIs = regexp.MustCompile(`\bevent_id = (\d+)`)
	eventIn = regexp.MustCompile(`\bevent_id IN \(([\d, ]+)\)`)
)

// uuidStatement names events by their uuids in a statement about dead letters.
func uuidStatement(statement string) string {
	statement = eventIs.ReplaceAllStringFunc(statement, func(s string) string {
		return "event_uuid = '" + uuidText(eventIs.FindStringSubmatch(s)[1]) + "'"
	})
	return eventIn.ReplaceAllStringFunc(statement, func(s string) string {
		var keys []string
		for id := range strings.SplitSeq(eventIn.FindStringSubmatch(s)[1], ",") {
			keys = append(keys, "'"+uuidText(strings.TrimSpace(id))+"'")
		}
		return "event_uuid IN (" + strings.Join(keys, ", ") + ")"
	})
}

func uuidText(decimal string) string {
	id, err := strconv.ParseInt(decimal, 10, 64)
	if err != nil {
		panic(err)
	}
	return uuidOf(id).String()
}

// uuidQueue wraps a queue.
type uuidQueue struct {
	buffer.Queue
	n *uuidIDs
}

// fromRelay returns the lease as the suite sees it.
func (q uuidQueue) fromRelay(l *buffer.Lease, err error) (*buffer.Lease, error) {
	if l == nil {
		return nil, err
	}
	seen := *l
	seen.Events, seen.Rejected = slices.Clone(l.Events), slices.Clone(l.Rejected)
	for _, e := range events(&seen) {
		if e.UUID == uuid.Nil {
			return nil, fmt.Errorf("event %d of batch %s has no uuid", e.ID, l.GroupID)
		}
		q.n.learn(l.GroupID, e.ID, idOf(e.UUID))
		e.ID, e.UUID = idOf(e.UUID), uuid.Nil
	}
	seen.Delivered = q.n.idsOf(l.Delivered)
	seen.FirstID, seen.LastID = q.n.id(l.FirstID), q.n.id(l.LastID)
	return &seen, err
}

// toRelay returns the lease as the relay knows it.
func (q uuidQueue) toRelay(l *buffer.Lease) *buffer.Lease {
	known := *l
	known.Events, known.Rejected = slices.Clone(l.Events), slices.Clone(l.Rejected)
	for _, e := range events(&known) {
		e.UUID, e.ID = uuidOf(e.ID), q.n.numbersOf(l.GroupID, []int64{e.ID})[0]
	}
	known.Delivered = q.n.numbersOf(l.GroupID, l.Delivered)
	bounds := q.n.numbersOf(l.GroupID, []int64{l.FirstID, l.LastID})
	known.FirstID, known.LastID = bounds[0], bounds[1]
	return &known
}

// events returns the events of a lease, including the rejected ones.
func events(l *buffer.Lease) (all []*outbox.Event) {
	for i := range l.Events {
		all = append(all, &l.Events[i])
	}
	for i := range l.Rejected {
		all = append(all, &l.Rejected[i].Event)
	}
	return all
}

func (q uuidQueue) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	return q.fromRelay(q.Queue.Claim(ctx, limit, lease))
}

func (q uuidQueue) TakeOver(ctx context.Context, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	return q.fromRelay(q.Queue.TakeOver(ctx, lease, due))
}

func (q uuidQueue) Read(ctx context.Context, l *buffer.Lease) error {
	known := q.toRelay(l)
	read, err := q.fromRelay(known, q.Queue.Read(ctx, known))
	if err == nil {
		l.SetContents(read)
	}
	return err
}

func (q uuidQueue) Renew(ctx context.Context, l *buffer.Lease, lease time.Duration) error {
	known := q.toRelay(l)
	err := q.Queue.Renew(ctx, known, lease)
	l.Ends = known.Ends
	return err
}

func (q uuidQueue) Settle(ctx context.Context, l *buffer.Lease, outcomes []buffer.Outcome) error {
	outcomes = slices.Clone(outcomes)
	for i := range outcomes {
		if ids := outcomes[i].IDs; ids != nil {
			outcomes[i].IDs = q.n.numbersOf(l.GroupID, ids)
		}
	}
	return q.Queue.Settle(ctx, q.toRelay(l), outcomes)
}

func (q uuidQueue) MarkDelivered(ctx context.Context, l *buffer.Lease, delivered []int64) error {
	return q.Queue.MarkDelivered(ctx, q.toRelay(l), q.n.numbersOf(l.GroupID, delivered))
}

// uuidBuffer wraps a buffer.
type uuidBuffer struct {
	buffer.Buffer
	queue uuidQueue
}

func (b uuidBuffer) DeadLetterQueue() buffer.Queue {
	return uuidQueue{b.Buffer.DeadLetterQueue(), b.queue.n}
}

// ReportRelay implements buffer.RelayReporter.
func (b uuidBuffer) ReportRelay(ctx context.Context, r buffer.RelayReport) error {
	return b.Buffer.(buffer.RelayReporter).ReportRelay(ctx, r)
}

// Pause, Resume and Paused implement buffer.Pauser and buffer.Pausable.

func (b uuidBuffer) Pause(ctx context.Context, sink, by, reason string) (bool, error) {
	return b.Buffer.(buffer.Pauser).Pause(ctx, sink, by, reason)
}

func (b uuidBuffer) Resume(ctx context.Context, sink string) (bool, error) {
	return b.Buffer.(buffer.Pauser).Resume(ctx, sink)
}

func (b uuidBuffer) Paused(ctx context.Context) (bool, error) {
	return b.Buffer.(buffer.Pausable).Paused(ctx)
}

func (b uuidBuffer) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	return b.queue.Claim(ctx, limit, lease)
}

func (b uuidBuffer) TakeOver(ctx context.Context, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	return b.queue.TakeOver(ctx, lease, due)
}

func (b uuidBuffer) Read(ctx context.Context, l *buffer.Lease) error { return b.queue.Read(ctx, l) }

func (b uuidBuffer) Renew(ctx context.Context, l *buffer.Lease, lease time.Duration) error {
	return b.queue.Renew(ctx, l, lease)
}

func (b uuidBuffer) Settle(ctx context.Context, l *buffer.Lease, outcomes []buffer.Outcome) error {
	return b.queue.Settle(ctx, l, outcomes)
}

func (b uuidBuffer) MarkDelivered(ctx context.Context, l *buffer.Lease, delivered []int64) error {
	return b.queue.MarkDelivered(ctx, l, delivered)
}

func (b uuidBuffer) Peek(ctx context.Context, limit int) (*buffer.Lease, error) {
	return b.queue.fromRelay(b.Buffer.Peek(ctx, limit))
}

func (b uuidBuffer) BatchEvents(ctx context.Context, groupID uuid.UUID, limit int) (*buffer.Lease, error) {
	return b.queue.fromRelay(b.Buffer.BatchEvents(ctx, groupID, limit))
}

func byUUID(f buffer.DeadFilter) buffer.DeadFilter {
	if f.IDs != nil {
		f.UUIDs = []uuid.UUID{}
		for _, id := range f.IDs {
			f.UUIDs = append(f.UUIDs, uuidOf(id))
		}
		f.IDs = nil
	}
	return f
}

func (b uuidBuffer) ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]buffer.DeadEvent, error) {
	if after != nil {
		after = &buffer.DeadKey{EventID: b.queue.n.numbersOf(after.GroupID, []int64{after.EventID})[0], GroupID: after.GroupID}
	}
	events, err := b.Buffer.ListDead(ctx, byUUID(f), after, limit)
	return b.queue.n.translated(events), err
}

func (b uuidBuffer) ListNewestDead(ctx context.Context, f buffer.DeadFilter, limit int) ([]buffer.DeadEvent, error) {
	events, err := b.Buffer.ListNewestDead(ctx, byUUID(f), limit)
	return b.queue.n.translated(events), err
}

// translated gives dead letters the ids of the suite.
func (n *uuidIDs) translated(events []buffer.DeadEvent) []buffer.DeadEvent {
	for i := range events {
		e := &events[i]
		n.learn(e.GroupID, e.ID, idOf(e.UUID))
		e.ID, e.UUID = idOf(e.UUID), uuid.Nil
	}
	return events
}

func (b uuidBuffer) CountDead(ctx context.Context, f buffer.DeadFilter) (buffer.DeadCount, error) {
	return b.Buffer.CountDead(ctx, byUUID(f))
}

func (b uuidBuffer) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	if told := f.OnRefused; told != nil {
		f.OnRefused = func(r buffer.Refusal) { told(buffer.Refusal{ID: idOf(r.UUID), Reason: r.Reason}) }
	}
	return b.Buffer.Replay(ctx, byUUID(f), limit)
}

func (b uuidBuffer) EditDead(ctx context.Context, e buffer.DeadEdit) error {
	e.UUID = uuidOf(e.ID)
	return b.Buffer.EditDead(ctx, e)
}

func (b uuidBuffer) Discard(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	return b.Buffer.Discard(ctx, byUUID(f), limit)
}
