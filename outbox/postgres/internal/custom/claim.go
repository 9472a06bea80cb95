package custom

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/claim"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Stamp is a claim.InRange.
func (t *Table) Stamp(ctx context.Context, tables *ledger.Tables, limit int, lease time.Duration, in watermark.Range) (
	*buffer.Lease, *claim.Start, error,
) {
	done, err := t.Claimer.Stamping(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	groupID := buffer.NewGroupID()
	p := t.newProjecting(groupID).within(ctx, lease)
	p.Reserve(limit)
	start, settings, begin := t.Claimer.Begin(tables, lease, p.Reset)
	args := []string{
		tables.Buffer, groupID.String(), pg.Int(in.After), pg.Int(in.UpTo), pg.Int(int64(limit)), pg.Interval(lease), t.Base.Owner, t.Base.ClaimsFor(),
	}
	steps := []pg.Step{
		pg.Begin, settings, begin,
		{Prepare: true, SQL: tables.SQL(t.either(stampSQL, stampUUIDSQL)), Args: args, Row: p.readClaimed},
		start.Seen(tables),
	}
	if !t.Numbered() {
		steps = append(steps, pg.Step{Prepare: true, SQL: tables.SQL(numbersUUIDSQL), Args: []string{groupID.String()}, Row: p.readNumbers})
	}
	steps = append(steps, pg.Commit)
	err = t.run(ctx, p, append(steps, t.projectSteps(p)...))
	switch {
	case err != nil:
		return nil, nil, err
	case start.Differs(t.Base, claimmode.Stamp) != nil:
		return nil, nil, start.Differs(t.Base, claimmode.Stamp)
	case len(p.Events) == 0:
		return nil, start, nil
	}
	t.readUnprojected(ctx, p)
	return t.complete(p, start.Lease(groupID)), start, nil
}

// Example returns a claim with parameters, for EXPLAIN.
func (t *Table) Example(buffer.ClaimMode) (sql string, args []string) {
	_, args = claim.Example(t.tables, buffer.ClaimStamp)
	return t.tables.SQL(t.either(stampSQL, stampUUIDSQL)), args
}

// TakeOver projects the events again: what was sent before was never stored.
func (t *Table) TakeOver(ctx context.Context, l *ledger.Ledger, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	return t.takeOver(ctx, l, lease, due, t.either(takeOverSQL, takeOverUUIDSQL), "")
}

// TakeOverUnrouted projects the events too: their topics are known only then.
func (t *Table) TakeOverUnrouted(ctx context.Context, l *ledger.Ledger, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	return t.TakeOver(ctx, l, lease, due)
}

// TakeOverEnding takes over a batch of a dropped sink, and projects its events if they become dead letters.
func (t *Table) TakeOverEnding(ctx context.Context, l *ledger.Ledger, lease time.Duration, as buffer.Dropped) (*buffer.Lease, error) {
	return t.takeOver(ctx, l, lease, buffer.DueRetry, t.either(takeOverEndingSQL, takeOverEndingUUIDSQL), as)
}

func (t *Table) takeOver(ctx context.Context, l *ledger.Ledger, lease time.Duration, due buffer.Due, sql string, ends buffer.Dropped) (*buffer.Lease, error) {
	p := t.newProjecting(uuid.Nil)
	batch, err := ledger.TakeOver(ctx, l, t.tables, lease, due, &p.EventDecoder, p.readClaimed, pg.PlanByKey, sql)
	if err != nil || batch == nil {
		return nil, err
	}
	p.begin()
	p.of(batch)
	// A delivered batch is only deleted, unless it is archived or the rest of it is buried.
	switch batch.Events = p.Events; {
	case len(p.Events) == 0 || ends == buffer.DroppedDiscarded && !t.tables.Archive:
	case !batch.DeliveryRecorded() && batch.KillsReader():
		p.notRead = buffer.ErrKillsReader
	case !batch.DeliveryRecorded() || t.tables.Archive || ends == buffer.DroppedDead:
		if err := t.run(ctx, p, t.projectSteps(p.within(ctx, lease))); err != nil {
			return nil, t.Base.Explain(ctx, "projecting a batch that was taken over", err)
		}
		t.readUnprojected(ctx, p)
	}
	return t.complete(p, *batch), nil
}

// Read projects an event by itself, until ctx is done.
func (t *Table) Read(ctx context.Context, batch *buffer.Lease) error {
	p := t.newProjecting(uuid.Nil)
	p.of(batch)
	p.Events, p.limit = batch.Events, pg.ScanTimeout
	err := t.Base.DB.Transact(ctx, pg.ReadTx(t.Base.DB.StatementTimeout, pg.PlanGeneric...), pg.Step{
		SQL: t.tables.SQL(keySQL), Args: []string{p.groupID.String(), t.finds(batch.Events, batch.IDs())},
		Row: func(v [][]byte) error {
			if v[0] != nil && t.key.OID != pg.OIDUUID {
				p.names[string(v[0])] = batch.Events[0].ID
			}
			return nil
		},
	})
	if err != nil {
		return t.Base.Explain(ctx, "projecting a batch", err)
	}
	p.begin()
	if err := t.run(ctx, p, t.projectSteps(p)); err != nil {
		return t.Base.Explain(ctx, "projecting a batch", err)
	}
	t.readUnprojected(ctx, p)
	batch.SetContents(t.complete(p, batch.Unread()))
	return batch.NotRead
}

// Peek projects the events that a claim would take first, in a claim that is rolled back: one transaction, whose settings change within it.
func (t *Table) Peek(ctx context.Context, limit int) (*buffer.Lease, error) {
	batch, err := t.peek(ctx, limit, nil)
	return projection.PeekParts(batch, func(limit int, without []outbox.Event) (*buffer.Lease, error) { return t.peek(ctx, limit, without) }), err
}

// peek is Peek, without some events, and of events that fail together.
func (t *Table) peek(ctx context.Context, limit int, without []outbox.Event) (*buffer.Lease, error) {
	var (
		p     = t.newProjecting(buffer.NewGroupID())
		clock time.Time
		rows  = map[int64][]byte{}
		after = t.Watermarks.UnclaimedAfter(t.tables.Conditional)
		stamp = []byte(`"group_id":"` + p.groupID.String() + `"`)
	)
	begin := t.Base.DB.WriteTx(t.Base.DB.StatementTimeout, pg.PlanByPrimaryKey...)
	begin.Row = p.Reset
	steps := []pg.Step{
		{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		begin,
		{
			SQL: t.tables.SQL(t.either(peekSQL, peekUUIDSQL)), Args: []string{p.groupID.String(), pg.Int(after), pg.Int(int64(limit)), t.tables.Buffer, t.Base.Owner, t.finds(without, (&buffer.Batch{Events: without}).IDs())},
			Row: func(v [][]byte) error {
				clock = pg.ReadTime(v[4])
				if err := p.readClaimed(v); err != nil {
					return err
				}
				e := &p.Events[len(p.Events)-1]
				if !t.Numbered() {
					e.ID = int64(len(p.Events))
				}
				rows[e.ID] = bytes.Replace(v[3], stamp, []byte(`"group_id":null`), 1)
				return p.fit(len(v[3]))
			},
		},
		// The projection runs without the settings of a claim, and read-only.
		pg.SetLocal("transaction_read_only", "on", "enable_seqscan", "on", "enable_bitmapscan", "on", "enable_sort", "on"),
	}
	steps = append(steps, t.projectSteps(p)[1:3]...)
	steps = append(steps, pg.Step{SQL: "ROLLBACK"})
	err := t.run(ctx, p, steps)
	if limit > 1 && (errors.Is(err, buffer.ErrTooLarge) || p.notRead != nil) {
		return t.peekAgain(ctx, max(1, min(limit/2, p.Fitted())), without)
	}
	if err != nil {
		return nil, t.Base.Explain(ctx, "peeking", err)
	}
	if errors.Is(p.notRead, buffer.ErrDatabaseUnavailable) { // nothing is divided
		p.err, p.notRead = p.notRead, nil
	}
	if len(p.Events) == 0 {
		return nil, nil
	}
	for i := range p.Events {
		if e := &p.Events[i]; p.err == nil && p.rows.Missing(i) {
			e.Payload = rows[e.ID]
		}
	}
	return t.complete(p, buffer.Lease{Batch: buffer.Batch{GroupID: p.groupID}, ClaimedAt: clock, ClaimedLocal: time.Now()}), nil
}

// peekAgain peeks at fewer events. The connection of the first peek was closed in mid-answer, and its transaction may
// keep the rows locked a moment longer.
func (t *Table) peekAgain(ctx context.Context, limit int, without []outbox.Event) (l *buffer.Lease, err error) {
	for wait := time.Millisecond; wait < 2*time.Second; wait *= 2 {
		if l, err = t.peek(ctx, limit, without); l != nil || err != nil {
			return l, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, nil
}

// readClaimed reads a row of a claim: the event's number, the key by which the projection names it if that is
// another column, and when it was inserted.
func (p *projecting) readClaimed(v [][]byte) error {
	e := outbox.Event{ID: pg.ReadInt8(v[0]), Topic: p.table.topic, CreatedAt: pg.ReadTime(v[2])}
	if v[1] != nil {
		name := string(v[1])
		if p.table.key.OID == pg.OIDUUID {
			id, err := uuid.Parse(name)
			if err != nil {
				return err
			}
			e.UUID = id
		} else {
			p.names[name] = e.ID
		}
	}
	p.Grow()
	p.Events = append(p.Events, e)
	return nil
}

// readNumbers gives the events their numbers, which are those of the ledger's list.
func (p *projecting) readNumbers(v [][]byte) error {
	numbers := make(map[uuid.UUID]int64, len(p.Events))
	next := pg.ReadInt8(v[0])
	pg.ReadArray(v[1], func(key []byte) {
		numbers[uuid.UUID(key)] = next
		next++
	})
	for i := range p.Events {
		p.Events[i].ID = numbers[p.Events[i].UUID]
	}
	return nil
}

// sort sorts the events by their ids.
func (p *projecting) sort() {
	slices.SortFunc(p.Events, func(a, b outbox.Event) int { return cmp.Compare(a.ID, b.ID) })
	if p.table.key.OID == pg.OIDUUID {
		p.uuids = make(map[uuid.UUID]int64, len(p.Events))
		for i := range p.Events {
			p.uuids[p.Events[i].UUID] = p.Events[i].ID
		}
	}
}

// complete returns the lease with the projected events.
func (t *Table) complete(p *projecting, batch buffer.Lease) *buffer.Lease {
	batch.Pipeline, batch.Events = t.Base.Pipeline, p.Events
	batch.Projected, batch.PayloadIsJSON = true, p.err != nil || p.payload != projection.Bytes
	if n := len(p.Events); n > 0 && batch.FirstID == 0 && batch.LastID == 0 {
		batch.FirstID, batch.LastID = p.Events[0].ID, p.Events[n-1].ID
	}
	switch {
	case p.notRead != nil && !batch.DeliveryRecorded():
		batch.FailRead(p.notRead, p.Fitted())
	case p.notRead != nil: // the rows are archived
	case p.err != nil:
		batch.FailProjection(p.err)
	case p.ran:
		batch.Events, batch.Rejected = p.rows.Split()
	}
	return &batch
}
