package router

import (
	"context"

	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A sink is renamed by the start of a relay whose configuration says what it was. Its row in the registry keeps the old name among the former
// ones, by which a relay with the old configuration finds it. A configuration that has both names means two sinks.
const (
	renameSQL = `
UPDATE outbox_sinks SET sink = $2, formerly = array_append(array_remove(formerly, $2), $3)
WHERE buffer = $1 AND sink = $3 AND dropped_at IS NULL AND NOT EXISTS (SELECT FROM outbox_sinks WHERE buffer = $1 AND sink = $2)
RETURNING set_config('relay.changed', '1', true)`

	// A relay has run with the new name before its configuration said what it was.
	mergeSQL = `
WITH old AS (
  DELETE FROM outbox_sinks
  WHERE buffer = $1 AND sink = $3 AND dropped_at IS NULL AND EXISTS (SELECT FROM outbox_sinks WHERE buffer = $1 AND sink = $2 AND dropped_at IS NULL)
  RETURNING sink || formerly AS names, routed, paused_at, paused_by, paused_reason
)
UPDATE outbox_sinks s SET formerly = s.formerly || old.names, routed = s.routed + old.routed,
       paused_at = coalesce(s.paused_at, old.paused_at), paused_by = coalesce(s.paused_by, old.paused_by), paused_reason = coalesce(s.paused_reason, old.paused_reason)
FROM old
WHERE s.buffer = $1 AND s.sink = $2
RETURNING set_config('relay.changed', '1', true)`

	reuseSQL = `
UPDATE outbox_sinks SET formerly = array_remove(formerly, $2)
WHERE buffer = $1 AND $2 = ANY (formerly) AND sink <> $2 AND sink = ANY ($3::text[])
RETURNING set_config('relay.changed', '1', true)`

	// The single sink of before is in no registry.
	formerSQL = `
UPDATE outbox_sinks SET formerly = array_append(formerly, $3)
WHERE buffer = $1 AND sink = $2 AND dropped_at IS NULL
  AND NOT EXISTS (SELECT FROM outbox_sinks o WHERE o.buffer = $1 AND (o.sink = $3 OR $3 = ANY (o.formerly)))
RETURNING set_config('relay.changed', '1', true)`

	// Of a sink that a relay knows by a former name, later batches come back by that. Those of the single sink were routed to no other.
	moveSQL = `
UPDATE outbox_batches b
SET sink = s.sink, routes_no = CASE b.sink WHEN 'default' THEN coalesce(b.routes_no, 0) ELSE b.routes_no END,
    seq = CASE WHEN b.lanes IS NOT NULL THEN coalesce(b.seq, 0) END
FROM outbox_sinks s
WHERE s.buffer = $1 AND b.buffer = $1 AND b.sink = ANY (s.formerly)
  AND NOT EXISTS (SELECT FROM outbox_sinks o WHERE o.buffer = $1 AND o.sink = b.sink)`

	// Dead letters that wait for the hook of a sink that was renamed go with the sink. If it has no hook any more, or is dropped, they go to
	// the pipeline's.
	moveHooksSQL = `
UPDATE outbox_batches b SET sink = coalesce((
  SELECT s.sink FROM outbox_sinks s WHERE s.buffer = $1 AND s.hook AND s.dropped_at IS NULL AND b.sink = ANY (s.formerly) LIMIT 1), 'default')
WHERE b.buffer = $1 || '` + ledger.DeadLettersSuffix + `' AND b.sink <> 'default'
  AND NOT EXISTS (SELECT FROM outbox_sinks s WHERE s.buffer = $1 AND s.sink = b.sink AND s.hook AND s.dropped_at IS NULL)`
)

// renames are the steps that rename sinks, before the configured ones are registered.
func (r *Routes) renames(t *ledger.Tables) (steps []pg.Step) {
	names := pg.TextArray(r.names())
	for _, s := range r.base.Sinks {
		steps = append(steps, pg.Step{SQL: t.SQL(reuseSQL), Args: []string{t.Buffer, s.Sink, names}})
		if s.Was != "" {
			args := []string{t.Buffer, s.Sink, s.Was}
			steps = append(steps, pg.Step{SQL: t.SQL(renameSQL), Args: args}, pg.Step{SQL: t.SQL(mergeSQL), Args: args})
		}
	}
	return steps
}

// takeOvers are the steps that give sinks the batches of their former names, after they are registered.
func (r *Routes) takeOvers(t *ledger.Tables) (steps []pg.Step) {
	for _, s := range r.base.Sinks {
		if s.Was != "" {
			steps = append(steps, pg.Step{SQL: t.SQL(formerSQL), Args: []string{t.Buffer, s.Sink, s.Was}})
		}
	}
	return append(steps, r.moves(t)...)
}

// moves are the steps that give sinks and hooks the batches that have another name, or none.
func (r *Routes) moves(t *ledger.Tables) []pg.Step {
	return []pg.Step{{SQL: t.SQL(moveSQL), Args: []string{t.Buffer}}, {SQL: t.SQL(moveHooksSQL), Args: []string{t.Buffer}}}
}

// Move gives sinks the batches that came back under their former names, and the pipeline's hook those that came back for the hook of a
// sink that has none any more.
func (r *Routes) Move(ctx context.Context, t *ledger.Tables) error {
	begin := r.base.DB.WriteTx(r.base.DB.StatementTimeout, "synchronous_commit", "on", "enable_seqscan", "off")
	err := r.base.DB.Transact(ctx, append([]pg.Step{begin}, r.moves(t)...)...)
	return r.base.Explain(ctx, "renaming batches", err)
}

// A pipeline that has a single sink again takes the table back when every sink is dropped and none of their batches is left. What was claimed
// and not routed is the single sink's. Nothing of that was sent, so no lease that was left unfinished is a death by its events.
const (
	unrouteSQL = `
UPDATE outbox_buffers SET routed = false, routes_no = routes_no + 1
WHERE buffer = $1 AND routed
  AND NOT EXISTS (SELECT FROM outbox_sinks WHERE buffer = $1 AND dropped_at IS NULL)
  AND NOT EXISTS (SELECT FROM outbox_batches WHERE buffer = $1 AND sink NOT IN ('*', 'default'))
RETURNING set_config('relay.changed', '1', true)`

	unroutedSQL = `
UPDATE outbox_batches SET sink = 'default', unfinished_leases = 0, outages = 0, due_at = CASE WHEN isfinite(due_at) THEN due_at ELSE clock_timestamp() END
WHERE buffer = $1 AND sink = '*' AND current_setting('relay.changed', true) = '1'`

	forgetDefaultSQL = `
DELETE FROM outbox_sinks WHERE buffer = $1 AND sink = 'default' AND current_setting('relay.changed', true) = '1'`
)

// Unroute makes the buffer one with a single sink again, and reports whether it is.
func (r *Routes) Unroute(ctx context.Context, t *ledger.Tables) (done bool, err error) {
	begin := r.base.DB.WriteTx(r.base.DB.StatementTimeout, "synchronous_commit", "on")
	begin.Row = func([][]byte) error {
		done = false
		return nil
	}
	err = r.base.DB.Transact(ctx, begin,
		pg.Step{SQL: t.SQL(lockBufferSQL), Args: []string{t.Buffer}},
		pg.Step{SQL: t.SQL(unrouteSQL), Args: []string{t.Buffer}, Row: func([][]byte) error {
			done = true
			return nil
		}},
		pg.Step{SQL: t.SQL(unroutedSQL), Args: []string{t.Buffer}},
		pg.Step{SQL: t.SQL(forgetDefaultSQL), Args: []string{t.Buffer}})
	return done, r.base.Explain(ctx, "taking the table back from several sinks", err)
}
