package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Both kinds of batches are taken over like this; what the batch holds is read by
// the rest of the statement. An event is of a batch whose group_id it carries, or whose
// members it is among (in one piece: see claimedRangeSQL).
const dueSQL = `
WITH due AS (
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND due_at > $2::timestamptz AND due_at <= (SELECT clock_timestamp())
  ORDER BY due_at LIMIT 1
  FOR UPDATE SKIP LOCKED
)`

const takenSQL = `, taken AS (
  UPDATE outbox_batches l
  SET lease_no = lease_no + 1, unfinished_leases = unfinished_leases + 1, owner = $4,
      state = CASE state WHEN 'delivered' THEN state ELSE 'leased' END,
      due_at = clock_timestamp() + $3::interval
  FROM due WHERE l.group_id = due.group_id
  RETURNING l.*, l.members + '{}' AS held
)
SELECT t.group_id, t.lease_no, t.unfinished_leases, t.attempts, t.outages, t.first_id, t.last_id, t.origins, t.delivered,
       clock_timestamp(), `

const eventsTakenSQL = `
       e.id, e.topic, e.key, e.payload, e.headers, e.created_at
FROM taken t
LEFT JOIN outbox_events e ON e.id BETWEEN t.first_id AND t.last_id AND (e.group_id = t.group_id OR e.id <@ t.held)`

const takeOverSQL = dueSQL + takenSQL + eventsTakenSQL

// TakeOver is described by buffertest.Buffer.
func (b *Buffer) TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	if t.own != nil {
		return b.takeOverOwn(ctx, t, lease)
	}
	rows := pg.EventDecoder{PayloadOID: t.payloadOID}
	sql := takeOverSQL
	if b.config.Ordered {
		sql = takeOverInOrderSQL
	}
	return b.takeOver(ctx, t, lease, &rows, rows.Append, sql)
}

// takeOver runs such a statement. add reads the columns after those of the ledger;
// args are those of the statement's rest.
func (l ledger) takeOver(
	ctx context.Context, t *table, lease time.Duration, rows *pg.EventDecoder, add func([][]byte) error, sql string, args ...string,
) (*buffer.Lease, error) {
	var batch buffer.Lease
	leaseEnd := time.Now().Add(lease)
	plan := []string{"synchronous_commit", "on", "enable_seqscan", "off"}
	if t.own != nil {
		plan = pg.PlanByKey
	}
	begin := l.b.db.WriteTx(l.b.db.StatementTimeout, plan...)
	begin.Row = func([][]byte) error {
		batch = buffer.Lease{}
		return rows.Reset(nil)
	}
	err := l.b.db.Transact(ctx, begin, pg.Step{
		SQL:  t.sql(sql),
		Args: append([]string{l.name(t), pg.Timestamp(l.dueAfter()), pg.Interval(lease), l.b.config.Owner}, args...),
		Row: func(v [][]byte) error {
			if batch.LeaseNo == 0 {
				batch = buffer.Lease{
					Batch: buffer.Batch{GroupID: uuid.UUID(v[0])}, LeaseNo: pg.ReadInt8(v[1]),
					UnfinishedLeases: pg.ReadInt4(v[2]), Attempts: pg.ReadInt4(v[3]), Outages: pg.ReadInt4(v[4]),
					FirstID: pg.ReadInt8(v[5]), LastID: pg.ReadInt8(v[6]),
					Ends: leaseEnd, ClaimedAt: pg.ReadTime(v[9]), ClaimedLocal: time.Now(),
				}
				pg.ReadArray(v[7], func(id []byte) { batch.Origins = append(batch.Origins, uuid.UUID(id)) })
				pg.ReadArray(v[8], func(id []byte) { batch.Delivered = append(batch.Delivered, pg.ReadInt8(id)) })
			}
			if v[10] == nil { // its rows are gone
				return nil
			}
			return add(v[10:])
		},
	})
	if err != nil {
		return nil, l.b.explain(ctx, "taking over a batch", err)
	}
	if batch.LeaseNo == 0 {
		return nil, nil
	}
	return l.b.leased(rows, batch), nil
}
