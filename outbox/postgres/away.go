package postgres

import (
	"context"
	"slices"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Only an outage has an address; what waits for another reason has none.
const awaySQL = `
SELECT DISTINCT address FROM outbox_batches
WHERE buffer = $1 AND due_at > $2::timestamptz
  AND state = 'waiting' AND address IS NOT NULL AND outages > 0`

// DeferredAddresses is described by buffertest.Buffer.
func (l ledger) DeferredAddresses(ctx context.Context) ([]string, error) {
	t, err := l.b.ready(ctx)
	if err != nil {
		return nil, err
	}
	var addresses []string
	begin := pg.ReadTx(l.b.db.StatementTimeout, "enable_seqscan", "off")
	begin.Row = func([][]byte) error {
		addresses = nil
		return nil
	}
	err = l.b.db.Transact(ctx, begin, pg.Step{
		SQL: t.sql(awaySQL), Args: []string{l.name(t), pg.Timestamp(l.dueAfter())},
		Row: func(v [][]byte) error {
			addresses = append(addresses, string(v[0]))
			return nil
		},
	})
	if err != nil {
		return nil, l.b.explain(ctx, "asking for addresses that are away", err)
	}
	slices.Sort(addresses)
	return addresses, nil
}

// Those that are due already are among the limit, but stay where they are in the
// order.
const wakeSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp()
WHERE due_at > clock_timestamp() AND group_id = ANY (ARRAY(
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND due_at > $2::timestamptz
    AND state = 'waiting' AND address = $3 AND outages > 0
  ORDER BY due_at LIMIT $4::bigint
  FOR UPDATE SKIP LOCKED))`

// RetryNow is described by buffertest.Buffer.
func (l ledger) RetryNow(ctx context.Context, address string, limit int) (int, error) {
	t, err := l.b.ready(ctx)
	if err != nil {
		return 0, err
	}
	most := pg.Null // of all there are
	if limit > 0 {
		most = pg.Int(int64(limit))
	}
	var woken int64
	err = l.b.db.Transact(ctx, l.b.db.WriteTx(l.b.db.StatementTimeout, "synchronous_commit", "off", "enable_seqscan", "off"), pg.Step{
		SQL:      t.sql(wakeSQL),
		Args:     []string{l.name(t), pg.Timestamp(l.dueAfter()), pg.Text(address), most},
		Affected: &woken,
	})
	return int(woken), l.b.explain(ctx, "waking batches", err)
}
