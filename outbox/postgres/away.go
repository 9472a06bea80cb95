package postgres

import (
	"context"
	"slices"
)

// Only an outage has an address; what waits for another reason has none.
const awaySQL = `
SELECT DISTINCT address FROM outbox_batches
WHERE buffer = $1 AND due_at > $2::timestamptz
  AND state = 'waiting' AND address IS NOT NULL AND outages > 0`

// Away is described by buffertest.Buffer.
func (l ledger) Away(ctx context.Context) ([]string, error) {
	t, err := l.b.ready(ctx)
	if err != nil {
		return nil, err
	}
	var addresses []string
	begin := reading(l.b.patience, "enable_seqscan", "off")
	begin.row = func([][]byte) error {
		addresses = nil
		return nil
	}
	err = l.b.transact(ctx, begin, step{
		sql: t.sql(awaySQL), args: []string{l.name(t), timestamp(l.dueAfter())},
		row: func(v [][]byte) error {
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

// Wake is described by buffertest.Buffer.
func (l ledger) Wake(ctx context.Context, address string, limit int) (int, error) {
	t, err := l.b.ready(ctx)
	if err != nil {
		return 0, err
	}
	most := null // of all there are
	if limit > 0 {
		most = itoa(int64(limit))
	}
	var woken int64
	err = l.b.transact(ctx, t.writing(l.b.patience, "synchronous_commit", "off", "enable_seqscan", "off"), step{
		sql:      t.sql(wakeSQL),
		args:     []string{l.name(t), timestamp(l.dueAfter()), text(address), most},
		affected: &woken,
	})
	return int(woken), l.b.explain(ctx, "waking batches", err)
}
