package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Peek is described by buffertest.Buffer.
func (b *Buffer) Peek(ctx context.Context, limit int) (*buffer.Lease, error) {
	batch := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: b.config.Pipeline}, ClaimedAt: time.Now(), ClaimedLocal: time.Now()}
	if b.own != nil {
		return b.peekOwn(ctx, batch, limit)
	}
	err := b.read(ctx, "looking at the next events", func(tx transaction) error {
		rows, err := b.pickAny(ctx, tx, limit)
		if err != nil {
			return err
		}
		if batch.Events, err = scanEvents(rows, limit); err != nil {
			return err
		}
		return b.payloadIsJSON(ctx, tx, batch)
	})
	return peeked(batch, err)
}

// pickAny picks what a claim would take first, in whatever mode the buffer is claimed.
func (b *Buffer) pickAny(ctx context.Context, tx transaction, limit int) (*sql.Rows, error) {
	from := b.cursor.from()
	if !b.config.Ordered {
		free, err := b.free(ctx, tx, from)
		if err != nil {
			return nil, err
		}
		return tx.rows(ctx, pickFreeSQL, free, limit)
	}
	held, err := b.heldLanes(ctx, tx)
	if err != nil {
		return nil, err
	}
	waiting, err := tx.rows(ctx, waitingKeysSQL, from, nearby*limit)
	if err != nil {
		return nil, err
	}
	p, err := pick(waiting, held, limit)
	if err != nil {
		return nil, err
	}
	ids, err := idsText(append([]int64{}, p.ids...))
	if err != nil {
		return nil, err
	}
	return tx.rows(ctx, pickedSQL, ids)
}

// peeked is what a Peek returns after its transaction.
func peeked(batch *buffer.Lease, err error) (*buffer.Lease, error) {
	n := len(batch.Events)
	if err != nil || n == 0 {
		return nil, err
	}
	batch.FirstID, batch.LastID = batch.Events[0].ID, batch.Events[n-1].ID
	return batch, nil
}

// peekTime is how long a projection may keep other writers out.
const peekTime = 5 * time.Second

const readOnlySQL = `PRAGMA query_only = ON`

// peekOwn stamps the events, projects them, and takes the stamp back: the projection sees
// what it would see. This keeps other writers waiting, so it is done at most for peekTime. The
// connection is one of its own: it can write no more when the projection has begun.
func (b *Buffer) peekOwn(ctx context.Context, batch *buffer.Lease, limit int) (_ *buffer.Lease, err error) {
	db, err := open(b.file, "rw", b.config.pragmas()...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = b.explain(ctx, "looking at the next events", b.beginOn(ctx, db, nil, func(tx transaction) error {
		if err := pickOwn(ctx, tx, batch, b.cursor.from(), limit); err != nil || len(batch.Events) == 0 {
			return err
		}
		if _, err := tx.exec(ctx, stampOwnSQL, tx.shape.stamp(batch.GroupID), batch.FirstID, batch.LastID); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, readOnlySQL); err != nil {
			return err
		}
		batch.Projected = true
		limited, cancel := context.WithTimeout(ctx, peekTime)
		defer cancel()
		if err := b.projectIn(limited, tx, batch); err != nil {
			batch.ProjectErr = blamed(err)
		}
		return errNothing
	}))
	if errors.Is(err, errNothing) {
		err = nil
	}
	return peeked(batch, err)
}
