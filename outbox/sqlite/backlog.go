package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/watermark"
)

const countBacklogSQL = `
WITH fresh AS (
  SELECT count(*) AS events, min(id) AS first_id FROM (
          SELECT e.id FROM json_each(?2) AS free CROSS JOIN outbox_events AS e
          WHERE e.id BETWEEN json_extract(free.value, '$[0]') AND json_extract(free.value, '$[1]') AND e.group_id IS NULL
            AND (e.available_at IS NULL OR e.available_at <= ?5)
          LIMIT ?3)
)
SELECT (SELECT events FROM fresh), (SELECT first_id FROM fresh),
       count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND NOT ` + suspectSQL + `),
       count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND ` + suspectSQL + `),
       count(*) FILTER (WHERE state = 'waiting' AND due_at < ` + never + `),
       count(*) FILTER (WHERE state = 'delivered')
FROM outbox_batches WHERE buffer = ?1 AND sink = ?4`

// isStampSQL reports whether a group_id that is not NULL is one as the relay writes it.
const isStampSQL = `(typeof(group_id) = 'text' AND group_id GLOB '????????-????-????-????-????????????'
      AND length(replace(group_id, '-', '')) = 32 AND replace(group_id, '-', '') NOT GLOB '*[^0-9a-f]*')`

// unheldSQL reports whether no batch of several sinks holds the event e, which carries the claim_id of those that do.
const unheldSQL = `
  NOT EXISTS (
    SELECT 1 FROM outbox_batches AS l, json_each(CASE WHEN json_valid(l.members) THEN l.members END) AS run
    WHERE l.claim_id = lower(e.group_id) AND e.id BETWEEN json_extract(run.value, '$[0]') AND json_extract(run.value, '$[1]'))`

const (
	// Orphans are events that carry a group_id without a ledger row, as after a restore of one table or a manual
	// change. A column may compare without case.
	hasOrphansSQL = `
SELECT EXISTS (
  SELECT 1 FROM outbox_events AS e
  WHERE group_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = lower(e.group_id))
    AND` + unheldSQL + `)`

	// Values that are not uuids, as '' from an ORM, may be in any number of events: they become claims of the usual size. A live batch
	// by range would take its members for its own again, and delete what it has not sent.
	clearSQL = `
UPDATE outbox_events AS e SET group_id = NULL
WHERE group_id IS NOT NULL AND NOT ` + isStampSQL + `
  AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = lower(e.group_id))
  AND NOT EXISTS (
    SELECT 1 FROM outbox_batches AS l, json_each(CASE WHEN json_valid(l.members) THEN l.members END) AS run
    WHERE l.buffer = ?1 AND e.id BETWEEN json_extract(run.value, '$[0]') AND json_extract(run.value, '$[1]'))`

	orphansSQL = `
SELECT DISTINCT group_id FROM outbox_events AS e
WHERE ` + isStampSQL + `
  AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = e.group_id)
  AND` + unheldSQL

	// Orphans get a new group_id without origins: a sink may know the old one, from events that were delivered long ago,
	// and would take these for the same. They are found by stamp in every claim mode.
	adoptSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, sink)
SELECT ?3, ?1, 'stamp', 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?2, 0,
       0, 0, count(*), min(id), max(id), coalesce(min(` + waitingSinceSQL + `), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), 'found without a ledger row', ?4
FROM outbox_events WHERE group_id = ?3
RETURNING events`
)

// adopt gives orphans a ledger row. It clears a group_id that is not a uuid.
func (b *Buffer) adopt(ctx context.Context, tx transaction) (adopted buffer.Count, cleared int64, err error) {
	if cleared, err = b.events.clear(ctx, tx); err != nil {
		return adopted, 0, err
	}
	groups, err := b.orphans(ctx, tx)
	if err != nil {
		return adopted, cleared, err
	}
	for _, old := range groups {
		group, err := uuid.Parse(old)
		if err != nil {
			return adopted, cleared, err
		}
		adopting := buffer.NewGroupID()
		if err := b.events.restamp(ctx, tx, group, adopting); err != nil {
			return adopted, cleared, err
		}
		var events int64
		if err := tx.row(ctx, adoptSQL, b.config.Table, b.config.Owner, adopting.String(), b.ledger.sink).Scan(&events); err != nil {
			return adopted, cleared, err
		}
		adopted.Batches, adopted.Events = adopted.Batches+1, adopted.Events+events
	}
	return adopted, cleared, nil
}

// hasOrphans reports whether there are orphans. Those of a buffer whose events are routed to sinks that this process does not have are left
// to the others.
func (b *Buffer) hasOrphans(ctx context.Context, tx transaction) (found bool, err error) {
	_, routed, err := b.storedMode(ctx, tx)
	if err != nil || routed && b.config.Sinks == nil {
		return false, err
	}
	if b.config.Sinks != nil {
		stray, err := b.strayStamps(ctx, tx)
		return len(stray) > 0, err
	}
	err = tx.row(ctx, hasOrphansSQL).Scan(&found)
	return found, err
}

// orphans returns the stamps of orphans.
func (b *Buffer) orphans(ctx context.Context, tx transaction) ([]string, error) {
	if b.config.Sinks != nil {
		return b.strayStamps(ctx, tx)
	}
	rows, err := tx.rows(ctx, orphansSQL)
	return db.Column[string](rows, err)
}

// An event before the cursor and before all live batches that is not delayed can only be there if ids are used again: DELETE of all rows and of
// the row in sqlite_sequence. (Or it was inserted with an id of its own, or an application has made a delayed event an ordinary one.) Any number of
// delayed events may be there, and only the first rows are read.
const renumberedSQL = `
SELECT EXISTS (
  SELECT 1 FROM (
    SELECT group_id, available_at FROM outbox_events WHERE id <= ?2
      AND id < (SELECT coalesce(min(first_id), 9223372036854775807) FROM outbox_batches WHERE buffer = ?1)
    ORDER BY id LIMIT 10)
  WHERE group_id IS NULL AND available_at IS NULL)`

const (
	// A row may become an event at any time after its insert. A look finds those that became available since ?2.
	lateEventsSQL = `
SELECT EXISTS (SELECT 1 FROM outbox_events AS e WHERE e.group_id IS NULL AND e.id <= ?1 AND (e.available_at IS NULL OR e.available_at < ?2))`

	lastRowSQL = `
SELECT coalesce(max(id), -9223372036854775808) FROM outbox_events`
)

// conditional reports whether only some rows are events.
func (b *Buffer) conditional() bool { return b.config.Custom.Where != "" }

// behind reports whether events lie at or before from, where the cursor is: those whose rows became events since it passed them, or whose ids are used
// again.
func (b *Buffer) behind(ctx context.Context, tx transaction, from int64) (found bool, err error) {
	if !b.conditional() {
		if err := tx.row(ctx, renumberedSQL, b.config.Table, from).Scan(&found); err == nil && found {
			b.cursor.Renumbered()
		}
		return found, err
	}
	if !b.cursor.LateDue() {
		return false, nil
	}
	began := time.Now()
	err = tx.row(ctx, lateEventsSQL, from, b.cursor.DelayedFrom().At).Scan(&found)
	b.cursor.LateSwept(time.Since(began), found)
	return found, err
}

// sweep moves the cursor to the beginning and gives orphans a ledger row.
func (b *Buffer) sweep(ctx context.Context) error {
	var orphans bool
	err := b.read(ctx, "looking for orphans", func(tx transaction) (err error) {
		orphans, err = b.hasOrphans(ctx, tx)
		return err
	})
	if err == nil && orphans { // otherwise it is not worth waiting for the write lock
		err = b.write(ctx, "adopting orphans", func(tx transaction) error {
			if _, _, err := b.adopt(ctx, tx); err != nil {
				return err
			}
			return b.fillLanes(ctx, tx)
		})
	}
	if err == nil {
		b.cursor.Swept()
	}
	return err
}

// CountBacklog implements buffer.Inspector. At the start and every few minutes it counts from the
// beginning.
func (b *Buffer) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	if limit > 0 && b.cursor.SweepDue() {
		if err := b.sweep(ctx); err != nil {
			return buffer.Backlog{}, err
		}
	}
	var (
		backlog buffer.Backlog
		last    int64
		from    int64 // changes only in transactions of the one connection
		fresh   int
		first   sql.NullInt64
	)
	err := b.read(ctx, "counting the backlog", func(tx transaction) error {
		from = b.cursor.Position()
		if _, err := b.owner(ctx, tx); err != nil {
			return err
		}
		now, text := b.clock()
		behind, err := b.behind(ctx, tx, from)
		if err != nil {
			return err
		}
		if behind {
			from = watermark.Beginning
		}
		if b.conditional() || b.delays() {
			if err := tx.row(ctx, lastRowSQL).Scan(&last); err != nil {
				return err
			}
		}
		due := 0
		if limit > 0 && b.delays() {
			if due, backlog.NextDelayed, err = b.look(ctx, tx, now, from, limit, true); err != nil {
				return err
			}
		}
		free, err := b.free(ctx, tx, from)
		if err != nil {
			return err
		}
		err = tx.row(ctx, countBacklogSQL, b.config.Table, free, limit, b.ledger.sink, text).
			Scan(&fresh, &first, &backlog.Due, &backlog.Suspects, &backlog.Waiting, &backlog.Delivered)
		backlog.Unclaimed = min(limit, fresh+due)
		if err == nil {
			backlog.Paused, err = b.isPaused(ctx, tx, "")
		}
		if err != nil || !b.config.Ordered || b.config.Sinks != nil {
			return err
		}
		// If all due batches wait for others, none is due: otherwise the pipeline would be taken for stalled.
		for due, count := range map[buffer.Due]*int{buffer.DueRetry: &backlog.Due, buffer.DueSuspect: &backlog.Suspects} {
			if *count == 0 {
				continue
			}
			_, err := b.dueInOrder(ctx, tx, due)
			switch {
			case errors.Is(err, errNothing):
				*count = 0
			case err != nil:
				return err
			}
		}
		return nil
	})
	if err != nil {
		return buffer.Backlog{}, err
	}
	switch {
	case limit <= 0:
	case fresh > 0: // claims need not walk over what is delayed before it
		b.cursor.Skip(from, first.Int64)
	default:
		if b.conditional() || b.cursor.Delayed() {
			b.cursor.Passed(last)
		}
		b.cursor.Exhausted(from)
	}
	return backlog, nil
}

// The ledger counts claimed events exactly. Unclaimed events beyond the cursor are counted up to ?3;
// the ids tell roughly how many more there are. Suspects include those of the dead-letter hook.
const statusSQL = `
WITH ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(max(events - json_array_length(delivered), 0)), 0) AS claimed,
         min(oldest_at) FILTER (WHERE events > json_array_length(delivered)) AS oldest_at
  FROM outbox_batches WHERE buffer = ?1
), alone AS (
  SELECT count(*) AS suspects, min(claimed_at) AS oldest_suspect
  FROM outbox_batches WHERE buffer IN (?1, ?1 || '` + queueSuffix + `') AND ` + anySuspectSQL + `
), fresh AS (
  SELECT count(*) AS events, max(id) AS last_id, min(` + waitingSinceSQL + `) AS oldest_at FROM (
    SELECT e.id, e.created_at, e.available_at FROM json_each(?2) AS free CROSS JOIN outbox_events AS e
    WHERE e.id BETWEEN json_extract(free.value, '$[0]') AND json_extract(free.value, '$[1]') AND e.group_id IS NULL
      AND (e.available_at IS NULL OR e.available_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    LIMIT ?3)
)
SELECT ledger.claimed + fresh.events
         + CASE WHEN fresh.events < ?3 THEN 0 ELSE max(0, (SELECT max(id) FROM outbox_events) - fresh.last_id - ?5) END,
       (julianday('now') - julianday(
         min(coalesce(ledger.oldest_at, fresh.oldest_at), coalesce(fresh.oldest_at, ledger.oldest_at)))) * 86400,
       leased, waiting, delivered,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?4 AND closed_at IS NULL),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?4 AND closed_at IS NULL AND notified_at IS NULL),
       suspects, coalesce((julianday('now') - julianday(oldest_suspect)) * 86400, 0.0),
       ledger.claimed, (julianday('now') - julianday(fresh.oldest_at)) * 86400
FROM ledger, alone, fresh`

// A delivered batch has an error if its events cannot be deleted.
const waitsSQL = `
SELECT coalesce(error, ''), count(*), sum(events),
       (julianday(min(due_at)) - julianday('now')) * 86400, (julianday(max(due_at)) - julianday('now')) * 86400, min(address IS NOT NULL)
FROM outbox_batches WHERE buffer = ?1 AND (state = 'waiting' OR state = 'delivered' AND error IS NOT NULL)
GROUP BY error ORDER BY count(*) DESC, min(due_at) LIMIT ?2`

// waits reads why the batches of a ledger wait.
func (l ledger) waits(ctx context.Context, tx transaction) (all []buffer.Wait, err error) {
	rows, err := tx.rows(ctx, waitsSQL, l.buffer, buffer.MaxWaits)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			one         buffer.Wait
			first, last float64
		)
		if err := rows.Scan(&one.Error, &one.Batches, &one.Events, &first, &last, &one.Early); err != nil {
			return nil, err
		}
		one.First, one.Last = time.Duration(first*float64(time.Second)), time.Duration(last*float64(time.Second))
		all = append(all, one)
	}
	return all, rows.Err()
}

// age returns the age of the oldest of pending events from seconds, which are NULL if nothing says it, and whether it is unknown.
func (t transaction) age(oldest sql.NullFloat64, pending int64) (age time.Duration, unknown bool) {
	if noAges := t.shape != nil && !t.shape.ages; noAges || !oldest.Valid {
		return 0, noAges || pending > 0
	}
	return seconds(oldest.Float64), false
}

// older returns the larger of two ages, of which either may be unknown.
func older(a, b sql.NullFloat64) sql.NullFloat64 {
	if !a.Valid || b.Valid && b.Float64 > a.Float64 {
		return b
	}
	return a
}

// Status implements buffer.Inspector.
func (b *Buffer) Status(ctx context.Context) (buffer.Status, error) {
	var (
		s                   buffer.Status
		oldestSuspect       float64
		claimed             int64
		oldest, oldestFresh sql.NullFloat64
		more                bool
	)
	err := b.read(ctx, "reading the status", func(tx transaction) error {
		from := b.cursor.Position()
		if b.conditional() {
			from = watermark.Beginning
		}
		delayed, err := b.delayedStatus(ctx, tx, from)
		if err != nil {
			return err
		}
		s.Delayed, s.NextDelayed, more = delayed.delayed, delayed.next, delayed.more
		free, err := b.free(ctx, tx, from)
		if err != nil {
			return err
		}
		err = tx.row(ctx, statusSQL, b.config.Table, free, buffer.PendingExact, b.config.Pipeline, delayed.delayed).
			Scan(&s.Pending, &oldest, &s.Leased, &s.Waiting, &s.Delivered, &s.Dead, &s.Unnotified, &s.Suspects, &oldestSuspect, &claimed, &oldestFresh)
		if delayed.due > 0 {
			s.Pending += delayed.due
			oldest, oldestFresh = older(oldest, delayed.oldest), older(oldestFresh, delayed.oldest)
		}
		switch {
		case err != nil:
			return err
		case b.config.Sinks != nil:
			if err = b.sinksStatus(ctx, tx, &s, s.Pending-claimed, oldestFresh); err == nil {
				s.SinkFindings, err = b.sinkFindings(ctx, tx)
			}
		case s.Waiting+s.Delivered > 0:
			s.Waits, err = b.waits(ctx, tx)
		}
		if err == nil && s.Unnotified > 0 {
			s.HookWaits, err = ledger{b, b.config.Table + queueSuffix, singleSink}.waits(ctx, tx)
		}
		if err == nil {
			s.Relays, err = b.relays(ctx, tx)
		}
		if err == nil {
			s.Pauses, err = b.pauses(ctx, tx)
		}
		s.OldestPending, s.AgeUnknown = tx.age(oldest, s.Pending)
		return err
	})
	s.OldestSuspect = seconds(oldestSuspect)
	if err != nil || !more {
		return s, err
	}
	due, delayed, err := b.countDelayed(ctx)
	s.Delayed = max(s.Delayed, delayed)
	if beyond := due - buffer.PendingExact; beyond > 0 && s.Pending >= buffer.PendingExact { // of which batches may have some
		s.Pending += max(0, beyond-claimed)
	}
	return s, err
}
