package backlog

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/relays"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	reportSQL = `
INSERT INTO outbox_relays AS r (buffer, sink, owner, version, seen_at, stopped, delivered, dead, last_minute, delivered_at, not_ready, not_ready_class, not_ready_at, notice, latencies, answers, answered_at, probes)
VALUES ($1, $2, $3, $4, clock_timestamp(), $5::boolean, $6::bigint, $7::bigint, $8::bigint, clock_timestamp() - $9::interval, $11, $12, clock_timestamp() - $13::interval, $14, $15, $16,
        CASE WHEN $16 <> '' THEN clock_timestamp() END, $17::boolean)
ON CONFLICT (buffer, sink, owner) DO UPDATE
SET version = EXCLUDED.version, seen_at = EXCLUDED.seen_at, stopped = EXCLUDED.stopped, delivered = EXCLUDED.delivered, dead = EXCLUDED.dead,
    last_minute = EXCLUDED.last_minute, delivered_at = EXCLUDED.delivered_at, not_ready = EXCLUDED.not_ready,
    not_ready_class = EXCLUDED.not_ready_class, not_ready_at = EXCLUDED.not_ready_at, notice = EXCLUDED.notice, latencies = EXCLUDED.latencies,
    answers = EXCLUDED.answers, answered_at = CASE WHEN EXCLUDED.answers NOT IN ('', r.answers) THEN EXCLUDED.answered_at ELSE r.answered_at END,
    answers_before = CASE WHEN NOT $10::boolean THEN r.answers_before WHEN r.answered_at > clock_timestamp() - interval '1 hour' THEN
      right(concat_ws(E'\n', nullif(r.answers_before, ''), nullif(r.answers, '')), 4000) ELSE '' END, probes = EXCLUDED.probes,
    started_at = CASE WHEN $10::boolean THEN EXCLUDED.seen_at ELSE r.started_at END`

	forgetSQL = `
DELETE FROM outbox_relays WHERE buffer = $1 AND sink = $2 AND owner <> $3 AND seen_at < clock_timestamp() - interval '1 day'`
)

// Report writes down what this process did for a sink, "" for a single one.
func (b *Backlog) Report(ctx context.Context, sink string, r buffer.RelayReport) error {
	const doing = "reporting that the relay runs"
	t, err := b.base.Ready(ctx)
	if err != nil {
		return b.base.Explain(ctx, doing, err)
	}
	steps := []pg.Step{
		b.base.DB.WriteTx(b.base.DB.StatementTimeout, "synchronous_commit", "off"),
		{SQL: t.SQL(reportSQL), Args: []string{
			t.Buffer, sink, b.base.Owner, r.Version, pg.Bool(r.Stopped), pg.Int(r.Delivered), pg.Int(r.Dead), pg.Int(r.LastMinute), ago(r.LastDelivery), pg.Bool(r.First), b.base.DB.Text(r.NotReady),
			relays.Class(&r), notReadySince(&r), b.base.DB.Text(r.Notice), r.Latencies.String(), b.base.DB.Text(r.Answers), pg.Bool(r.Probes),
		}},
	}
	if r.First {
		steps = append(steps, pg.Step{SQL: t.SQL(forgetSQL), Args: []string{t.Buffer, sink, b.base.Owner}})
	}
	return b.base.Explain(ctx, doing, b.base.DB.Transact(ctx, steps...))
}

// notReadySince is when the relay ceased to be ready, as an interval; NULL if it is.
func notReadySince(r *buffer.RelayReport) string {
	if r.NotReady == "" {
		return pg.Null
	}
	return pg.Interval(r.NotReadyFor)
}

// ago is a time in the past, as an interval; NULL if it is negative.
func ago(d time.Duration) string {
	if d < 0 {
		return pg.Null
	}
	return pg.Interval(d)
}
