package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
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
func (b *Buffer) TakeOver(ctx context.Context, lease time.Duration) (*outbox.Batch, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	if t.own != nil {
		return b.takeOverOwn(ctx, t, lease)
	}
	rows := decoder{payloadOID: t.payloadOID}
	sql := takeOverSQL
	if b.config.Ordered {
		sql = takeOverInOrderSQL
	}
	return b.takeOver(ctx, t, lease, &rows, rows.add, sql)
}

// takeOver runs such a statement. add reads the columns after those of the ledger;
// args are those of the statement's rest.
func (l ledger) takeOver(
	ctx context.Context, t *table, lease time.Duration, rows *decoder, add func([][]byte) error, sql string, args ...string,
) (*outbox.Batch, error) {
	var batch outbox.Batch
	leaseEnd := time.Now().Add(lease)
	plan := []string{"synchronous_commit", "on", "enable_seqscan", "off"}
	if t.own != nil {
		plan = byKey
	}
	begin := t.writing(l.b.patience, plan...)
	begin.row = func([][]byte) error {
		batch = outbox.Batch{}
		return rows.forget(nil)
	}
	err := l.b.transact(ctx, begin, step{
		sql:  t.sql(sql),
		args: append([]string{l.name(t), timestamp(l.dueAfter()), interval(lease), l.b.config.Owner}, args...),
		row: func(v [][]byte) error {
			if batch.LeaseNo == 0 {
				batch = outbox.Batch{
					GroupID: uuid.UUID(v[0]), LeaseNo: int8Of(v[1]),
					Starts: int4Of(v[2]), Attempts: int4Of(v[3]), Outages: int4Of(v[4]),
					FirstID: int8Of(v[5]), LastID: int8Of(v[6]),
					LeaseEnd: leaseEnd, ClaimedAt: timeOf(v[9]), ClaimedLocal: time.Now(),
				}
				arrayOf(v[7], func(id []byte) { batch.Origins = append(batch.Origins, uuid.UUID(id)) })
				arrayOf(v[8], func(id []byte) { batch.Delivered = append(batch.Delivered, int8Of(id)) })
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
