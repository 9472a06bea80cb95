package deadletter

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Queue is the queue of the pipeline's dead-letter hook, or of the hook of one of several sinks. It implements buffer.Queue; its methods are safe for concurrent use.
type Queue struct {
	*ledger.Ledger
	base            *ledger.Base
	check           func(context.Context) error
	releaseInterval time.Duration

	mu        sync.Mutex
	releaseAt time.Time
}

// NewQueue returns the queue of a pipeline's dead letters, which check checks: those of a sink that has a hook of its own, or with sink
// ledger.DefaultSink the others. It looks for orphaned dead letters at the first count and once an interval.
func NewQueue(base *ledger.Base, sink string, check func(context.Context) error, releaseInterval time.Duration) *Queue {
	return &Queue{
		Ledger: ledger.New(base, ledger.DeadLettersSuffix, sink, func() time.Time { return time.Time{} }),
		base:   base, check: check, releaseInterval: releaseInterval,
	}
}

// Check implements buffer.Inspector.
func (q *Queue) Check(ctx context.Context) error { return q.check(ctx) }

// Each queue claims the dead letters of one hook: $2 is the sink whose hook it is, with the names that the sink had before, and 'default' is the
// pipeline's. The registry says which sinks have a hook, not the process: of two relays only one may know it. A pipeline with a single sink needs no
// privilege on outbox_sinks.
const (
	ofHookSQL = `= ANY (ARRAY(
          SELECT unnest(s.sink || s.formerly) FROM outbox_sinks s
          WHERE s.buffer || '` + ledger.DeadLettersSuffix + `' = $1 AND s.hook AND s.dropped_at IS NULL AND $2 IN ('default', s.sink)))) = ($2 <> 'default')`
	letterOfHookSQL = ` AND (d.sink ` + ofHookSQL
	olderOfHookSQL  = ` AND (o.sink ` + ofHookSQL
)

// sql fills the real names into a statement.
func (q *Queue) sql(t *ledger.Tables, statement string) string {
	if q.base.Sinks == nil {
		statement = strings.NewReplacer(letterOfHookSQL, "", olderOfHookSQL, "").Replace(statement)
	}
	return t.SQL(statement)
}

// Claimed dead letters have a ledger row and are counted there. The age of a dead letter is measured from when it
// died.
const queueSQL = `
WITH ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         count(*) FILTER (WHERE due_at <= (SELECT clock_timestamp()) AND NOT ` + ledger.SuspectSQL + `) AS due,
         count(*) FILTER (WHERE due_at <= (SELECT clock_timestamp()) AND ` + ledger.SuspectSQL + `) AS suspects,
         coalesce(sum(greatest(events - cardinality(delivered), 0)), 0)::bigint AS claimed,
         min(oldest_at) FILTER (WHERE events > cardinality(delivered) AND isfinite(oldest_at)) AS oldest_at
  FROM outbox_batches WHERE buffer = $1 AND sink = $2
), unclaimed AS (
  SELECT count(*) AS n, min(died_at) FILTER (WHERE isfinite(died_at)) AS oldest_at
  FROM (SELECT died_at FROM outbox_dead_letters d
        WHERE pipeline = $4 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL` + letterOfHookSQL + `
        LIMIT $3::bigint) d
)
SELECT leased, waiting, delivered, due, claimed, unclaimed.n,
       coalesce(extract(epoch FROM clock_timestamp() - least(ledger.oldest_at, unclaimed.oldest_at)) * 1000000, 0)::bigint,
       suspects
FROM ledger, unclaimed`

// count calls row with the result of queueSQL. limit bounds the unclaimed dead letters that are counted.
func (q *Queue) count(ctx context.Context, t *ledger.Tables, limit string, row func(n func(column int) int64)) error {
	return q.base.DB.Transact(ctx, pg.ReadTx(q.base.DB.StatementTimeout, pg.PlanByPrimaryKey...), pg.Step{
		SQL: q.sql(t, queueSQL), Args: []string{t.Buffer + ledger.DeadLettersSuffix, q.SinkName(), limit, q.base.Pipeline},
		Row: func(v [][]byte) error {
			row(func(column int) int64 { return pg.ReadInt8(v[column]) })
			return nil
		},
	})
}

// CountBacklog implements buffer.Inspector.
func (q *Queue) CountBacklog(ctx context.Context, limit int) (backlog buffer.Backlog, err error) {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return backlog, err
	}
	if err := q.releaseOrphaned(ctx, t, limit); err != nil {
		return backlog, q.base.Explain(ctx, "releasing dead letters without a batch", err)
	}
	err = q.count(ctx, t, pg.Int(int64(limit)), func(n func(int) int64) {
		backlog = buffer.Backlog{Waiting: int(n(1)), Delivered: int(n(2)), Due: int(n(3)), Suspects: int(n(7)), Unclaimed: int(n(5))}
	})
	return backlog, q.base.Explain(ctx, "counting unnotified dead letters", err)
}

// Status implements buffer.Inspector. It leaves out what the buffer's status has: dead letters and transactions.
func (q *Queue) Status(ctx context.Context) (s buffer.Status, err error) {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return s, err
	}
	err = q.count(ctx, t, pg.Null, func(n func(int) int64) {
		s = buffer.Status{Leased: n(0), Waiting: n(1), Delivered: n(2), Pending: n(4) + n(5), OldestPending: max(0, time.Duration(n(6))*time.Microsecond)}
	})
	return s, q.base.Explain(ctx, "reading the status of the dead letters", err)
}

const releaseOrphanedSQL = `
UPDATE outbox_dead_letters d SET hook_group_id = NULL
WHERE pipeline = $1 AND notified_at IS NULL AND hook_group_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = d.hook_group_id)`

// The pipeline has a single sink again. What waits for a hook of one of several comes to the pipeline's.
const takeHooksSQL = `
UPDATE outbox_batches SET sink = 'default'
WHERE buffer = $1 AND sink <> 'default'
  AND NOT EXISTS (SELECT FROM outbox_buffers b WHERE b.buffer = $2 AND b.routed)`

// releaseOrphaned releases, when that is due, claimed dead letters whose ledger row is gone (a
// restore, a manual change).
func (q *Queue) releaseOrphaned(ctx context.Context, t *ledger.Tables, limit int) error {
	q.mu.Lock()
	due := limit > 0 && !time.Now().Before(q.releaseAt)
	if due {
		q.releaseAt = time.Now().Add(q.releaseInterval)
	}
	q.mu.Unlock()
	if !due {
		return nil
	}
	steps := []pg.Step{
		q.base.DB.WriteTx(q.base.DB.StatementTimeout, append([]string{"lock_timeout", pg.Milliseconds(t.LockTimeout)}, pg.PlanByKey...)...),
		{SQL: t.SQL(releaseOrphanedSQL), Args: []string{q.base.Pipeline}},
	}
	if q.base.Sinks == nil {
		steps = append(steps, pg.Step{SQL: t.SQL(takeHooksSQL), Args: []string{t.Buffer + ledger.DeadLettersSuffix, t.Buffer}})
	}
	err := q.base.DB.Transact(ctx, steps...)
	if err != nil {
		q.mu.Lock()
		q.releaseAt = time.Time{} // the next count tries again
		q.mu.Unlock()
	}
	return err
}

// A claim by stamp, with hook_group_id. Two dead letters of one event are never in one batch, whose
// events differ by id, or by uuid: the older one is claimed first. A later dead letter of a uuid
// has a higher number, so the earlier one is picked first.
const claimSQL = `
WITH picked AS MATERIALIZED (
  SELECT d.event_id, d.group_id, d.died_at, d.event_uuid FROM outbox_dead_letters d
  WHERE d.pipeline = $3 AND d.closed_at IS NULL AND d.notified_at IS NULL AND d.hook_group_id IS NULL` + letterOfHookSQL + `
    AND NOT EXISTS (
      SELECT FROM outbox_dead_letters o
      WHERE o.pipeline = $3 AND o.event_id = d.event_id AND o.closed_at IS NULL AND o.notified_at IS NULL
        AND o.hook_group_id IS NULL AND (o.died_at, o.group_id) < (d.died_at, d.group_id)` + olderOfHookSQL + `)
  ORDER BY d.event_id, d.group_id LIMIT $4::bigint
  FOR UPDATE OF d SKIP LOCKED
), distinct_events AS MATERIALIZED (
  SELECT event_id, group_id, died_at
  FROM (SELECT *, row_number() OVER (PARTITION BY event_uuid ORDER BY event_id) AS n FROM picked) p
  WHERE n = 1 OR event_uuid IS NULL
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, sink)
  SELECT $7::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $5::interval, $6, 1,
         0, 0, count(*), min(event_id), max(event_id), min(died_at), $2
  FROM distinct_events HAVING count(*) > 0
)
UPDATE outbox_dead_letters d SET hook_group_id = $7::uuid
FROM distinct_events p WHERE d.pipeline = $3 AND d.event_id = p.event_id AND d.group_id = p.group_id`

// The dead letters of a batch, without their contents if $3 is false. See ledger.Base.List.
const readSQL = `
SELECT d.event_id, d.topic, CASE WHEN $3::boolean THEN d.key END, CASE WHEN $3::boolean THEN d.payload END,
       CASE WHEN $3::boolean THEN d.headers END, d.created_at,
       d.group_id, d.attempts, d.error, d.died_at, d.notified_at, d.closed_at, d.closed_as, d.closed_by, d.closed_reason, d.event_uuid, d.sink, clock_timestamp()
FROM outbox_batches l JOIN outbox_dead_letters d ON d.pipeline = $2 AND d.event_id BETWEEN l.first_id AND l.last_id
  AND d.hook_group_id = l.group_id AND d.notified_at IS NULL
WHERE l.group_id = $1::uuid`

// Claim implements buffer.Claimer.
func (q *Queue) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	if err := q.base.Own(ctx, t); err != nil {
		return nil, err
	}
	var (
		batch = buffer.Lease{
			Batch: buffer.Batch{GroupID: buffer.NewGroupID()}, LeaseNo: 1, Ends: time.Now().Add(lease), UnfinishedLeases: 1,
		}
		claimed int64
	)
	begin := q.base.DB.WriteTx(q.base.DB.StatementTimeout, append([]string{"enable_bitmapscan", "off", "enable_sort", "off"}, pg.PlanByKey...)...)
	err = q.base.DB.Transact(ctx, begin, pg.Step{
		SQL: q.sql(t, claimSQL),
		Args: []string{
			t.Buffer + ledger.DeadLettersSuffix, q.SinkName(), q.base.Pipeline, pg.Int(int64(limit)), pg.Interval(lease), q.base.Owner, batch.GroupID.String(),
		},
		Affected: &claimed,
	})
	if err != nil {
		return nil, q.base.Explain(ctx, "claiming dead letters", err)
	}
	if claimed == 0 {
		return nil, nil
	}
	return q.read(ctx, t, batch, q.base.ReadLimit(lease))
}

const takeOverSQL = ledger.DueSQL + ledger.TakenSQL + ledger.NothingSQL

// TakeOver implements buffer.Claimer.
func (q *Queue) TakeOver(ctx context.Context, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	if err := q.base.Own(ctx, t); err != nil {
		return nil, err
	}
	batch, err := ledger.TakeOver(ctx, q.Ledger, t, lease, due, &pg.EventDecoder{}, nil, pg.PlanByKey, takeOverSQL)
	if err != nil || batch == nil {
		return nil, err
	}
	read, err := q.read(ctx, t, *batch, q.base.ReadLimit(lease))
	if err != nil {
		return ledger.NotRead(ctx, batch, err)
	}
	return read, nil
}

// Read implements buffer.Claimer.
func (q *Queue) Read(ctx context.Context, batch *buffer.Lease) error {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return err
	}
	read, err := q.read(ctx, t, batch.Unread(), pg.ScanTimeout)
	if err == nil {
		batch.SetContents(read)
		err = read.NotRead
	}
	return err
}

// read reads the dead letters of a leased batch; see ledger.Reading.
func (q *Queue) read(ctx context.Context, t *ledger.Tables, batch buffer.Lease, limit time.Duration) (*buffer.Lease, error) {
	contents := !batch.DeliveryRecorded() && !batch.MayKillReader()
	for {
		rows := newDecoder(q.base, t)
		readCtx, reading := ledger.NewReading(ctx, limit)
		err := q.base.DB.Transact(readCtx, reading.Step(q.base.DB.WriteTx, pg.PlanByKey...), pg.Step{
			SQL: t.SQL(readSQL), Args: []string{batch.GroupID.String(), q.base.Pipeline, pg.Bool(contents)},
			Columns: rows.Columns,
			Row: func(v [][]byte) error {
				if batch.ClaimedAt.IsZero() {
					batch.ClaimedAt, batch.ClaimedLocal = pg.ReadTime(v[17]), time.Now()
				}
				return rows.add(v)
			},
		})
		cause := reading.Cause(readCtx, err, rows.Fitted())
		reading.End()
		switch {
		case cause != nil && contents && ctx.Err() == nil:
			contents, batch.NotRead, batch.PartSize = false, cause, rows.Fitted()
			continue
		case err != nil:
			return nil, q.base.Explain(ctx, "reading dead letters", err)
		}
		read := q.base.Complete(&rows.EventDecoder, batch)
		rows.complete(read)
		switch {
		case batch.NotRead != nil:
			read.FailRead(batch.NotRead, batch.PartSize)
		case contents || batch.DeliveryRecorded():
		case read.KillsReader():
			read.FailRead(buffer.ErrKillsReader, 0)
		default:
			contents = true
			continue
		}
		if len(read.Events) == 0 { // nothing is left to be read
			read.NotRead = nil
		}
		return read, nil
	}
}

// The dead letters of a batch are those that carry its hook_group_id and are not notified.
const (
	markNotifiedSQL = `
UPDATE outbox_dead_letters SET notified_at = clock_timestamp()
WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $1::uuid
  AND event_id BETWEEN $2::bigint AND $3::bigint AND pipeline = $4 AND notified_at IS NULL
  AND ($5::bigint[] IS NULL OR event_id = ANY ($5::bigint[]))`

	// Skip locked ones, of a batch whose delivery is recorded, and mark them later.
	markUnlockedSQL = `
UPDATE outbox_dead_letters SET notified_at = clock_timestamp()
WHERE hook_group_id = $1::uuid AND notified_at IS NULL AND pipeline = $4 AND event_id = ANY (ARRAY(
  SELECT event_id FROM outbox_dead_letters
  WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $1::uuid
    AND event_id BETWEEN $2::bigint AND $3::bigint AND pipeline = $4 AND notified_at IS NULL
    AND ($5::bigint[] IS NULL OR event_id = ANY ($5::bigint[]))
  ORDER BY event_id
  FOR UPDATE SKIP LOCKED))`

	regroupSQL = `
WITH regrouped AS (
  UPDATE outbox_dead_letters SET hook_group_id = $3::uuid
  WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $2::uuid AND notified_at IS NULL
    AND event_id BETWEEN $4::bigint AND $5::bigint AND pipeline = $15 AND event_id = ANY ($6::bigint[])
  RETURNING event_id, died_at
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, sink)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $7::interval, $8, $14::int,
       $9::int, $10::int, count(*), min(event_id), max(event_id), min(died_at), $11::uuid[], $12, $13, $16
FROM regrouped HAVING count(*) > 0`

	closeSQL = `
DELETE FROM outbox_batches
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint
  AND NOT EXISTS (
    SELECT FROM outbox_dead_letters d
    WHERE d.event_id BETWEEN $4::bigint AND $5::bigint AND d.hook_group_id = $2::uuid AND d.notified_at IS NULL)`

	keepSQL = `
UPDATE outbox_batches SET events = locked.events, delivered = locked.ids
FROM (SELECT count(*) AS events, array_agg(event_id ORDER BY event_id) AS ids FROM outbox_dead_letters
      WHERE event_id BETWEEN $4::bigint AND $5::bigint AND hook_group_id = $2::uuid AND notified_at IS NULL) locked
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND outbox_batches.group_id = $2::uuid
  AND lease_no = $3::bigint AND locked.events > 0`
)

// Settle implements buffer.Settler.
func (q *Queue) Settle(ctx context.Context, batch *buffer.Lease, results []buffer.Outcome) error {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return err
	}
	set, err := outcomes.Group(batch, results)
	if err != nil {
		return err
	}
	if len(set.Dead) > 0 {
		return errors.New("settling dead letters: a dead letter cannot be buried again")
	}
	s := ledger.Settlement{Ledger: q.Ledger, Tables: t, Batch: batch}
	return s.Run(ctx, &set, q.settleSteps(&s, &set))
}

// settleSteps are the steps about the dead letters, after the fence.
func (q *Queue) settleSteps(s *ledger.Settlement, o *outcomes.Set) []pg.Step {
	if o.RetriesWhole() {
		return nil
	}
	var steps []pg.Step
	for _, r := range o.Retry {
		steps = append(steps, pg.Step{SQL: s.Tables.SQL(regroupSQL), Args: append(s.RegroupArgs(r, pg.IDArray(r.IDs)), q.base.Pipeline, q.SinkName())})
	}
	if step, ok := s.FreeRest(o); ok {
		return append(steps, step)
	}
	recorded := s.Batch.DeliveryRecorded()
	if len(o.Delivered) > 0 {
		sql, ids := markNotifiedSQL, pg.Null
		if recorded {
			sql = markUnlockedSQL
		}
		if o.All == nil {
			delivered, _ := o.IDs(s.Batch)
			ids = pg.IDArray(delivered)
		}
		steps = append(steps, pg.Step{SQL: s.Tables.SQL(sql), Args: append(s.Bounds(), q.base.Pipeline, ids)})
	}
	if recorded {
		steps = append(steps, s.Closing(closeSQL, &s.Closed), s.Closing(keepSQL, nil))
	}
	return steps
}
