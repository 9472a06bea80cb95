package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
)

// A claim for several sinks writes one ledger row for the sink '*'. The process that claimed it matches the topics against the
// registry, and routes the row: one transaction replaces it by a row for each sink that takes any of its events. Rows that share events
// carry the same claim_id, and a settle deletes what no other row of the claim holds (settle_shared.go).
//
//	claim ──▶ '*' leased ──route──▶ a waiting row for each sink ──▶ as every batch
//	               └──lease over──▶ taken over and routed

var _ buffer.Router = (*Buffer)(nil)

// Route implements buffer.Router.
func (b *Buffer) Route(ctx context.Context, limit int, lease time.Duration, take func(sink string) bool) (*buffer.Routed, error) {
	if err := b.canRoute(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	batch, err := b.Claim(ctx, limit, lease)
	if err != nil || batch == nil {
		return nil, err
	}
	if done, err := b.putBack(ctx, batch); done != nil || err != nil {
		return done, err
	}
	return b.routeLeased(ctx, batch, began, lease, take)
}

// canRoute returns a buffer.ErrNotReady if there is no sink to route to: all are dropped. Then nothing should be claimed.
func (b *Buffer) canRoute(ctx context.Context) error {
	known, err := b.ready(ctx)
	if err != nil || len(known.table) > 0 {
		return err
	}
	err = b.read(ctx, "reading the routes", func(tx transaction) (err error) { // one may have been restored
		known, err = b.readRoutes(ctx, tx)
		return err
	})
	if err == nil && len(known.table) == 0 {
		err = b.noSinks()
	}
	return err
}

func (b *Buffer) noSinks() error {
	return fmt.Errorf("%w: all sinks of table %s are dropped, so its events wait. Restore one: relay sinks restore NAME -c relay.yaml", buffer.ErrNotReady, b.config.Table)
}

// takeNone leaves all batches to those that take over.
func takeNone(string) bool { return false }

// RouteDue implements buffer.Router.
func (b *Buffer) RouteDue(ctx context.Context, lease time.Duration) (*buffer.Routed, error) {
	if _, err := b.ready(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	for _, due := range []buffer.Due{buffer.DueRetry, buffer.DueSuspect} { // nothing of it was sent, so it is none
		batch, err := b.takeOver(ctx, lease, due, b.topicsLoader(ctx))
		switch {
		case err != nil:
			return nil, err
		case batch == nil:
			continue
		case batch.DeliveryRecorded(): // no sink takes them
			return &buffer.Routed{Events: batch.Len()}, b.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Delivered}})
		}
		if batch.NotRead == nil {
			b.events.project(ctx, batch, lease/2)
		}
		if done, err := b.putBack(ctx, batch); done != nil || err != nil {
			return done, err
		}
		return b.routeLeased(ctx, batch, began, lease, takeNone)
	}
	return nil, nil
}

func (b *Buffer) topicsLoader(ctx context.Context) loader {
	return func(tx transaction, batch *buffer.Lease, in holding, _ int) error {
		return b.events.topics(ctx, tx, batch, in)
	}
}

// putBack puts a claimed batch back that cannot be routed, and returns what became of it; nil without an error: it can be.
func (b *Buffer) putBack(ctx context.Context, batch *buffer.Lease) (*buffer.Routed, error) {
	if batch.NotRead != nil && batch.Len() == 1 && !errors.Is(batch.NotRead, buffer.ErrKillsReader) {
		if err := b.Read(ctx, batch); err != nil && batch.NotRead == nil {
			return nil, err
		}
	}
	outcomes, why := b.routes.failing.Unroutable(batch)
	if outcomes == nil {
		return nil, nil
	}
	if err := b.Settle(ctx, batch, outcomes); err != nil {
		return nil, err
	}
	return routing.PutBack(batch, why)
}

// Sink implements buffer.Router.
func (b *Buffer) Sink(name string) buffer.Queue { return &sinkQueue{ledger{b, b.config.Table, name}} }

// sinkQueue is the queue of one of several sinks.
type sinkQueue struct{ ledger }

// Check implements buffer.Inspector.
func (q *sinkQueue) Check(ctx context.Context) error { return q.b.Check(ctx) }

// Claim implements buffer.Claimer: a router claims.
func (q *sinkQueue) Claim(context.Context, int, time.Duration) (*buffer.Lease, error) {
	return nil, nil
}

// TakeOver implements buffer.Claimer.
func (q *sinkQueue) TakeOver(ctx context.Context, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	if serves, err := q.b.serves(ctx, q.sink); !serves || err != nil {
		return nil, err
	}
	return q.b.takeOverOf(ctx, q.ledger, lease, due)
}

// Read implements buffer.Claimer.
func (q *sinkQueue) Read(ctx context.Context, batch *buffer.Lease) error { return q.b.Read(ctx, batch) }

// Settle implements buffer.Settler.
func (q *sinkQueue) Settle(ctx context.Context, batch *buffer.Lease, all []buffer.Outcome) error {
	return q.b.Settle(ctx, batch, all)
}

// No more batches are counted than are enough to know what to do: a sink that was away for days may have many. Behind these, what no worker has leased is among those
// that became due last.
const countSinkSQL = `
SELECT count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND NOT ` + suspectSQL + `),
       count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND ` + suspectSQL + `),
       CASE WHEN count(*) < 5000 THEN count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND ` + unsentSQL + `) ELSE (
         SELECT count(*) FROM (
           SELECT state, lease_no, origins FROM outbox_batches
           WHERE buffer = ?1 AND sink = ?2 AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
           ORDER BY due_at DESC LIMIT 1000) WHERE ` + unsentSQL + `) END,
       count(*) FILTER (WHERE state = 'waiting'),
       count(*) FILTER (WHERE state = 'delivered')
FROM (SELECT due_at, state, unfinished_leases, lease_no, origins FROM outbox_batches WHERE buffer = ?1 AND sink = ?2 ORDER BY due_at LIMIT 5000)`

// CountBacklog implements buffer.Inspector.
func (q *sinkQueue) CountBacklog(ctx context.Context, _ int) (backlog buffer.Backlog, err error) {
	if serves, err := q.b.serves(ctx, q.sink); err != nil {
		return backlog, err
	} else if !serves { // a pause outlasts a drop that is taken back
		backlog.Paused, err = q.Paused(ctx)
		return backlog, err
	}
	err = q.b.read(ctx, "counting batches", func(tx transaction) error {
		err := tx.row(ctx, countSinkSQL, q.buffer, q.sinkName()).Scan(&backlog.Due, &backlog.Suspects, &backlog.Unsent, &backlog.Waiting, &backlog.Delivered)
		if err == nil && backlog.Due+backlog.Suspects+backlog.Waiting > 0 && q.b.keepsOrder(q.sink) {
			err = q.countTurns(ctx, tx, &backlog)
		}
		if err == nil {
			backlog.Paused, err = q.b.isPaused(ctx, tx, q.sink)
		}
		return err
	})
	return backlog, err
}

const sinkStatusSQL = `
WITH names AS (
  SELECT ?2 AS sink UNION ALL SELECT was.value FROM outbox_sinks AS s, json_each(s.formerly) AS was WHERE s.buffer = ?1 AND s.sink = ?2
)
SELECT count(*) FILTER (WHERE state = 'leased'), count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'delivered'),
       coalesce(sum(max(events - json_array_length(delivered), 0)), 0),
       (julianday('now') - julianday(min(oldest_at) FILTER (WHERE events > json_array_length(delivered)))) * 86400,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?3 AND sink IN (SELECT sink FROM names) AND closed_at IS NULL),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?3 AND sink IN (SELECT sink FROM names) AND closed_at IS NULL AND notified_at IS NULL)
FROM outbox_batches WHERE buffer = ?1 AND sink = ?2`

// Status implements buffer.Inspector.
func (q *sinkQueue) Status(ctx context.Context) (s buffer.Status, err error) {
	var oldest sql.NullFloat64
	err = q.b.read(ctx, "reading the status of sink "+q.sink, func(tx transaction) error {
		err := tx.row(ctx, sinkStatusSQL, q.buffer, q.sinkName(), q.b.config.Pipeline).
			Scan(&s.Leased, &s.Waiting, &s.Delivered, &s.Pending, &oldest, &s.Dead, &s.Unnotified)
		s.OldestPending, s.AgeUnknown = tx.age(oldest, s.Pending)
		return err
	})
	return s, err
}
