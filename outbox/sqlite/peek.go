package sqlite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/internal/scanwindow"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const peeking = "reading the next events"

// Peek implements buffer.Diagnoser.
func (b *Buffer) Peek(ctx context.Context, limit int) (*buffer.Lease, error) {
	batch := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: b.config.Pipeline}, ClaimedAt: time.Now(), ClaimedLocal: time.Now()}
	if err := b.upkeep.peek(ctx, batch, limit); err != nil || batch.Len() == 0 {
		return nil, err
	}
	if c, ok := b.upkeep.(*customTable); ok {
		batch = projection.PeekParts(batch, func(limit int, without []outbox.Event) (*buffer.Lease, error) {
			part := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: b.config.Pipeline}}
			if err := c.peekWithout(ctx, part, limit, without); err != nil || part.Len() == 0 {
				return nil, err
			}
			return part, nil
		})
	}
	ids := batch.IDs()
	batch.FirstID, batch.LastID = ids[0], ids[len(ids)-1]
	return batch, nil
}

// UnsentColumns implements buffer.Diagnoser.
func (b *Buffer) UnsentColumns(ctx context.Context) (unsent []string, err error) {
	err = b.read(ctx, "reading the table's columns", func(tx transaction) error {
		if tx.shape != nil {
			unsent = b.config.Custom.Unsent(tx.shape.columns)
			return nil
		}
		rows, err := tx.rows(ctx, columnsSQL, b.config.Table)
		columns, err := db.Column[string](rows, err)
		unsent = buffer.UnsentEventColumns(lower(columns))
		return err
	})
	return unsent, err
}

// IgnoredColumns implements buffer.Diagnoser.
func (b *Buffer) IgnoredColumns(ctx context.Context) (ignored []buffer.IgnoredColumn, err error) {
	c, ok := b.upkeep.(*customTable)
	if !ok {
		return nil, nil
	}
	err = b.read(ctx, "reading the projection's columns", func(tx transaction) error {
		project, _ := c.projectOf(tx.shape, uuid.Nil, 1, 1, nil)
		names, err := returned(ctx, tx, project, tx.shape.stampOf(uuid.Nil))
		ignored = projection.Ignored(b.config.Custom, names, tx.shape.columns, strings.EqualFold)
		return err
	})
	return ignored, err
}

// CountExcluded implements buffer.Diagnoser.
func (b *Buffer) CountExcluded(ctx context.Context, limit int) (n int, err error) {
	where := b.config.Custom.Where
	if where == "" {
		return 0, nil
	}
	err = b.read(ctx, "counting rows that are no events", func(tx transaction) error {
		return tx.tx.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM "+db.Quote(b.config.Table)+" AS e WHERE (\n"+where+"\n) IS NOT TRUE LIMIT ?1)", limit).Scan(&n)
	})
	return n, err
}

func (r *relayTable) peek(ctx context.Context, batch *buffer.Lease, limit int) error {
	return r.b.read(ctx, peeking, func(tx transaction) error {
		from, now := r.b.cursor.Position(), time.Now().UTC().Format(db.TimeFormat)
		if r.b.config.Ordered {
			if _, err := r.b.pickInOrder(ctx, tx, batch, from, scanwindow.Initial(limit), limit, now); err != nil || len(batch.Events) > 0 {
				return err
			}
		} else if err := r.pick(ctx, tx, batch, claimmode.Range, from, limit, now); err != nil || len(batch.Events) > 0 { // as for range this is right in any mode
			return err
		}
		return r.b.peekDue(ctx, tx, batch, from, limit, now)
	})
}

// peekTimeout is how long a projection may keep other writers out.
const peekTimeout = 5 * time.Second

const queryOnlySQL = `PRAGMA query_only = ON`

// peek stamps the events, projects them, and rolls the stamp back: the projection sees what it would
// see after a claim. Other writers wait meanwhile, at most for peekTimeout. The connection is closed
// afterwards; it cannot write any more once the projection has begun.
func (c *customTable) peek(ctx context.Context, batch *buffer.Lease, limit int) error {
	return c.peekWithout(ctx, batch, limit, nil)
}

// peekWithout is peek, without some events.
func (c *customTable) peekWithout(ctx context.Context, batch *buffer.Lease, limit int, without []outbox.Event) (err error) {
	conn, err := db.Open(c.b.file, "rw", c.b.config.pragmas()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	fits := 0 // fewer events, if those are too large
	err = c.b.explain(ctx, peeking, c.b.begin(ctx, conn, nil, func(tx transaction) error {
		from, now := c.b.cursor.Position(), time.Now().UTC().Format(db.TimeFormat)
		if err := c.pick(ctx, tx, batch, claimmode.Stamp, from, limit+len(without), now); err != nil {
			return err
		}
		if len(batch.Events) == 0 {
			if err := c.b.peekDue(ctx, tx, batch, from, limit+len(without), now); err != nil {
				return err
			}
		}
		batch.Events = slices.DeleteFunc(batch.Events, func(e outbox.Event) bool {
			return slices.ContainsFunc(without, func(other outbox.Event) bool { return other.ID == e.ID })
		})
		batch.Events = batch.Events[:min(len(batch.Events), limit)]
		if len(batch.Events) == 0 {
			return nil
		}
		batch.FirstID, batch.LastID = batch.Events[0].ID, batch.Events[len(batch.Events)-1].ID
		if err := c.stampEach(ctx, tx, batch); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, queryOnlySQL); err != nil {
			return err
		}
		batch.Projected = true
		limited, cancel := context.WithTimeout(ctx, peekTimeout)
		defer cancel()
		read, err := c.projectIn(limited, tx, batch)
		switch {
		case errors.Is(err, buffer.ErrTooLarge):
			fits = max(1, min(read, limit/2))
		case err != nil:
			batch.FailProjection(classify(err))
		}
		return errNothing // rolls back
	}))
	if fits > 0 {
		return c.peekWithout(ctx, batch, fits, without)
	}
	if errors.Is(err, errNothing) {
		err = nil
	}
	return err
}
