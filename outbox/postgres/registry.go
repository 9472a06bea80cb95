package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/router"
)

var _ buffer.SinkRegistry = (*Buffer)(nil)

// Sinks implements buffer.SinkRegistry.
func (b *Buffer) Sinks(ctx context.Context) ([]buffer.RegisteredSink, error) {
	return onTable(ctx, b, func(t *table) ([]buffer.RegisteredSink, error) { return b.routes.Sinks(ctx, &t.Tables) })
}

// RegisterSinks implements buffer.SinkRegistry.
func (b *Buffer) RegisterSinks(ctx context.Context) error {
	return b.onRegistry(ctx, func(t *ledger.Tables) error { return b.routes.Register(ctx, t) })
}

// ServeSinks implements buffer.SinkRegistry.
func (b *Buffer) ServeSinks(ctx context.Context) error {
	return b.onRegistry(ctx, func(t *ledger.Tables) error { return b.routes.Serve(ctx, t) })
}

// DropSink implements buffer.SinkRegistry.
func (b *Buffer) DropSink(ctx context.Context, name string, as buffer.Dropped) error {
	return b.onRegistry(ctx, func(t *ledger.Tables) error { return b.routes.Drop(ctx, t, name, as) })
}

// RestoreSink implements buffer.SinkRegistry.
func (b *Buffer) RestoreSink(ctx context.Context, name string) error {
	return b.onRegistry(ctx, func(t *ledger.Tables) error { return b.routes.Restore(ctx, t, name) })
}

var _ buffer.SinkFiller = (*Buffer)(nil)

// FillSink implements buffer.SinkFiller.
func (b *Buffer) FillSink(ctx context.Context, sink string, since time.Time, dry bool, progress func(buffer.Filled)) (buffer.Filled, error) {
	return onTable(ctx, b, func(t *table) (buffer.Filled, error) {
		var custom router.ClaimFiller
		if t.custom != nil {
			custom = t.custom
		}
		return b.routes.Fill(ctx, &t.Tables, custom, sink, since, dry, progress)
	})
}

// sinkFindings returns what is wrong with the registered sinks.
func (b *Buffer) sinkFindings(ctx context.Context) (findings []buffer.Finding, err error) {
	sinks, err := b.Sinks(ctx)
	for i := range sinks {
		if f, wrong := sinks[i].Finding(); wrong {
			findings = append(findings, f)
		}
		if f, differs := sinks[i].MatchFinding(); differs {
			findings = append(findings, f)
		}
	}
	return findings, err
}

func (b *Buffer) onRegistry(ctx context.Context, f func(*ledger.Tables) error) error {
	_, err := onTable(ctx, b, func(t *table) (struct{}, error) { return struct{}{}, f(&t.Tables) })
	return err
}

// unroute takes the table back for a single sink, if every sink of the registry is dropped.
func (b *Buffer) unroute(ctx context.Context, t *table) error {
	if _, err := b.EndDropped(ctx, endAtOnce); err != nil {
		return err
	}
	done, err := b.routes.Unroute(ctx, &t.Tables)
	if done || err != nil {
		return err
	}
	sinks, err := b.Sinks(ctx)
	if err != nil {
		return err
	}
	var left []string
	for _, s := range sinks {
		if s.DroppedAt.IsZero() || s.Batches > 0 {
			left = append(left, s.Name)
		}
	}
	if left == nil { // another relay has taken it back
		return nil
	}
	return fmt.Errorf("%w: events of table %s are routed to several sinks (%s), and this pipeline has a single one. Configure sinks, or drop each of them: relay sinks drop %s -c relay.yaml",
		buffer.ErrNotReady, t.Buffer, strings.Join(left, ", "), left[0])
}

// endAtOnce is how many batches of dropped sinks a claim ends.
const endAtOnce = 100

// endLease is how long a batch of a dropped sink is leased to be ended.
const endLease = 30 * time.Second

// EndDropped implements buffer.SinkRegistry.
func (b *Buffer) EndDropped(ctx context.Context, limit int) (ended buffer.Ended, err error) {
	t, err := b.projects(ctx)
	if err != nil {
		return ended, err
	}
	if err := b.routes.Move(ctx, &t.Tables); err != nil {
		return ended, err
	}
	ending, err := b.routes.Ending(ctx, &t.Tables)
	if err != nil {
		return ended, err
	}
	for name, as := range ending {
		q := b.sink(name)
		for ; limit > 0; limit-- {
			batch, err := t.events.TakeOverEnding(ctx, q.Ledger, endLease, as)
			if err != nil {
				return ended, err
			}
			if batch == nil {
				break
			}
			err = q.Settle(ctx, batch, routing.DroppedOutcomes(batch, name, as))
			switch {
			case errors.Is(err, buffer.ErrLeaseLost), errors.Is(err, buffer.ErrLocked), pg.Code(err) == pg.CodeLockTimeout: // the next sweep tries again
				continue
			case err != nil:
				return ended, err
			}
			ended.Batches++
			ended.Events += int64(batch.Len() - len(batch.Delivered))
		}
	}
	return ended, nil
}
