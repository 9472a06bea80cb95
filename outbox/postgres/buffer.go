package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/claim"
	"github.com/outboxrelay/relay/outbox/postgres/internal/custom"
	"github.com/outboxrelay/relay/outbox/postgres/internal/deadletter"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/router"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Buffer is a buffer table on PostgreSQL 14 or later. It implements buffer.Buffer
// and is safe for concurrent use.
type Buffer struct {
	*ledger.Ledger
	*backlog.Backlog
	*deadletter.DeadLetters
	base       *ledger.Base
	claimer    *claim.Claimer
	config     Config
	db         *pg.DB
	watermarks *watermark.Watermarks
	routes     *router.Routes
	failing    routing.Failing
	space      space
	lockLook   lockLook

	table atomic.Pointer[table] // nil until the database was seen once
}

// Open prepares a buffer; it does not connect. The error is about the
// configuration, and holds no password.
func Open(c Config) (*Buffer, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Pool == nil {
		var err error
		if c.Pool, err = NewPool(c.URL, c.Connections); err != nil {
			return nil, err
		}
	}
	db, err := c.Pool.connections.Use(c.Connections)
	if err != nil {
		return nil, fmt.Errorf("postgres buffer: %w", err)
	}
	b := &Buffer{config: c, db: db, watermarks: watermark.New(c.Ordered)}
	b.base = &ledger.Base{
		DB: db, Pipeline: c.Pipeline, Owner: c.Owner, Ordered: c.Ordered, Sinks: c.Sinks, Unmatched: c.Unmatched, Explain: b.explain,
		Ready: func(ctx context.Context) (*ledger.Tables, error) {
			t, err := b.ready(ctx)
			if err != nil {
				return nil, err
			}
			return &t.Tables, nil
		},
	}
	b.routes = router.New(b.base)
	b.claimer = claim.New(b.base, b.watermarks, c.claimRequest())
	b.Backlog = backlog.New(b.base, b.watermarks)
	b.DeadLetters = deadletter.New(b.base)
	b.Ledger = ledger.New(b.base, "", b.base.ClaimsFor(), b.watermarks.DueAfter)
	return b, nil
}

// Close writes the floor, if the database answers within a second, and closes the connections; it waits for calls under way.
func (b *Buffer) Close() error {
	if t := b.table.Load(); t != nil {
		b.StoreLastFloor(&t.Tables)
	}
	b.db.Close()
	return nil
}

// table is what Check finds out about the buffer.
type table struct {
	ledger.Tables
	// schema is the event table's, which the search path gave it if source.table has none.
	schema string
	events eventTable
	// custom is the event table if it is custom, otherwise nil; for the doctor.
	custom *custom.Table
	// unsent are its columns that are not sent.
	unsent []string
	// unusable is why the table can only be read since Check saw it: its projection cannot be run, or the database takes no writes.
	// unregistered: it has not even been registered.
	unusable     error
	unregistered bool
	// replaced is closed when another table has the name.
	replaced chan struct{}
}

// ready returns the table, looking at the database the first time. It may be of use to readers alone: see projects.
func (b *Buffer) ready(ctx context.Context) (*table, error) {
	if t := b.table.Load(); t != nil {
		return t, nil
	}
	err := b.Check(ctx)
	if t := b.table.Load(); t != nil && (err == nil || errors.Is(err, buffer.ErrProjection) || errors.Is(err, buffer.ErrNoWrites)) {
		return t, nil
	}
	return nil, err
}

// projects returns the table for what claims events or reads them to be sent. A projection that Check finds wrong must not be run: it may call
// what another role planted.
func (b *Buffer) projects(ctx context.Context) (*table, error) {
	t, err := b.ready(ctx)
	if err != nil || t.unusable == nil {
		return t, err
	}
	if err := b.Check(ctx); err != nil {
		return nil, err
	}
	return b.table.Load(), nil
}

// onTable calls f with the table that has the buffer's name now, as far as is known, and again if an error of f made Check find
// another one.
func onTable[T any](ctx context.Context, b *Buffer, f func(*table) (T, error)) (result T, err error) {
	t, err := b.ready(ctx)
	if err == nil && t.Replaced() {
		err = b.Check(ctx)
		t = b.table.Load()
	}
	if err != nil {
		return result, err
	}
	result, err = f(t)
	if now := b.table.Load(); err != nil && now != t {
		return f(now)
	}
	return result, err
}

// Claim implements buffer.Claimer.
func (b *Buffer) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	if _, err := b.projects(ctx); err != nil {
		return nil, err
	}
	batch, err := onTable(ctx, b, func(t *table) (*buffer.Lease, error) {
		batch, err := b.claimer.ClaimBy(ctx, &t.Tables, t.events.Stamp, limit, lease)
		switch {
		case !errors.Is(err, claim.ErrRouted):
			return batch, err
		case b.config.Sinks == nil:
			err = b.unroute(ctx, t)
		default:
			err = b.routes.Register(ctx, &t.Tables)
		}
		if err != nil {
			return nil, err
		}
		return b.claimer.ClaimBy(ctx, &t.Tables, t.events.Stamp, limit, lease)
	})
	return batch, b.explainTimeout(ctx, err)
}

// CountBacklog implements buffer.Inspector.
func (b *Buffer) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	count := func(*table) (buffer.Backlog, error) { return b.Backlog.CountBacklog(ctx, limit) }
	backlog, err := onTable(ctx, b, count)
	if err == nil && b.table.Load().Replaced() { // it was counted with the sequence of the other table
		backlog, err = onTable(ctx, b, count)
	}
	return backlog, b.explainTimeout(ctx, err)
}

// ReportRelay implements buffer.RelayReporter.
func (b *Buffer) ReportRelay(ctx context.Context, r buffer.RelayReport) error {
	return b.Report(ctx, "", r)
}

// ClaimMode returns the mode in which this relay claims; "" before it has seen the database.
func (b *Buffer) ClaimMode() buffer.ClaimMode { return b.claimer.ClaimMode() }

// Peek implements buffer.Diagnoser.
func (b *Buffer) Peek(ctx context.Context, limit int) (*buffer.Lease, error) {
	t, err := b.projects(ctx)
	if err != nil {
		return nil, err
	}
	return t.events.Peek(ctx, limit)
}

// UnsentColumns implements buffer.Diagnoser.
func (b *Buffer) UnsentColumns(ctx context.Context) ([]string, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	return t.unsent, nil
}

// IgnoredColumns implements buffer.Diagnoser.
func (b *Buffer) IgnoredColumns(ctx context.Context) ([]buffer.IgnoredColumn, error) {
	t, err := b.ready(ctx)
	if err != nil || t.custom == nil {
		return nil, err
	}
	return t.custom.Ignored(), nil
}

// CountExcluded implements buffer.Diagnoser.
func (b *Buffer) CountExcluded(ctx context.Context, limit int) (int, error) {
	t, err := b.ready(ctx)
	if err != nil || t.custom == nil {
		return 0, err
	}
	n, err := t.custom.CountExcluded(ctx, limit)
	return n, b.base.Explain(ctx, "counting rows that are no events", err)
}

// Warnings returns what is done otherwise than configured, and dead letters that nobody looks after, a sentence each.
func (b *Buffer) Warnings(ctx context.Context) (warnings []string) {
	t := b.table.Load()
	if t == nil {
		return nil
	}
	if t.RangeIneligible.Text != "" && b.config.Claim == buffer.ClaimRange {
		warnings = append(warnings, "claim: range needs ids that only grow; "+t.RangeIneligible.Text+", so events are claimed by stamp ("+t.RangeIneligible.Fix+")")
	}
	if t.custom == nil && t.unsent != nil {
		_, name := b.tableName()
		f := projection.UnsentEvents(t.unsent, t.Events, name)
		warnings = append(warnings, f.Text+" ("+f.Fix+")")
	}
	if t.custom != nil && t.custom.Ignored() != nil {
		f := projection.Unknown(t.custom.Ignored())
		warnings = append(warnings, f.Text+" ("+f.Fix+")")
	}
	orphaned, err := b.orphaned(ctx)
	if err != nil {
		return append(warnings, err.Error())
	}
	for _, f := range orphaned {
		warnings = append(warnings, f.Text+" ("+f.Fix+")")
	}
	return warnings
}

// orphaned finds dead letters under names that no pipeline has, and other tables of the pipeline in which events are left.
func (b *Buffer) orphaned(ctx context.Context) ([]buffer.Finding, error) {
	found, err := b.Orphaned(ctx)
	t := b.table.Load()
	if err != nil || t == nil {
		return found, err
	}
	left, err := b.AlsoOwned(ctx)
	return append(found, left...), err
}

// TakeOver implements buffer.Claimer.
func (b *Buffer) TakeOver(ctx context.Context, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	t, err := b.projects(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.base.Own(ctx, &t.Tables); err != nil {
		return nil, err
	}
	batch, err := t.events.TakeOver(ctx, b.Ledger, lease, due)
	return batch, b.explainTimeout(ctx, err)
}

// Read implements buffer.Claimer.
func (b *Buffer) Read(ctx context.Context, l *buffer.Lease) error {
	t, err := b.projects(ctx)
	if err != nil {
		return err
	}
	return t.events.Read(ctx, l)
}

// Settle implements buffer.Settler.
func (b *Buffer) Settle(ctx context.Context, batch *buffer.Lease, results []buffer.Outcome) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	set, err := outcomes.Group(batch, results)
	if err != nil {
		return err
	}
	s := &ledger.Settlement{Ledger: b.Ledger, Tables: &t.Tables, Batch: batch}
	return s.Run(ctx, &set, t.events.SettleSteps(s, &set))
}
