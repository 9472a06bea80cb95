package ledger

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// SuspectSQL reports whether a due batch is a suspect: see [buffer.DueSuspect].
const SuspectSQL = `(unfinished_leases > 1 AND state <> 'delivered')`

// UnsentSQL reports whether no worker has leased a batch, nor one that it was a part of, since it was put into the queue of its sink.
const UnsentSQL = `(state = 'waiting' AND lease_no = 0 AND origins = '{}')`

// AnySuspectSQL reports whether a batch is a suspect, due or not. The lease that an owner has now does not count.
const AnySuspectSQL = `(unfinished_leases > CASE WHEN state = 'leased' AND due_at > clock_timestamp() THEN 2 ELSE 1 END
    AND state <> 'delivered')`

// DueSQL locks the batch of a sink, $6, that has been due longest, a suspect if $5 is true.
const DueSQL = `
WITH due AS (
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND sink = $6 AND due_at > $2::timestamptz AND due_at <= (SELECT clock_timestamp())
    AND ` + SuspectSQL + ` = $5::boolean
  ORDER BY due_at LIMIT 1
  FOR UPDATE SKIP LOCKED
)`

// TakenSQL leases it.
const TakenSQL = `, taken AS (
  UPDATE outbox_batches l
  SET lease_no = lease_no + 1, unfinished_leases = unfinished_leases + 1, owner = $4,
      state = CASE state WHEN 'delivered' THEN state ELSE 'leased' END,
      due_at = clock_timestamp() + $3::interval
  FROM due WHERE l.group_id = due.group_id
  RETURNING l.*, set_config('relay.history', coalesce(l.history, ''), true)
)` + takenColumnsSQL

const takenColumnsSQL = `
SELECT t.group_id, t.lease_no, t.unfinished_leases, t.attempts, t.outages, t.first_id, t.last_id, t.origins, t.delivered,
       clock_timestamp(), t.claim_id, t.events, `

// ViewSQL reads a batch, $2 of buffer $1, as [DueSQL] and [TakenSQL] do that lease one.
const ViewSQL = `
WITH taken AS (
  SELECT * FROM outbox_batches WHERE buffer = $1 AND group_id = $2::uuid
)` + takenColumnsSQL

// NothingSQL ends a take-over that reads no events yet.
const NothingSQL = `NULL
FROM taken t`

const takeOverSQL = DueSQL + TakenSQL + NothingSQL

// newestSQL finds the batch of [buffer.DueNewest] instead.
const newestSQL = `ORDER BY attempts, last_id DESC LIMIT 1`

// singleSQL finds that of [buffer.DueSingle].
const singleSQL = `ORDER BY attempts, events > 1, last_id DESC LIMIT 1`

// smallestSQL finds that of [buffer.DueSmallest], among the thousand that became due last: the parts of a batch are due when it is halved.
const smallestSQL = `AND due_at >= coalesce((
    SELECT due_at FROM outbox_batches
    WHERE buffer = $1 AND sink = $6 AND due_at > $2::timestamptz AND due_at <= (SELECT clock_timestamp())
    ORDER BY due_at DESC OFFSET 999 LIMIT 1), '-infinity')
  ORDER BY events, first_id LIMIT 1`

// unsentSQL finds that of [buffer.DueUnsent].
const unsentSQL = `AND ` + UnsentSQL + ` ORDER BY due_at LIMIT 1`

// DueEndingSQL is DueSQL for a batch of a dropped sink that nobody has leased, due or not.
const DueEndingSQL = `
WITH due AS (
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND sink = $6 AND (state = 'waiting' OR due_at <= (SELECT clock_timestamp()))
    AND EXISTS (SELECT FROM outbox_sinks WHERE buffer = $1 AND sink = $6 AND dropped_at IS NOT NULL)
    AND $2::timestamptz IS NOT NULL AND $5::boolean IS NOT NULL
  ORDER BY due_at LIMIT 1
  FOR UPDATE SKIP LOCKED
)`

const takeOverEndingSQL = DueEndingSQL + TakenSQL + NothingSQL

// TakeOverEnding takes over a batch of a dropped sink, with nothing but ids, topics and times of its events.
func TakeOverEnding(ctx context.Context, l *Ledger, t *Tables, lease time.Duration) (*buffer.Lease, error) {
	batch, err := TakeOver(ctx, l, t, lease, buffer.DueRetry, &pg.EventDecoder{}, nil, []string{"synchronous_commit", "on", "enable_seqscan", "off"}, takeOverEndingSQL)
	if err != nil || batch == nil {
		return nil, err
	}
	return ReadTopics(ctx, l, t, *batch)
}

// TakeOverEvents takes over a batch of the relay's own table.
func TakeOverEvents(ctx context.Context, l *Ledger, t *Tables, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	var (
		sql      = takeOverSQL
		before   []pg.Step
		settings = []string{"synchronous_commit", "on", "enable_seqscan", "off"}
	)
	switch {
	case l.byLanes():
		sql, before, settings = takeOverByLanesSQL, l.lockAndCut(t, lease, due), lanesSettings
	case l.base.Ordered && l.sink == DefaultSink:
		sql = takeOverInOrderSQL
	}
	batch, err := takeOver(ctx, l, t, lease, due, &pg.EventDecoder{}, nil, settings, before, sql)
	if err != nil || batch == nil {
		return nil, err
	}
	read, err := l.base.read(ctx, t, *batch, l.base.ReadLimit(lease))
	if err != nil {
		return NotRead(ctx, batch, l.base.Explain(ctx, "reading a batch that was taken over", err))
	}
	return read, nil
}

// TakeOverUnrouted takes over a batch of a sink '*', with nothing but ids, topics and times of its events.
func TakeOverUnrouted(ctx context.Context, l *Ledger, t *Tables, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	batch, err := TakeOver(ctx, l, t, lease, due, &pg.EventDecoder{}, nil, []string{"synchronous_commit", "on", "enable_seqscan", "off"}, takeOverSQL)
	if err != nil || batch == nil {
		return nil, err
	}
	read, err := ReadTopics(ctx, l, t, *batch)
	if err != nil {
		return NotRead(ctx, batch, err)
	}
	return read, nil
}

// ReadTopics reads ids, topics and times of a batch.
func ReadTopics(ctx context.Context, l *Ledger, t *Tables, batch buffer.Lease) (*buffer.Lease, error) {
	rows, err := l.base.list(ctx, t, &batch, t.SQL(topicsSQL))
	if err != nil {
		return nil, l.base.Explain(ctx, "reading topics", err)
	}
	return l.base.Complete(rows, batch), nil
}

// NotRead returns a batch that was taken over, but neither read nor listed, without events: it is put back with the
// count that it had, because a lease that only ends would count as a death of its owner. A delivered one is never
// blamed.
func NotRead(ctx context.Context, batch *buffer.Lease, err error) (*buffer.Lease, error) {
	if batch.DeliveryRecorded() || ctx.Err() != nil {
		return nil, err
	}
	batch.NotRead = err
	return batch, nil
}

// TakeOver runs a statement that begins with [DueSQL] and [TakenSQL] and commits it. add reads the columns after those
// of the ledger, into rows; args are the statement's other parameters, from $7 on.
func TakeOver(
	ctx context.Context, l *Ledger, t *Tables, lease time.Duration, due buffer.Due, rows *pg.EventDecoder, add func([][]byte) error,
	settings []string, sql string, args ...string,
) (*buffer.Lease, error) {
	return takeOver(ctx, l, t, lease, due, rows, add, settings, nil, sql, args...)
}

// takeOver is TakeOver with steps before the statement.
func takeOver(
	ctx context.Context, l *Ledger, t *Tables, lease time.Duration, due buffer.Due, rows *pg.EventDecoder, add func([][]byte) error,
	settings []string, before []pg.Step, sql string, args ...string,
) (*buffer.Lease, error) {
	var batch buffer.Lease
	switch due {
	case buffer.DueNewest:
		sql = strings.Replace(sql, "ORDER BY due_at LIMIT 1", newestSQL, 1)
	case buffer.DueSingle:
		sql = strings.Replace(sql, "ORDER BY due_at LIMIT 1", singleSQL, 1)
	case buffer.DueSmallest:
		sql = strings.Replace(sql, "ORDER BY due_at LIMIT 1", smallestSQL, 1)
	case buffer.DueUnsent:
		sql = strings.Replace(sql, "ORDER BY due_at LIMIT 1", unsentSQL, 1)
	}
	leaseEnd := time.Now().Add(lease)
	begin := l.base.DB.WriteTx(l.base.DB.StatementTimeout, settings...)
	begin.Row = func([][]byte) error {
		batch = buffer.Lease{}
		return rows.Reset(nil)
	}
	err := l.base.DB.Transact(ctx, append(append([]pg.Step{begin}, before...), pg.Step{
		SQL:  t.SQL(sql),
		Args: append(l.dueArgs(t, lease, due), args...),
		Row: func(v [][]byte) error {
			if batch.LeaseNo == 0 {
				batch = readTaken(v, leaseEnd)
			}
			if v[12] == nil { // no row
				return nil
			}
			return add(v[12:])
		},
	}, historyStep(&batch))...)
	if err != nil {
		return nil, l.base.Explain(ctx, "taking over a batch", err)
	}
	if batch.LeaseNo == 0 {
		return nil, nil
	}
	return &batch, nil
}

// historyStep reads the history of the batch that was taken over. It stands in no row of the take-over, which has one an event.
func historyStep(batch *buffer.Lease) pg.Step {
	return pg.Step{SQL: "SELECT current_setting('relay.history', true)", Row: func(v [][]byte) error {
		batch.History = buffer.ParseHistory(string(v[0]))
		return nil
	}}
}

// readTaken reads the columns of the ledger.
func readTaken(v [][]byte, leaseEnd time.Time) buffer.Lease {
	batch := buffer.Lease{
		Batch: buffer.Batch{GroupID: uuid.UUID(v[0])}, LeaseNo: pg.ReadInt8(v[1]),
		UnfinishedLeases: pg.ReadInt4(v[2]), Attempts: pg.ReadInt4(v[3]), Outages: pg.ReadInt4(v[4]),
		FirstID: pg.ReadInt8(v[5]), LastID: pg.ReadInt8(v[6]),
		Ends: leaseEnd, ClaimedAt: pg.ReadTime(v[9]), ClaimedLocal: time.Now(),
	}
	batch.Counted = pg.ReadInt4(v[11])
	if v[10] != nil {
		batch.ClaimID = uuid.UUID(v[10])
	}
	pg.ReadArray(v[7], func(id []byte) { batch.Origins = append(batch.Origins, uuid.UUID(id)) })
	pg.ReadArray(v[8], func(id []byte) { batch.Delivered = append(batch.Delivered, pg.ReadInt8(id)) })
	return batch
}

// dueArgs are the parameters $1 to $6.
func (l *Ledger) dueArgs(t *Tables, lease time.Duration, due buffer.Due) []string {
	return []string{l.name(t), pg.Timestamp(l.dueAfter()), pg.Interval(lease), l.base.Owner, pg.Bool(due == buffer.DueSuspect), l.SinkName()}
}

// DueInOrderSQL are the due batches that wait for no other. The parts of one batch may share keys.
// They have the first of their origins in common, and parts that share a key are taken in the
// order of their first ids: delivery splits so that this is the order of the keys that they
// share. A delivered batch is only deleted and waits for no other.
const DueInOrderSQL = `
  FROM outbox_batches d
  WHERE buffer = $1 AND sink = '` + DefaultSink + `' AND due_at > $2::timestamptz AND due_at <= (SELECT clock_timestamp())
    AND (state = 'delivered' OR origins = '{}' OR NOT EXISTS (
      SELECT FROM outbox_batches s
      WHERE s.buffer = $1 AND s.origins[1] = d.origins[1] AND s.first_id < d.first_id AND s.lanes && d.lanes))`

// dueInOrderSQL is DueSQL for `order: key`.
const dueInOrderSQL = `
WITH due AS (
  SELECT group_id` + DueInOrderSQL + `
    AND ` + SuspectSQL + ` = $5::boolean AND sink = $6
  ORDER BY due_at LIMIT 1
  FOR UPDATE SKIP LOCKED
)`

const takeOverInOrderSQL = dueInOrderSQL + TakenSQL + NothingSQL
