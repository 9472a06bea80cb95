package ledger

import (
	"context"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Only an outage has an address.
const deferredSQL = `
SELECT DISTINCT address FROM outbox_batches
WHERE buffer = $1 AND sink = $2 AND due_at > $3::timestamptz
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
		SQL: t.SQL(deferredSQL), Args: []string{l.name(t), l.SinkName(), pg.Timestamp(l.dueAfter())},
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

// A refusal with an address is one of a sink that refused everything.
const retryRefusedSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp()
WHERE due_at > clock_timestamp() AND group_id = ANY (ARRAY(
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND sink = $2 AND due_at > $3::timestamptz
    AND state = 'waiting' AND address IS NOT NULL AND outages = 0
  FOR UPDATE SKIP LOCKED))`

// RetryRefused implements buffer.Deferrer.
func (l *Ledger) RetryRefused(ctx context.Context) (int, error) {
	return l.makeDue(ctx, "retrying refused batches", retryRefusedSQL)
}

const (
	retryAllSQL = `
UPDATE outbox_batches SET due_at = least(due_at, clock_timestamp()), owner = $4
WHERE group_id = ANY (ARRAY(
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND sink = $2 AND due_at > $3::timestamptz AND state = 'waiting'
  FOR UPDATE SKIP LOCKED))`

	saveRequestSQL = `
UPDATE outbox_buffers SET retry_request = $2, retry_at = clock_timestamp() WHERE buffer = $1`

	// The first relay that reads a request may settle all its batches before another one reads it, so for a minute the buffer has it too.
	retryRequestSQL = `
SELECT coalesce(greatest(
  (SELECT max(owner) FROM outbox_batches
   WHERE buffer = $1 AND sink = $2 AND due_at > $3::timestamptz AND state = 'waiting' AND owner LIKE $4 || '%'),
  (SELECT retry_request FROM outbox_buffers WHERE buffer = $5 AND retry_at > clock_timestamp() - interval '1 minute')), '')`
)

// RetryAll implements buffer.Deferrer.
func (l *Ledger) RetryAll(ctx context.Context, request string) (int, error) {
	const doing = "retrying all batches"
	request = l.base.DB.Text(request)
	waiting, err := l.makeDue(ctx, doing, retryAllSQL, request)
	if err != nil {
		return 0, err
	}
	t, err := l.base.Ready(ctx)
	if err != nil {
		return 0, err
	}
	// Not in the transaction above, which has batches locked.
	err = l.base.DB.Transact(ctx, l.base.DB.WriteTx(l.base.DB.StatementTimeout, "synchronous_commit", "off"), pg.Step{
		SQL: t.SQL(saveRequestSQL), Args: []string{t.Buffer, request},
	})
	return waiting, l.base.Explain(ctx, doing, err)
}

// RetryRequest implements buffer.Deferrer.
func (l *Ledger) RetryRequest(ctx context.Context) (request string, err error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return "", err
	}
	err = l.base.DB.Transact(ctx, pg.ReadTx(l.base.DB.StatementTimeout, "enable_seqscan", "off"), pg.Step{
		SQL: t.SQL(retryRequestSQL), Args: []string{l.name(t), l.SinkName(), pg.Timestamp(l.dueAfter()), l.base.DB.Text(buffer.RetryRequestPrefix), t.Buffer},
		Row: func(v [][]byte) error {
			request = string(v[0])
			return nil
		},
	})
	return request, l.base.Explain(ctx, "looking for a request to retry", err)
}

// Batches that are due already count against the limit, but keep their place.
const retryNowSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp()
WHERE due_at > clock_timestamp() AND group_id = ANY (ARRAY(
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND sink = $2 AND due_at > $3::timestamptz
    AND state = 'waiting' AND address = $4 AND outages > 0
  ORDER BY due_at LIMIT $5::bigint
  FOR UPDATE SKIP LOCKED))`

// RetryNow implements buffer.Deferrer.
func (l *Ledger) RetryNow(ctx context.Context, address string, limit int) (int, error) {
	most := pg.Null // all
	if limit > 0 {
		most = pg.Int(int64(limit))
	}
	return l.makeDue(ctx, "retrying batches", retryNowSQL, l.base.DB.Text(address), most)
}

// makeDue runs a statement that makes batches due. args are the parameters from $4 on.
func (l *Ledger) makeDue(ctx context.Context, doing, sql string, args ...string) (int, error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return 0, err
	}
	var due int64
	err = l.base.DB.Transact(ctx, l.base.DB.WriteTx(l.base.DB.StatementTimeout, "synchronous_commit", "off", "enable_seqscan", "off"), pg.Step{
		SQL: t.SQL(sql), Args: append([]string{l.name(t), l.SinkName(), pg.Timestamp(l.dueAfter())}, args...), Affected: &due,
	})
	return int(due), l.base.Explain(ctx, doing, err)
}
