package deadletter

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// EditStatements change the open dead letters of an event; $1 is the pipeline, $2 what the event is known by, $3 the old text and $4 the new one. Statements
// for the relay's own table have three more parameters: whether the headers stay, and the old and the new ones.
type EditStatements struct {
	// Lock locks the dead letters, so that nothing replays them. It sets relay.edited to how many there are, 0 if one does not have the old text.
	Lock string
	// Edit changes them. A later statement than Lock sees what a replay or a settlement that Lock waited for has left: the event's row, or
	// another dead letter, which is not locked; then it changes nothing.
	Edit string
	// Waits reports whether the event, $1, is in the table.
	Waits string
}

const (
	lockEditedSQL = `
WITH letters AS MATERIALIZED (
  SELECT d.payload::text = $3 AND ($4::boolean OR d.headers::text IS NOT DISTINCT FROM $5::text) AS same FROM outbox_dead_letters d
  WHERE d.pipeline = $1 AND d.event_id = $2 AND d.closed_at IS NULL
  ORDER BY d.event_id, d.group_id
  FOR UPDATE
)
SELECT set_config('relay.edited', (CASE WHEN bool_and(same) THEN count(*) ELSE 0 END)::text, true) FROM letters`

	editSQL = `
UPDATE outbox_dead_letters d SET payload = $4::json, headers = CASE WHEN $5::boolean THEN d.headers ELSE $7::json END
WHERE d.pipeline = $1 AND d.event_id = $2 AND d.closed_at IS NULL AND ($5::boolean OR d.headers::text IS NOT DISTINCT FROM $6::text) AND d.payload::text = $3
  AND NOT EXISTS (SELECT FROM outbox_events e WHERE e.id = d.event_id)
  AND current_setting('relay.edited')::bigint = (
    SELECT count(*) FROM outbox_dead_letters o WHERE o.pipeline = $1 AND o.event_id = $2 AND o.closed_at IS NULL)`

	// For a payload of type bytea.
	lockEditedBytesSQL = `
WITH letters AS MATERIALIZED (
  SELECT d.payload = $3::bytea AND ($4::boolean OR d.headers::text IS NOT DISTINCT FROM $5::text) AS same FROM outbox_dead_letters d
  WHERE d.pipeline = $1 AND d.event_id = $2 AND d.closed_at IS NULL
  ORDER BY d.event_id, d.group_id
  FOR UPDATE
)
SELECT set_config('relay.edited', (CASE WHEN bool_and(same) THEN count(*) ELSE 0 END)::text, true) FROM letters`

	editBytesSQL = `
UPDATE outbox_dead_letters d SET payload = $4::bytea, headers = CASE WHEN $5::boolean THEN d.headers ELSE $7::json END
WHERE d.pipeline = $1 AND d.event_id = $2 AND d.closed_at IS NULL AND ($5::boolean OR d.headers::text IS NOT DISTINCT FROM $6::text) AND d.payload = $3::bytea
  AND NOT EXISTS (SELECT FROM outbox_events e WHERE e.id = d.event_id)
  AND current_setting('relay.edited')::bigint = (
    SELECT count(*) FROM outbox_dead_letters o WHERE o.pipeline = $1 AND o.event_id = $2 AND o.closed_at IS NULL)`

	waitsSQL = `
SELECT EXISTS (SELECT FROM outbox_events WHERE id = $1)`
)

// EditDead implements buffer.DeadEditor for the relay's own table.
func (l *DeadLetters) EditDead(ctx context.Context, e buffer.DeadEdit) error {
	if e.Row {
		return fmt.Errorf("editing a dead letter: event %d has no row of a custom table", e.ID)
	}
	t, err := l.base.Ready(ctx)
	if err != nil {
		return err
	}
	headers := []string{pg.Bool(!e.Headers), optional(e.OldHeaders), optional(e.NewHeaders)}
	if t.DeadPayloadOID == pg.OIDBytea {
		bytea := func(p []byte) string { return `\x` + hex.EncodeToString(p) }
		return l.Edit(ctx, t, EditStatements{lockEditedBytesSQL, editBytesSQL, waitsSQL}, pg.Int(e.ID), bytea(e.Old), bytea(e.New), headers...)
	}
	return l.Edit(ctx, t, EditStatements{lockEditedSQL, editSQL, waitsSQL}, pg.Int(e.ID), pg.Text(string(e.Old)), pg.Text(string(e.New)), headers...)
}

// optional is the text of headers as a parameter.
func optional(h outbox.Headers) string {
	if h == nil {
		return pg.Null
	}
	return pg.Text(string(h))
}

// A replay reads dead letters by the snapshot that it had before it locked them, so an edit that commits in between would be lost. Edits and replays
// of a pipeline therefore exclude each other; replays do not. The lock is a step of its own, before the statement's snapshot.
const (
	lockForEditSQL   = "SELECT pg_advisory_xact_lock(hashtextextended('relay edits ' || $1, 0))"
	lockForReplaySQL = "SELECT pg_advisory_xact_lock_shared(hashtextextended('relay edits ' || $1, 0))"
)

// LockForReplay is the step before the statement that replays dead letters.
func (l *DeadLetters) LockForReplay() pg.Step {
	return pg.Step{SQL: lockForReplaySQL, Args: []string{l.base.Pipeline}}
}

// Edit runs the statements in one transaction. headers are the parameters about headers, of statements that have them.
func (l *DeadLetters) Edit(ctx context.Context, t *ledger.Tables, s EditStatements, id, old, text string, headers ...string) error {
	const doing = "editing a dead letter"
	var (
		same, waits bool
		edited      int64
	)
	err := l.base.DB.Transact(
		ctx,
		l.base.DB.WriteTx(pg.BulkTimeout, pg.PlanByKey...),
		pg.Step{SQL: lockForEditSQL, Args: []string{l.base.Pipeline}},
		pg.Step{SQL: t.SQL(s.Lock), Args: append([]string{l.base.Pipeline, id, old}, headers[:min(len(headers), 2)]...), Row: func(v [][]byte) error {
			same = string(v[0]) != "0"
			return nil
		}},
		pg.Step{SQL: t.SQL(s.Edit), Args: append([]string{l.base.Pipeline, id, old, text}, headers...), Affected: &edited},
		pg.Step{SQL: t.SQL(s.Waits), Args: []string{id}, Row: func(v [][]byte) error {
			waits = pg.ReadBool(v[0])
			return nil
		}},
	)
	switch {
	case err != nil:
		return l.base.Explain(ctx, doing, err)
	case edited > 0:
		return nil
	case same && waits:
		return fmt.Errorf("%s: %w", doing, buffer.ErrEventWaits)
	}
	return fmt.Errorf("%s: %w", doing, buffer.ErrDeadChanged)
}
