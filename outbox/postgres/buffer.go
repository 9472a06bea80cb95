// Package postgres is the buffer on PostgreSQL: its statements beside its
// methods, its embedded schema, and Insert for Go applications.
//
// # How events are claimed
//
// Two ways, one for all relays on a buffer: outbox_buffers says which, and it changes
// only while no batch lives. How a batch's events are found is said by its ledger row,
// so whoever has the lease can settle it.
//
// By range, which `auto` takes where ids grow by a sequence: a claim writes a ledger row
// whose members are the ids of the batch, and leaves the events alone. An event is
// written once and deleted once. Claims wait for each other. By stamp, which `auto`
// takes elsewhere: a claim also writes the group_id on each event, and steps over what
// another has locked. Optimistically: it reads a window of events without a lock,
// chooses a batch's worth at random, and then stamps what is still unclaimed of that.
//
// `order: key` stamps. Its claims wait for each other, and pass by the keys that live
// batches hold.
//
// # Tables of the user's own
//
// Their claims stamp, and read nothing but keys: what is sent is what the projection
// returns, which is run behind the claim's commit, or after a take over, in a
// transaction that sees one snapshot and can write nothing (see projection). An event is
// known by its integer key, or by the cursor beside its key. Where there is neither, by
// its uuid: numbers stand for the events of each batch, the ledger row has their keys,
// and there are no marks, so that claims need an index of what is unclaimed. The
// statements are those of the files own_, the same for every table but for the words
// that begin with own_.
//
// # Where claims look
//
// Rows that were delivered stay in the index as dead entries until vacuum may
// take them, which a snapshot held elsewhere can put off for hours. So nothing
// here reads the index from its left end. Three marks on the id line, kept per
// process (see marks):
//
//	floor ≤ cursor ≤ the sequence's last value
//
// Claims look beyond the cursor only. Nothing unclaimed is at or below the
// floor any more. In between there may be late commits: ids drawn before the
// cursor passed them, in transactions that committed after; a sweep looks for
// them every second or so.
//
// # The wire
//
// A transaction is one pipelined round trip, with parameters in text and results
// in binary form; its settings end with it, so a transaction pooler may stand in
// between. Statements that are run for each batch, to claim it by range or by
// stamp and to settle it, are prepared once a connection where that is the
// server's own. Behind a pooler they are unnamed, as all others are everywhere.
// Only the Bell listens, on a connection of its own, and sees a pooler.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/claim"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Config says which buffer to open. URL and Pipeline are required.
type Config struct {
	// URL is a PostgreSQL connection URL, postgres://user:password@host/db.
	URL string
	// Table is the buffer table, "outbox_events" when empty; it may be
	// "schema.table", else the search path finds it.
	Table string
	// Schema is where ledger and dead letters live; the table's when empty.
	Schema string
	// Pipeline names the pipeline in batches and dead letters.
	Pipeline string
	// Owner says in the ledger who holds a lease, for people to read.
	Owner string
	// Archive is the table that delivered events are copied to as they are
	// deleted, by name as Table is; "" for none.
	Archive string
	// Claim is how events are claimed; buffer.ClaimAuto when empty.
	Claim buffer.ClaimMode
	// RetryNow is how the relay hears of events, for Diagnose and for what the Bell says;
	// buffer.WakeAuto when empty.
	Wake buffer.WakeMode
	// Ordered keeps order by key (`order: key`): no event is claimed while an earlier
	// one of its key is in a live batch.
	Ordered bool
	// Own is how events are found in a table of the user's own; zero: the table is the
	// relay's.
	Own buffer.CustomTable
	// SharedRate: TakeToken is to be called, and Check looks whether it can be.
	SharedRate bool
	// SupervisorPolicy says from which age on Diagnose tells of what holds the database back, and
	// what the role needs for what is to be ended.
	Watch buffer.SupervisorPolicy
	// Connections bounds the pool; 8 when 0. Each concurrent call takes one.
	Connections int
}

func (c Config) withDefaults() Config {
	if c.Table == "" {
		c.Table = "outbox_events"
	}
	if c.Connections == 0 {
		c.Connections = 8
	}
	if c.Claim == "" {
		c.Claim = buffer.ClaimAuto
	}
	c.Watch = c.Watch.WithDefaults()
	return c
}

func (c Config) claimRequest() claimmode.Request {
	return claimmode.Request{Claim: c.Claim, Ordered: c.Ordered, Custom: c.Own.Is()}
}

func (c Config) validate() error {
	if c.URL == "" || c.Pipeline == "" {
		return errors.New("postgres buffer: URL and Pipeline are required")
	}
	if err := c.claimRequest().Validate(); err != nil {
		return fmt.Errorf("postgres buffer: %w", err)
	}
	if c.Own.Is() {
		return c.validateOwn()
	}
	return nil
}

// Buffer is a buffer table on PostgreSQL 14 or later. Its methods are described
// by buffertest.Buffer; all are safe for concurrent use.
type Buffer struct {
	*ledger.Ledger
	*backlog.Backlog
	base       *ledger.Base
	claimer    *claim.Claimer
	config     Config
	db         *pg.DB
	watermarks *watermark.Watermarks

	table atomic.Pointer[table] // nil until the database was seen once
}

// Open prepares a buffer; it does not connect. The error is about the
// configuration, and holds no password.
func Open(c Config) (*Buffer, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	db, err := pg.Open(c.URL, c.Connections)
	if err != nil {
		return nil, fmt.Errorf("postgres buffer: %w", err)
	}
	b := &Buffer{config: c, db: db, watermarks: watermark.New(c.Ordered)}
	b.base = &ledger.Base{
		DB: db, Pipeline: c.Pipeline, Owner: c.Owner, Ordered: c.Ordered, Explain: b.explain,
		Ready: func(ctx context.Context) (*ledger.Tables, error) {
			t, err := b.ready(ctx)
			if err != nil {
				return nil, err
			}
			return &t.Tables, nil
		},
	}
	b.claimer = claim.New(b.base, b.watermarks, c.claimRequest())
	b.Backlog = backlog.New(b.base, b.watermarks)
	b.Ledger = ledger.New(b.base, "", b.watermarks.DueAfter)
	return b, nil
}

// Close closes the connections; it waits for calls under way.
func (b *Buffer) Close() error {
	b.db.Close()
	return nil
}

// table is what Check finds out about the buffer.
type table struct {
	ledger.Tables
	// own is nil if the table is the relay's.
	own *own
}

// ready returns the table, looking at the database the first time.
func (b *Buffer) ready(ctx context.Context) (*table, error) {
	if t := b.table.Load(); t != nil {
		return t, nil
	}
	if err := b.Check(ctx); err != nil {
		return nil, err
	}
	return b.table.Load(), nil
}

// Claim implements buffer.Buffer.
func (b *Buffer) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	if t.own != nil {
		return b.claimer.ClaimBy(ctx, &t.Tables, b.claimOwn, limit, lease)
	}
	return b.claimer.ClaimBy(ctx, &t.Tables, b.claimer.Stamp, limit, lease)
}

// ClaimMode returns the mode in which this relay claims; "" before it has seen the database.
func (b *Buffer) ClaimMode() buffer.ClaimMode { return b.claimer.ClaimMode() }

// Peek implements buffer.Buffer.
func (b *Buffer) Peek(ctx context.Context, limit int) (*buffer.Lease, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	if t.own != nil {
		return b.peekOwn(ctx, t, limit)
	}
	return b.claimer.Peek(ctx, &t.Tables, limit)
}

// Warnings returns what is done otherwise than configured, a sentence each.
func (b *Buffer) Warnings(context.Context) []string {
	t := b.table.Load()
	if t == nil || t.RangeIneligible.Text == "" || b.config.Claim != buffer.ClaimRange {
		return nil
	}
	return []string{"claim: range needs ids that only grow; " + t.RangeIneligible.Text + ", so events are claimed by stamp (" + t.RangeIneligible.Fix + ")"}
}

// TakeOver implements buffer.Buffer.
func (b *Buffer) TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	if t.own != nil {
		return b.takeOverOwn(ctx, t, lease)
	}
	return ledger.TakeOverEvents(ctx, b.Ledger, &t.Tables, lease)
}

// Settle implements buffer.Buffer.
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
	if t.own != nil {
		return s.Run(ctx, &set, b.settleOwn(s, t, &set))
	}
	return s.Run(ctx, &set, s.EventSteps(&set))
}
