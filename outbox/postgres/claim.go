package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Claim is described by buffertest.Buffer.
func (b *Buffer) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	for tries := 0; ; tries++ {
		mode := *b.mode.Load()
		batch, err := b.claimBy(ctx, t, mode, limit, lease)
		again := false
		if stored, ok := errors.AsType[modeChanged](err); ok {
			if stored == "" {
				err = b.register(ctx, t)
			} else {
				err = b.negotiate(ctx, t, string(stored))
			}
			again = err == nil
		} else if err == nil && batch == nil {
			again, err = b.upgrade(ctx, t, mode)
		}
		if !again || tries == 2 {
			return batch, b.explain(ctx, "claiming a batch", err)
		}
	}
}

// rangeClaimer claims in a range of ids. lastValue is the sequence's, read before the claim
// looked. The error is modeChanged when another mode is stored.
type rangeClaimer func(ctx context.Context, t *table, limit int, lease time.Duration, in watermark.Range) (
	batch *buffer.Lease, lastValue int64, err error)

// claimAcross claims in one range after the other until one has something.
func (b *Buffer) claimAcross(
	ctx context.Context, t *table, limit int, lease time.Duration, claim rangeClaimer,
) (*buffer.Lease, error) {
	for _, in := range b.watermarks.Ranges() {
		batch, lastValue, err := claim(ctx, t, limit, lease, in)
		if err != nil {
			return nil, err
		}
		b.watermarks.Claimed(in, batch, lastValue)
		if batch != nil {
			return batch, nil
		}
	}
	return nil, nil
}

// claimBeginSQL reads the sequence before the claim's own snapshot is taken. Reading
// it locks it, and TRUNCATE ... RESTART IDENTITY locks table and sequence in this
// order: naming the table here does so too, and neither deadlocks with the other.
const claimBeginSQL = `
SELECT coalesce(pg_sequence_last_value($1::regclass), 0), clock_timestamp(),
       (SELECT claim FROM outbox_buffers WHERE buffer = $2),
       set_config('synchronous_commit', 'on', true), set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true),
       set_config('statement_timeout', $3, true), set_config('lock_timeout', ($3::int * 2 / 3)::text, true),
       set_config('idle_in_transaction_session_timeout', '30000', true),
       set_config('tcp_keepalives_idle', '15', true), set_config('tcp_keepalives_interval', '5', true),
       set_config('tcp_keepalives_count', '3', true), set_config('tcp_user_timeout', $4, true)
WHERE NOT EXISTS (SELECT FROM outbox_events WHERE false)`

// leased completes a batch.
func (b *Buffer) leased(rows *pg.EventDecoder, batch buffer.Lease) *buffer.Lease {
	events := rows.Sorted()
	batch.Pipeline = b.config.Pipeline
	batch.PayloadIsJSON = pg.IsJSON(rows.PayloadOID)
	batch.Events = events
	if len(events) > 0 && batch.FirstID == 0 && batch.LastID == 0 {
		batch.FirstID, batch.LastID = events[0].ID, events[len(events)-1].ID
	}
	return &batch
}
