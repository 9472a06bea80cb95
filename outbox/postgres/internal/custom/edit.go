package custom

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/deadletter"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// See deadletter.EditStatements. A replay puts the row back, and the projection makes the payload of it.
const (
	lockEditedSQL = `
WITH letters AS MATERIALIZED (
  SELECT d.event_row::text = $3 AS same FROM outbox_dead_letters d
  WHERE d.pipeline = $1 AND d.custom_id = $2 AND d.closed_at IS NULL
  ORDER BY d.event_id, d.group_id
  FOR UPDATE
)
SELECT set_config('relay.edited', (CASE WHEN bool_and(coalesce(same, FALSE)) THEN count(*) ELSE 0 END)::text, true) FROM letters`

	editSQL = `
UPDATE outbox_dead_letters d SET event_row = $4::json
WHERE d.pipeline = $1 AND d.custom_id = $2 AND d.closed_at IS NULL AND d.event_row::text = $3
  AND NOT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = d.custom_id)
  AND current_setting('relay.edited')::bigint = (
    SELECT count(*) FROM outbox_dead_letters d WHERE d.pipeline = $1 AND d.custom_id = $2 AND d.closed_at IS NULL)`

	waitsSQL = `
SELECT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = $1)`
)

// EditDead changes the row of an event's dead letters.
func (t *Table) EditDead(ctx context.Context, e buffer.DeadEdit) error {
	id := pg.Int(e.ID)
	if !t.Numbered() {
		id = e.UUID.String()
	}
	if !e.Row || e.Headers {
		return fmt.Errorf("editing a dead letter: event %s is a row of a custom table; expected its row", id)
	}
	s := deadletter.EditStatements{Lock: lockEditedSQL, Edit: editSQL, Waits: waitsSQL}
	err := deadletter.New(t.Base).Edit(ctx, t.tables, s, id, pg.Text(string(e.Old)), pg.Text(string(e.New)))
	if t.marks() && errors.Is(err, buffer.ErrEventWaits) {
		return fmt.Errorf("%w; it is in table %s: change it there, and replay", err, t.tables.Events)
	}
	return err
}
