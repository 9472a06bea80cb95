package ledger

import (
	"context"
	"slices"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Only an outage has an address.
const deferredSQL = `
SELECT DISTINCT address FROM outbox_batches
WHERE buffer = $1 AND due_at > $2::timestamptz
  AND state = 'waiting' AND address IS NOT NULL AND outages > 0`

// DeferredAddresses implements buffer.Deferrer.
func (l *Ledger) DeferredAddresses(ctx context.Context) ([]string, error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	var addresses []string
	begin := pg.ReadTx(l.base.DB.StatementTimeout, "enable_seqscan", "off")
	begin.Row = func([][]byte) error {
		addresses = nil
		return nil
	}
	err = l.base.DB.Transact(ctx, begin, pg.Step{
		SQL: t.SQL(deferredSQL), Args: []string{l.name(t), pg.Timestamp(l.dueAfter())},
		Row: func(v [][]byte) error {
			addresses = append(addresses, string(v[0]))
			return nil
		},
	})
	if err != nil {
		return nil, l.base.Explain(ctx, "reading deferred addresses", err)
	}
	slices.Sort(addresses)
	return addresses, nil
}

// Batches that are due already count against the limit, but keep their place.
const retryNowSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp()
WHERE due_at > clock_timestamp() AND group_id = ANY (ARRAY(
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND due_at > $2::timestamptz
    AND state = 'waiting' AND address = $3 AND outages > 0
  ORDER BY due_at LIMIT $4::bigint
  FOR UPDATE SKIP LOCKED))`

// RetryNow implements buffer.Deferrer.
func (l *Ledger) RetryNow(ctx context.Context, address string, limit int) (int, error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return 0, err
	}
	most := pg.Null // all
	if limit > 0 {
		most = pg.Int(int64(limit))
	}
	var retried int64
	err = l.base.DB.Transact(ctx, l.base.DB.WriteTx(l.base.DB.StatementTimeout, "synchronous_commit", "off", "enable_seqscan", "off"), pg.Step{
		SQL:      t.SQL(retryNowSQL),
		Args:     []string{l.name(t), pg.Timestamp(l.dueAfter()), pg.Text(address), most},
		Affected: &retried,
	})
	return int(retried), l.base.Explain(ctx, "retrying batches", err)
}
