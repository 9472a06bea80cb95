package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A batch is read after its lease was committed, up to buffer.MaxBytes. The client counts the bytes, and closes the
// connection where there would be more, because only the client knows what a value takes: the server would have to
// decompress and render it twice. A batch that is too large, or that cannot be read in time, is listed
// by ids, and the delivery divides it.

// An event belongs to the batch whose group_id it carries. If the batches of several sinks share events, these carry the claim_id of
// those batches, and belong to each whose members contain it. Without a group_id, it belongs to the batch whose members
// contain it. A range claim sets no group_id, so one that a member carries was set by somebody else. A member is not newer
// than newest_at: a newer event got an id that is used again, and was never sent. A row without newest_at was claimed before
// the column was added. (members + '{}' is the same set in one piece: otherwise one with many gaps would be unpacked for
// each row.)
const (
	heldBySQL = `
WITH l AS MATERIALIZED (
  SELECT coalesce(claim_id, group_id) AS stamp, claim_id IS NULL AS whole, first_id, last_id, members + '{}' AS members,
         coalesce(newest_at, 'infinity') AS newest_at
  FROM outbox_batches WHERE group_id = $1::uuid
)`

	readSQL = heldBySQL + `
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at, e.available_at
FROM l JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id
  AND (e.group_id = l.stamp AND (l.whole OR e.id <@ l.members) OR e.group_id IS NULL AND e.id <@ l.members AND e.created_at <= l.newest_at)`

	// `order: key` asks only which keys are equal, so that a hash does; keys together may be larger than a batch.
	listSQL = heldBySQL + `
SELECT e.id, '', CASE WHEN $2::boolean THEN hashtextextended(e.key, 0) END, NULL, NULL, e.created_at
FROM l JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id
  AND (e.group_id = l.stamp AND (l.whole OR e.id <@ l.members) OR e.group_id IS NULL AND e.id <@ l.members AND e.created_at <= l.newest_at)`

	// buffer.MatchedTopic characters.
	topicsSQL = heldBySQL + `
SELECT e.id, left(e.topic, 4096), NULL, NULL, NULL, e.created_at
FROM l JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id
  AND (e.group_id = l.stamp AND (l.whole OR e.id <@ l.members) OR e.group_id IS NULL AND e.id <@ l.members AND e.created_at <= l.newest_at)`

	// What an address is made of. One with a longer key is not known, and the sink takes none.
	addressSQL = heldBySQL + `
SELECT e.id, e.topic, CASE WHEN octet_length(e.key) <= 65536 THEN e.key END, NULL, NULL, e.created_at
FROM l JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id
  AND (e.group_id = l.stamp AND (l.whole OR e.id <@ l.members) OR e.group_id IS NULL AND e.id <@ l.members AND e.created_at <= l.newest_at)`
)

// Reading is the transaction that reads a batch, behind the one that leases it.
type Reading struct {
	limit  time.Duration
	cancel context.CancelCauseFunc
	timer  *time.Timer
	began  bool
}

// ReadLimit is how long a batch may be read: half of its lease, because it is sent in the rest, and no longer than a
// short statement.
func (b *Base) ReadLimit(lease time.Duration) time.Duration {
	return min(b.DB.StatementTimeout, lease/2)
}

// NewReading returns a context for the whole round trip. It ends when the batch could not be read within the limit.
// The caller must call End.
func NewReading(ctx context.Context, limit time.Duration) (context.Context, *Reading) {
	r := &Reading{limit: max(limit.Truncate(time.Millisecond), time.Millisecond)}
	ctx, r.cancel = context.WithCancelCause(ctx)
	return ctx, r
}

// Begin is the Row function of the transaction's first step: the lease is committed.
func (r *Reading) Begin([][]byte) error {
	r.began = true
	r.timer = time.AfterFunc(r.limit, func() { r.cancel(buffer.ErrSlowRead) })
	return nil
}

// Step is the first step of the transaction that reads: begin is one of the pg.DB's, such as BatchTx.
func (r *Reading) Step(begin func(limit time.Duration, settings ...string) pg.Step, settings ...string) pg.Step {
	s := begin(r.limit, settings...)
	s.Row = r.Begin
	return s
}

// End releases the context.
func (r *Reading) End() {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.cancel(nil)
}

// Cause returns why a batch that is leased could not be read, by the round trip's error; nil if it is not leased, or
// was read. ctx is that of NewReading.
func (r *Reading) Cause(ctx context.Context, err error, read int) error {
	switch {
	case err == nil || !r.began:
		return nil
	case errors.Is(err, buffer.ErrTooLarge):
		return buffer.ErrTooLarge
	case pg.Code(err) == pg.CodeCancelled, errors.Is(context.Cause(ctx), buffer.ErrSlowRead):
		return fmt.Errorf("%w: %d of them in %v", buffer.ErrSlowRead, read, r.limit)
	case pg.IsDataError(err):
		return fmt.Errorf("%w: %w", buffer.ErrUnreadable, err)
	}
	return err
}

// List completes a leased batch that was not read, with nothing but the ids, times and hashed keys of its events. It
// returns cause if that fails too.
func (b *Base) List(ctx context.Context, t *Tables, batch buffer.Lease, cause error, read int) (*buffer.Lease, error) {
	rows, err := b.list(ctx, t, &batch, t.SQL(listSQL), pg.Bool(b.Ordered))
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	listed := b.Complete(rows, batch)
	if len(listed.Events) > 0 {
		listed.FailRead(cause, read)
	}
	return listed, nil
}

func (b *Base) list(ctx context.Context, t *Tables, batch *buffer.Lease, sql string, args ...string) (*pg.EventDecoder, error) {
	rows := &pg.EventDecoder{PayloadOID: t.PayloadOID}
	begin := pg.ReadTx(b.DB.StatementTimeout, "enable_seqscan", "off")
	begin.Row = rows.Reset
	err := b.DB.Transact(ctx, begin, pg.Step{
		SQL: sql, Args: append([]string{batch.GroupID.String()}, args...), Row: rows.AppendListed,
	})
	return rows, err
}

// read reads a leased batch of the relay's own table.
func (b *Base) read(ctx context.Context, t *Tables, batch buffer.Lease, limit time.Duration) (*buffer.Lease, error) {
	if batch.DeliveryRecorded() || batch.MayKillReader() {
		rows, err := b.list(ctx, t, &batch, t.SQL(listSQL), pg.Bool(b.Ordered))
		if err != nil {
			return nil, err
		}
		listed := b.Complete(rows, batch)
		if batch.DeliveryRecorded() { // it is only deleted
			return listed, nil
		}
		if listed.KillsReader() {
			if listed.Len() == 1 {
				if rows, err = b.list(ctx, t, &batch, t.SQL(addressSQL)); err != nil {
					return nil, err
				}
				listed = b.Complete(rows, batch)
			}
			if listed.Len() > 0 {
				listed.FailRead(buffer.ErrKillsReader, 0)
			}
			return listed, nil
		}
	}
	rows := pg.EventDecoder{PayloadOID: t.PayloadOID}
	readCtx, reading := NewReading(ctx, limit)
	defer reading.End()
	err := b.DB.Transact(readCtx, reading.Step(b.DB.WriteTx, "enable_seqscan", "off"), pg.Step{
		SQL: t.SQL(readSQL), Args: []string{batch.GroupID.String()}, Columns: rows.Columns, Row: rows.Append,
	})
	if cause := reading.Cause(readCtx, err, rows.Fitted()); cause != nil && ctx.Err() == nil {
		return b.List(ctx, t, batch, cause, rows.Fitted())
	}
	if err != nil {
		return nil, err
	}
	return b.Complete(&rows, batch), nil
}

// ReadEvents reads a batch of the relay's own table by itself, until ctx is done.
func ReadEvents(ctx context.Context, l *Ledger, t *Tables, batch *buffer.Lease) error {
	read, err := l.base.read(ctx, t, batch.Unread(), pg.ScanTimeout)
	if err == nil {
		batch.SetContents(read)
		err = read.NotRead
	}
	return l.base.Explain(ctx, "reading a batch", err)
}
