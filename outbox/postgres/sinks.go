package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/router"
)

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
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	if b.config.Custom.Is() {
		if done, err := b.putBack(ctx, batch); done != nil || err != nil {
			return done, err
		}
	}
	if batch.NotRead == nil {
		return b.routeLeased(ctx, t, batch, began, lease, take)
	}
	read, err := ledger.ReadTopics(ctx, b.Ledger, &t.Tables, batch.Unread())
	if err != nil {
		return nil, b.unwritten(ctx, batch, err)
	}
	part := batch.PartSize
	routed, err := b.routeLeased(ctx, t, read, began, lease, takeNone)
	if err == nil {
		routed.Bytes = routed.Events * (buffer.MaxBytes / max(1, part))
	}
	return routed, err
}

// canRoute returns an error if nothing can be routed, so nothing should be claimed.
func (b *Buffer) canRoute(ctx context.Context) error {
	t, err := b.projects(ctx)
	if err != nil {
		return err
	}
	return b.routes.CanRoute(ctx, &t.Tables)
}

// takeNone leaves all batches to those that take over.
func takeNone(string) bool { return false }

// RouteDue implements buffer.Router.
func (b *Buffer) RouteDue(ctx context.Context, lease time.Duration) (*buffer.Routed, error) {
	t, err := b.projects(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.base.Own(ctx, &t.Tables); err != nil {
		return nil, err
	}
	began := time.Now()
	for _, due := range []buffer.Due{buffer.DueRetry, buffer.DueSuspect} { // nothing of it was sent, so it is none
		batch, err := t.events.TakeOverUnrouted(ctx, b.Ledger, lease, due)
		switch {
		case err != nil:
			return nil, b.explainTimeout(ctx, err)
		case batch == nil:
			continue
		case batch.DeliveryRecorded(): // no sink takes them
			return &buffer.Routed{Events: batch.Len()}, b.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Delivered}})
		}
		if done, err := b.putBack(ctx, batch); done != nil || err != nil {
			return done, err
		}
		return b.routeLeased(ctx, t, batch, began, lease, takeNone)
	}
	return nil, nil
}

// routeLeased routes a batch whose claim or take-over began then, or puts it back.
func (b *Buffer) routeLeased(
	ctx context.Context, t *table, batch *buffer.Lease, began time.Time, lease time.Duration, take func(sink string) bool,
) (*buffer.Routed, error) {
	routed, err := b.routes.Route(ctx, &t.Tables, batch, lease, take)
	if err != nil {
		return nil, b.unwritten(ctx, batch, err)
	}
	b.failing.Routed(batch, began)
	return routed, nil
}

// unwritten puts a batch back whose route failed, and returns why.
func (b *Buffer) unwritten(ctx context.Context, batch *buffer.Lease, why error) error {
	if errors.Is(why, buffer.ErrLeaseLost) {
		return why
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), routing.PutBackTimeout)
	defer cancel()
	if err := b.Settle(ctx, batch, b.failing.Unwritten(batch, why, pg.IsDataError(why))); err != nil && !errors.Is(err, buffer.ErrLeaseLost) {
		return errors.Join(why, err)
	}
	return why
}

// Sink implements buffer.Router.
func (b *Buffer) Sink(name string) buffer.Queue { return b.sink(name) }

func (b *Buffer) sink(name string) *sinkQueue {
	return &sinkQueue{router.NewSink(b.routes, name), b}
}

// sinkQueue is the queue of one of several sinks.
type sinkQueue struct {
	*router.Sink
	buffer *Buffer
}

// ReportRelay implements buffer.RelayReporter.
func (q *sinkQueue) ReportRelay(ctx context.Context, r buffer.RelayReport) error {
	return q.buffer.Report(ctx, q.Name(), r)
}

// Check implements buffer.Inspector.
func (q *sinkQueue) Check(ctx context.Context) error { return q.buffer.Check(ctx) }

// Claim implements buffer.Claimer: a router claims.
func (q *sinkQueue) Claim(context.Context, int, time.Duration) (*buffer.Lease, error) {
	return nil, nil
}

// CountBacklog implements buffer.Inspector.
func (q *sinkQueue) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	backlog, err := q.Sink.CountBacklog(ctx, limit)
	return backlog, q.buffer.explainTimeout(ctx, err)
}

// TakeOver implements buffer.Claimer.
func (q *sinkQueue) TakeOver(ctx context.Context, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	t, err := q.buffer.projects(ctx)
	if err != nil {
		return nil, err
	}
	if serves, err := q.Serves(ctx, &t.Tables); !serves || err != nil {
		return nil, err
	}
	if err := q.buffer.base.Own(ctx, &t.Tables); err != nil {
		return nil, err
	}
	batch, err := t.events.TakeOver(ctx, q.Ledger, lease, due)
	return batch, q.buffer.explainTimeout(ctx, err)
}

// Read implements buffer.Claimer.
func (q *sinkQueue) Read(ctx context.Context, l *buffer.Lease) error { return q.buffer.Read(ctx, l) }

// Settle implements buffer.Settler.
func (q *sinkQueue) Settle(ctx context.Context, batch *buffer.Lease, results []buffer.Outcome) error {
	t, err := q.buffer.ready(ctx)
	if err != nil {
		return err
	}
	set, err := outcomes.Group(batch, results)
	if err != nil {
		return err
	}
	s := &ledger.Settlement{Ledger: q.Ledger, Tables: &t.Tables, Batch: batch}
	return s.Run(ctx, &set, t.events.SettleSteps(s, &set))
}
