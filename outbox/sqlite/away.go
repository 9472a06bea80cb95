package sqlite

import "context"

// Only an outage has an address. A relay of before it knew addresses leaves one on a
// batch that was refused, so what has no outages does not count.
const awaySQL = `
SELECT DISTINCT address FROM outbox_batches
WHERE buffer = ?1 AND state = 'waiting' AND address IS NOT NULL AND outages > 0`

// What is due already is among the limit, and keeps its place.
const wakeSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND group_id IN (
  SELECT group_id FROM outbox_batches
  WHERE buffer = ?1 AND state = 'waiting' AND address = ?2 AND outages > 0
  ORDER BY due_at LIMIT ?3)`

// DeferredAddresses is described by buffertest.Buffer.
func (b *Buffer) DeferredAddresses(ctx context.Context) ([]string, error) {
	return b.ledger().away(ctx)
}

// RetryNow is described by buffertest.Buffer.
func (b *Buffer) RetryNow(ctx context.Context, address string, limit int) (int, error) {
	return b.ledger().wake(ctx, address, limit)
}

func (l ledger) away(ctx context.Context) (addresses []string, err error) {
	rows, err := l.b.db.QueryContext(ctx, awaySQL, l.buffer)
	if err != nil {
		return nil, l.b.explain(ctx, "looking for addresses that are away", err)
	}
	defer rows.Close()
	for rows.Next() {
		var address string
		if err := rows.Scan(&address); err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	return addresses, rows.Err()
}

func (l ledger) wake(ctx context.Context, address string, limit int) (woken int, err error) {
	if limit == 0 {
		limit = -1 // all
	}
	err = l.b.write(ctx, "waking batches", func(tx transaction) error {
		rows, err := tx.exec(ctx, wakeSQL, l.buffer, address, limit)
		woken = int(rows)
		return err
	})
	return woken, err
}
