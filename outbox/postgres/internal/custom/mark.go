package custom

import (
	"maps"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/deadletter"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A row that is marked stays in the table. The settle sets the columns of the mark, and takes the stamp off: from then on the row is as any other that is no
// event, and becomes one again if the application takes the mark off. custom_marks are the assignments, custom_unmarks those that take the mark
// off again, to the values of a row r of a dead letter c. custom_still raises an error for a row e that is an event in spite of its mark, because it would be sent for
// ever: then nothing of the settle is written. custom_held reports whether the row e, which has the key of the dead letter d, cannot be sent
// for it: another batch has it, or it is another event's, since an id may be used again.

// Each statement of settle.go and settle_routed.go that deletes has one that marks, and one that passes over. Only the version of a row that carries the stamp since
// the relay put it there is marked: every sink has read that one. A row e that the application has changed since (NOT custom_read) may have been read
// before. It only loses its stamp, and is sent again if it is an event. relay.marked is how many rows the statement before has marked; NULL with an archive.

// readSQL reports whether e is that version. xmin is the transaction that wrote it. A batch without a stamp_xid is of an older relay.
const readSQL = `coalesce(e.xmin = ` + ledger.StampXidSQL + `::xid, true)`

const (
	markSQL = `
UPDATE custom_events e SET custom_marks
WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($2) AND e.group_id = $1::uuid AND custom_read`

	markUnlockedSQL = `
UPDATE custom_events e SET custom_marks
WHERE e.custom_id = ANY (ARRAY(
  SELECT e.custom_id FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($2) AND e.group_id = $1::uuid AND custom_read
  ORDER BY e.custom_id
  FOR UPDATE SKIP LOCKED))`

	markRestSQL = `
UPDATE custom_events e SET custom_marks
WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid AND custom_read`

	markUnlockedRestSQL = `
UPDATE custom_events e SET custom_marks
WHERE e.custom_id = ANY (ARRAY(
  SELECT e.custom_id FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid AND custom_read
  ORDER BY e.custom_id
  FOR UPDATE SKIP LOCKED))`

	passSQL = `
UPDATE custom_events e SET group_id = NULL
WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($2) AND e.group_id = $1::uuid AND NOT custom_read
  AND ` + fewerSQL + ``

	passUnlockedSQL = `
UPDATE custom_events e SET group_id = NULL
WHERE e.custom_id = ANY (ARRAY(
  SELECT e.custom_id FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($2) AND e.group_id = $1::uuid AND NOT custom_read
    AND ` + fewerSQL + `
  ORDER BY e.custom_id
  FOR UPDATE SKIP LOCKED))`

	passRestSQL = `
UPDATE custom_events e SET group_id = NULL
WHERE current_setting('relay.fenced') = '1' AND ` + fewerRestSQL + ` AND e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid AND NOT custom_read`

	passUnlockedRestSQL = `
UPDATE custom_events e SET group_id = NULL
WHERE e.custom_id = ANY (ARRAY(
  SELECT e.custom_id FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND ` + fewerRestSQL + ` AND e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid AND NOT custom_read
  ORDER BY e.custom_id
  FOR UPDATE SKIP LOCKED))`

	// fewerSQL reports, before any row is read, whether fewer rows were marked than the batch has.
	fewerSQL = `coalesce(nullif(current_setting('relay.marked', true), '')::bigint < cardinality($2), true)`

	fewerRestSQL = `coalesce(nullif(current_setting('relay.marked', true), '')::bigint < (
    SELECT count(*) FROM unnest($3::bigint[]) n WHERE n <@ (SELECT nullif(current_setting('relay.rest', true), '')::int8multirange)), true)`

	// archivePassedSQL is archiveSQL for events that were delivered in a version that is not there any more.
	archivePassedSQL = `
RETURNING e.custom_id::bigint AS id, to_json(e) AS event_row)` + archiveGoneSQL

	// countMarkedSQL ends a WITH that marks.
	countMarkedSQL = `
RETURNING custom_still AS still)
SELECT count(*), set_config('relay.marked', count(*)::text, true) FROM marked`
)

// removals are the statements that delete or mark events, and those that archive them too; and those that pass over events.
type removals struct{ plain, archived, pass, passArchived string }

// removals returns the statements for what a settle is done with. unlocked: what the application has locked is left. shared: the batch is one of several sinks.
func (t *Table) removals(unlocked, shared bool) removals {
	plain := map[[3]bool]string{
		{false, false, false}: deleteSQL, {false, true, false}: deleteUnlockedSQL, {false, false, true}: deleteRestSQL, {false, true, true}: deleteUnlockedRestSQL,
		{true, false, false}: markSQL, {true, true, false}: markUnlockedSQL, {true, false, true}: markRestSQL, {true, true, true}: markUnlockedRestSQL,
	}[[3]bool{t.marks(), unlocked, shared}]
	r := removals{plain: plain, archived: "WITH gone AS (" + plain + archiveSQL}
	if t.marks() {
		r.plain = "WITH marked AS (" + plain + countMarkedSQL
		r.pass = map[[2]bool]string{{false, false}: passSQL, {true, false}: passUnlockedSQL, {false, true}: passRestSQL, {true, true}: passUnlockedRestSQL}[[2]bool{unlocked, shared}]
		r.passArchived = "WITH gone AS (" + r.pass + archivePassedSQL
	}
	return r
}

// removing returns the steps that delete or mark the events of so many ids, or archive them too. Both have the same parameters.
func (t *Table) removing(s *ledger.Settlement, ids int, archives bool, sql removals, args []string) []pg.Step {
	step := func(plain, archived string) pg.Step {
		if archives {
			return pg.Step{SQL: t.tables.SQL(archived), Args: args}
		}
		return pg.Step{Prepare: true, SQL: t.tables.SQL(plain), Args: args}
	}
	remove := step(sql.plain, sql.archived)
	switch {
	case !t.marks():
		return []pg.Step{s.Deleting(ids, remove)}
	case archives:
		remove = s.Deleting(ids, remove)
	default:
		remove = s.Marking(ids, remove)
	}
	return []pg.Step{remove, s.Deleting(0, step(sql.pass, sql.passArchived))}
}

// marks reports whether the rows of the table stay and are marked.
func (t *Table) marks() bool { return t.mark != nil }

// markNames returns what stands for the names above.
func (t *Table) markNames() []string {
	if !t.marks() {
		return []string{"custom_still", "NULL::bigint", "custom_held", "true"}
	}
	var set, unset []string
	for _, column := range slices.Sorted(maps.Keys(t.mark)) {
		for _, c := range t.insert {
			if c.Name == column {
				set, unset = append(set, c.Quoted+" = ("+"\n"+t.mark[column]+"\n)"), append(unset, c.Quoted+" = "+putBackValue(c))
			}
		}
	}
	held := "e.group_id IS NOT NULL"
	if c := t.inserted; c.Name != "" {
		held = "(" + held + " OR e." + c.Quoted + " IS DISTINCT FROM (d.event_row->>" + pg.Literal(c.Name) + ")::" + c.Type + ")"
	}
	return []string{
		"custom_marks", strings.Join(append(set, "group_id = NULL"), ", "), "custom_unmarks", strings.Join(append(unset, "group_id = c.stamp"), ", "),
		"custom_still", "CASE WHEN " + t.where + " THEN (e." + t.find().Quoted + "::text || ' is still an event after source.mark was set: source.where must be false then, or it would be sent for ever')::bigint END",
		"custom_held", held, "custom_read", readSQL,
	}
}

// Statements of replay.go for a table whose rows stay: a row that is still there gets its stamp and is unmarked, and one that is gone is inserted.
const (
	putMarkedSQL = pickSQL + chosenSQL + unmarkedSQL + `
  SELECT custom_values FROM chosen c, json_populate_record(NULL::custom_events, c.event_row) r
  WHERE NOT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = c.id)
  ON CONFLICT DO NOTHING
  RETURNING e.custom_id AS id, e.created_at AS created_at
), put AS (
  SELECT id, created_at FROM unmarked UNION ALL SELECT id, created_at FROM inserted
), ledger AS (`

	unmarkedSQL = `), unmarked AS (
  UPDATE custom_events e SET custom_unmarks
  FROM chosen c, json_populate_record(NULL::custom_events, c.event_row) r
  WHERE e.custom_id = c.id AND e.group_id IS NULL
  RETURNING e.custom_id AS id, e.created_at AS created_at
), inserted AS (
  INSERT INTO custom_events AS e (custom_columns)
  OVERRIDING SYSTEM VALUE`

	replayMarkedSQL     = putMarkedSQL + replayedRowSQL + closedSQL
	replayMarkedUUIDSQL = putMarkedSQL + replayedRowUUIDSQL + closedSQL

	// putMarkedRoutedSQL stands for putRoutedSQL.
	putMarkedRoutedSQL = `, unmarked AS (
  UPDATE custom_events e SET custom_unmarks
  FROM letters c, json_populate_record(NULL::custom_events, c.event_row) r
  WHERE e.custom_id = c.id AND e.group_id IS NULL
  RETURNING e.custom_id AS id, e.created_at AS created_at, e.group_id
), inserted AS (
  INSERT INTO custom_events AS e (custom_columns)
  OVERRIDING SYSTEM VALUE
  SELECT custom_values FROM letters c, json_populate_record(NULL::custom_events, c.event_row) r
  WHERE NOT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = c.id)
  ON CONFLICT DO NOTHING
  RETURNING e.custom_id AS id, e.created_at AS created_at, e.group_id
), put AS (
  SELECT id, created_at, group_id FROM unmarked UNION ALL SELECT id, created_at, group_id FROM inserted
)`

	replayMarkedRoutedSQL     = replayRoutedHeadSQL + putMarkedRoutedSQL + replayRoutedTailSQL + deadletter.ClosedRoutedSQL
	replayMarkedRoutedUUIDSQL = replayRoutedHeadUUIDSQL + putMarkedRoutedSQL + replayRoutedTailUUIDSQL + deadletter.ClosedRoutedSQL
)

// replays is the statement that puts dead letters back.
func (t *Table) replays() string {
	switch routed := t.Base.Sinks != nil; {
	case routed && t.marks():
		return t.either(replayMarkedRoutedSQL, replayMarkedRoutedUUIDSQL)
	case routed:
		return t.either(replayRoutedSQL, replayRoutedUUIDSQL)
	case t.marks():
		return t.either(replayMarkedSQL, replayMarkedUUIDSQL)
	}
	return t.either(replaySQL, replayUUIDSQL)
}
