package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/relays"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const (
	reportSQL = `
INSERT INTO outbox_relays AS r (buffer, sink, owner, version, started_at, seen_at, stopped, delivered, dead, last_minute, delivered_at, not_ready, not_ready_class, not_ready_at, notice, latencies, answers, answered_at, probes)
VALUES (?1, ?2, ?3, ?4, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?5, ?6, ?7, ?8, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?9), ?11, ?12, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?13), ?14, ?15, ?16,
        iif(?16 <> '', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), NULL), ?17)
ON CONFLICT (buffer, sink, owner) DO UPDATE
SET version = excluded.version, seen_at = excluded.seen_at, stopped = excluded.stopped, delivered = excluded.delivered, dead = excluded.dead,
    last_minute = excluded.last_minute, delivered_at = excluded.delivered_at, not_ready = excluded.not_ready,
    not_ready_class = excluded.not_ready_class, not_ready_at = excluded.not_ready_at, notice = excluded.notice, latencies = excluded.latencies,
    answers = excluded.answers, answered_at = iif(excluded.answers NOT IN ('', r.answers), excluded.answered_at, r.answered_at),
    answers_before = CASE WHEN NOT ?10 THEN r.answers_before WHEN r.answered_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour') THEN
      substr(trim(r.answers_before || char(10) || r.answers, char(10)), -4000) ELSE '' END, probes = excluded.probes,
    started_at = iif(?10, excluded.started_at, r.started_at)`

	forgetSQL = `
DELETE FROM outbox_relays
WHERE buffer = ?1 AND sink = ?2 AND owner <> ?3 AND seen_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 day')`

	relaysSQL = `
SELECT sink, owner, version, stopped, delivered, dead, last_minute, (julianday('now') - julianday(seen_at)) * 86400,
       (julianday(seen_at) - julianday(started_at)) * 86400, coalesce((julianday('now') - julianday(delivered_at)) * 86400, -1.0), not_ready,
       not_ready_class, coalesce((julianday('now') - julianday(not_ready_at)) * 86400, 0.0), notice, latencies,
       iif(answered_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour'), trim(answers_before || char(10) || answers, char(10)), ''), probes
FROM outbox_relays WHERE buffer = ?1
ORDER BY stopped, seen_at DESC, sink, owner LIMIT ?2`
)

var _ buffer.RelayReporter = (*Buffer)(nil)

// ReportRelay implements buffer.RelayReporter.
func (b *Buffer) ReportRelay(ctx context.Context, r buffer.RelayReport) error {
	return b.reportRelay(ctx, "", r)
}

// ReportRelay implements buffer.RelayReporter.
func (q *sinkQueue) ReportRelay(ctx context.Context, r buffer.RelayReport) error {
	return q.b.reportRelay(ctx, q.sink, r)
}

func (b *Buffer) reportRelay(ctx context.Context, sink string, r buffer.RelayReport) error {
	return b.write(ctx, "reporting that the relay runs", func(tx transaction) error {
		var ago, since any // of the last delivery, and of when it ceased to be ready; NULL: none
		if r.NotReady != "" {
			since = db.Seconds(-r.NotReadyFor)
		}
		if r.LastDelivery >= 0 {
			ago = db.Seconds(-r.LastDelivery)
		}
		if _, err := tx.exec(ctx, reportSQL, b.config.Table, sink, b.config.Owner, r.Version, r.Stopped, r.Delivered, r.Dead, r.LastMinute, ago, r.First, r.NotReady, relays.Class(&r), since, r.Notice, r.Latencies.String(), r.Answers, r.Probes); err != nil || !r.First {
			return err
		}
		_, err := tx.exec(ctx, forgetSQL, b.config.Table, sink, b.config.Owner)
		return err
	})
}

// relays returns the relays of the buffer.
func (b *Buffer) relays(ctx context.Context, tx transaction) ([]buffer.Relay, error) {
	rows, err := tx.rows(ctx, relaysSQL, b.config.Table, buffer.MaxRelays)
	return db.All(rows, err, func(rows *sql.Rows, r *buffer.Relay) error {
		var (
			seen, uptime, last, notReady float64
			class, latencies             string
		)
		err := rows.Scan(&r.Sink, &r.Owner, &r.Version, &r.Stopped, &r.Delivered, &r.Dead, &r.LastMinute, &seen, &uptime, &last, &r.NotReady, &class, &notReady, &r.Notice, &latencies, &r.Answers, &r.Probes)
		r.Seen, r.Uptime, r.LastDelivery = seconds(seen), seconds(uptime), time.Duration(last*float64(time.Second))
		relays.ReadClass(&r.RelayReport, class)
		r.NotReadyFor, r.Latencies = max(0, seconds(notReady)), buffer.ParseLatencies(latencies)
		return err
	})
}
