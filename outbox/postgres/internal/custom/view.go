package custom

import (
	"context"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
)

const (
	viewSQL     = ledger.ViewSQL + takenRowsSQL
	viewUUIDSQL = ledger.ViewSQL + takenRowsUUIDSQL
)

// View projects a batch without its lease, and returns up to limit of its events; nil if there is no such batch.
func (t *Table) View(ctx context.Context, groupID uuid.UUID, limit int) (*buffer.Lease, error) {
	p := t.newProjecting(groupID)
	batch, err := t.Base.View(ctx, t.tables, groupID, &p.EventDecoder, p.readClaimed, t.either(viewSQL, viewUUIDSQL))
	if err != nil || batch == nil {
		return nil, err
	}
	p.begin()
	p.of(batch)
	switch batch.Events = p.Events; {
	case len(p.Events) == 0:
	case batch.KillsReader():
		p.notRead = buffer.ErrKillsReader
	default:
		if err := t.run(ctx, p, t.projectSteps(p)); err != nil {
			return nil, t.Base.Explain(ctx, "projecting a batch", err)
		}
		t.readUnprojected(ctx, p)
	}
	done := t.complete(p, *batch)
	done.Events, done.Rejected = done.Events[:min(len(done.Events), limit)], done.Rejected[:min(len(done.Rejected), limit)]
	return done, nil
}
