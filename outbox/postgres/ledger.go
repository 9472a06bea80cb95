package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// ledger is the live batches of one buffer: its rows of outbox_batches. A pipeline's
// dead letters are a buffer of their own, that of the hook, and what concerns
// batches alone is the same for both.
type ledger struct {
	b *Buffer
	// suffix tells the hook's rows from the buffer's.
	suffix string
	// dueAfter is where the live batches begin on the ledger's time line.
	dueAfter func() time.Time
}

// name is how its rows name the buffer.
func (l ledger) name(t *table) string { return t.buffer + l.suffix }

const renewSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp() + $4::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state IN ('leased', 'delivered')`

// Renew is described by buffertest.Buffer.
func (l ledger) Renew(ctx context.Context, batch *buffer.Lease, lease time.Duration) error {
	t, err := l.b.ready(ctx)
	if err != nil {
		return err
	}
	var held int64
	leaseEnd := time.Now().Add(lease)
	err = l.b.db.Transact(ctx, l.b.db.WriteTx(l.b.db.StatementTimeout), pg.Step{
		SQL:      t.sql(renewSQL),
		Args:     []string{l.name(t), batch.GroupID.String(), pg.Int(batch.LeaseNo), pg.Interval(lease)},
		Affected: &held,
	})
	if err != nil {
		return l.b.explain(ctx, "renewing a lease", err)
	}
	if held == 0 {
		return buffer.ErrLeaseLost
	}
	batch.Ends = leaseEnd
	return nil
}

const markSQL = `
UPDATE outbox_batches
SET state = 'delivered', delivered = $4::bigint[], due_at = clock_timestamp() + $5::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'`

// markedAgain is how long a marked batch waits when its events are locked.
const markedAgain = time.Second

// MarkDelivered is described by buffertest.Buffer.
func (l ledger) MarkDelivered(ctx context.Context, batch *buffer.Lease, delivered []int64) error {
	t, err := l.b.ready(ctx)
	if err != nil {
		return err
	}
	var held int64
	err = l.b.db.Transact(ctx, l.b.db.WriteTx(l.b.db.StatementTimeout, "synchronous_commit", "off"), pg.Step{
		SQL: t.sql(markSQL),
		Args: []string{
			l.name(t), batch.GroupID.String(), pg.Int(batch.LeaseNo), pg.IDArray(delivered), pg.Interval(markedAgain),
		},
		Affected: &held,
	})
	if err != nil {
		return l.b.explain(ctx, "marking a batch delivered", err)
	}
	if held == 0 {
		return buffer.ErrLeaseLost
	}
	return nil
}
