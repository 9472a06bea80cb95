package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// takeTokenSQL advances the time of the next request and returns the one before it: the generic cell rate
// algorithm (ITU-T I.371), on the database's clock. A time far ahead is left over from another rate, or from
// before the clock was set back; no request waits for it longer than for a thousand others.
const takeTokenSQL = `
INSERT INTO outbox_rates AS r (name, next_at) VALUES ($1, clock_timestamp() + $2::interval)
ON CONFLICT (name) DO UPDATE
SET next_at = greatest(clock_timestamp(), least(r.next_at, clock_timestamp() + 1000 * $2::interval)) + $2::interval
RETURNING (extract(epoch FROM r.next_at - $2::interval - clock_timestamp()) * 1000000)::bigint`

// TakeToken implements buffer.TokenBucket. The commit does not wait for the disk: after a crash of
// the server a few requests may follow too soon.
func (b *Buffer) TakeToken(ctx context.Context, name string, requests int, per time.Duration) (time.Duration, error) {
	const doing = "taking a token of the shared rate"
	t, err := b.ready(ctx)
	if err != nil {
		return 0, b.explain(ctx, doing, err)
	}
	rates := strings.TrimSuffix(t.SQL("outbox_buffers"), "outbox_buffers") + "outbox_rates"
	sql := strings.ReplaceAll(takeTokenSQL, "outbox_rates", rates)
	n := time.Duration(requests) * time.Microsecond
	every := max(1, (per+n-1)/n) * time.Microsecond // rounded up: no more than that many
	var wait time.Duration
	err = b.db.Transact(ctx, b.db.WriteTx(b.db.StatementTimeout, "synchronous_commit", "off"), pg.Step{
		Prepare: true, SQL: sql, Args: []string{name, pg.Interval(every)},
		Row: func(v [][]byte) error {
			wait = max(0, time.Duration(pg.ReadInt8(v[0]))*time.Microsecond)
			return nil
		},
	})
	switch pg.Code(err) {
	case pg.CodeNoTable, pg.CodeNoColumn, pg.CodeNoSchema:
		return 0, fmt.Errorf("%s: %w: table %s does not exist or is out of date; run relay migrate -c relay.yaml", doing, buffer.ErrNotReady, rates)
	case pg.CodeNoPrivilege:
		return 0, fmt.Errorf("%s: %w: the relay's role may not use table %s: GRANT SELECT, INSERT, UPDATE, DELETE ON %s to it", doing, buffer.ErrNotReady, rates, rates)
	}
	return wait, b.explain(ctx, doing, err)
}
