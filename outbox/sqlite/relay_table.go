package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// eventTable is how the events of a buffer are claimed and settled: relayTable for the relay's own
// table, customTable for one that the application owns. Statements about ledger and dead letters
// are the same for both.
type eventTable interface {
	// pick fills in up to limit unclaimed events beyond id from that are available now, in ascending id order.
	pick(ctx context.Context, tx transaction, batch *buffer.Lease, mode string, from int64, limit int, now string) error
	// pickDue fills in those of ids that are events, carry no stamp and are available now, in ascending id order.
	pickDue(ctx context.Context, tx transaction, batch *buffer.Lease, ids []int64, now string) error
	// stamp writes the batch's group_id on its events: ids, or if that is nil, all that are unclaimed and available now from its first id to its last.
	stamp(ctx context.Context, tx transaction, batch *buffer.Lease, ids []int64, now string) error
	// load fills in the events of a batch that was taken over; the ledger counts so many.
	load(ctx context.Context, tx transaction, batch *buffer.Lease, in holding, count int) error
	// topics fills in the events of a batch that was claimed for several sinks, with what their routes are decided by.
	topics(ctx context.Context, tx transaction, batch *buffer.Lease, in holding) error
	// restamp gives the events of one group_id, which no batch holds, another one.
	restamp(ctx context.Context, tx transaction, from, to uuid.UUID) error
	// clear sets a group_id that is not a uuid to NULL, and returns of how many events.
	clear(ctx context.Context, tx transaction) (events int64, err error)
	// project fills in what is sent of a leased batch, once its transaction has committed. It may take so long.
	project(ctx context.Context, batch *buffer.Lease, limit time.Duration)
	// bury makes dead letters of events of the batch.
	bury(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, as burial) error
	// remove deletes events of the batch, which are archived before with its routes_no, and returns how many it deleted.
	remove(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, archived bool, routesNo *int64) (deleted int64, err error)
	// putBack inserts the event of a dead letter under a stamp. accepted: the table's constraints allow it; otherwise it may call by.refuse.
	putBack(ctx context.Context, tx transaction, d letter, stamp uuid.UUID, by closing) (accepted bool, err error)
	// holds reports whether the event of a dead letter is in the table, and a claim holds it. One with the same id may be another event: an id may be
	// used again.
	holds(ctx context.Context, tx transaction, d letter, claimID string) (bool, error)
	// regroup stamps events of the batch with the group_id of the outcome.
	regroup(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, o *buffer.Outcome) error
}

// tableUpkeep is everything about a buffer table that is not the life of a batch.
type tableUpkeep interface {
	// begin gives a transaction the names for its statements.
	begin(ctx context.Context, tx *transaction) error
	// peek fills in the events that a claim would take first.
	peek(ctx context.Context, batch *buffer.Lease, limit int) error
	// replay puts dead letters that match back; see matchSQL for args. by is who closes them and why.
	replay(ctx context.Context, args []any, by closing, limit int) (replayed int, err error)
	// missing lists what the table lacks. present: it exists and has all its columns.
	missing(ctx context.Context, tx transaction) ([]buffer.Finding, error)
	// diagnose adds what is found about the table.
	diagnose(ctx context.Context, d *diagnosis)
	close() error
}

// burial is what dead letters have beside their events.
type burial struct {
	group    uuid.UUID
	sink     string
	attempts int
	error    string
	history  any // text or nil
}

// relayTable is the relay's own table.
type relayTable struct {
	b     *Buffer
	names *strings.Replacer
}

func (r *relayTable) begin(_ context.Context, tx *transaction) error {
	tx.names = r.names
	return nil
}

func (r *relayTable) close() error { return nil }

func (r *relayTable) project(context.Context, *buffer.Lease, time.Duration) {}

const (
	pickSQL = `
SELECT id, topic, key, payload, headers, created_at, available_at
FROM outbox_events WHERE id > ?1 AND group_id IS NULL AND (available_at IS NULL OR available_at <= ?3)
ORDER BY id LIMIT ?2`

	// Each run of free ids is read along the primary key, one after the other: this does not walk over
	// the events of live batches.
	pickFreeSQL = `
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at, e.available_at
FROM json_each(?1) AS free CROSS JOIN outbox_events AS e
WHERE e.id BETWEEN json_extract(free.value, '$[0]') AND json_extract(free.value, '$[1]') AND e.group_id IS NULL
  AND (e.available_at IS NULL OR e.available_at <= ?3)
LIMIT ?2`

	pickDueSQL = `
SELECT id, topic, key, payload, headers, created_at, available_at
FROM outbox_events WHERE id IN (SELECT value FROM json_each(?1)) AND group_id IS NULL AND available_at <= ?2
ORDER BY id`

	// No other transaction writes between the pick and the stamp, so the unclaimed rows from the first
	// id picked to the last that are available are the ones picked. (One UPDATE with RETURNING is slower by a third: it
	// keeps all rows twice.)
	stampSQL = `
UPDATE outbox_events SET group_id = ?1
WHERE id BETWEEN ?2 AND ?3 AND group_id IS NULL AND (available_at IS NULL OR available_at <= ?4)`
)

func (r *relayTable) pick(ctx context.Context, tx transaction, batch *buffer.Lease, mode string, from int64, limit int, now string) error {
	statement, args := pickSQL, []any{from, limit, now}
	if mode == claimmode.Range {
		free, err := r.b.free(ctx, tx, from)
		if err != nil {
			return err
		}
		statement, args = pickFreeSQL, []any{free, limit, now}
	}
	rows, err := tx.rows(ctx, statement, args...)
	return r.b.fillEvents(ctx, tx, batch, limit, rows, err)
}

func (r *relayTable) pickDue(ctx context.Context, tx transaction, batch *buffer.Lease, ids []int64, now string) error {
	rows, err := tx.rows(ctx, pickDueSQL, idset.JSONIDs(ids), now)
	return r.b.fillEvents(ctx, tx, batch, len(ids), rows, err)
}

func (r *relayTable) stamp(ctx context.Context, tx transaction, batch *buffer.Lease, ids []int64, now string) error {
	stamped := r.b.stamped(len(batch.Events))
	if ids != nil {
		return stamped(tx.exec(ctx, stampPickedSQL, batch.GroupID.String(), idset.JSONIDs(ids)))
	}
	return stamped(tx.exec(ctx, stampSQL, batch.GroupID.String(), batch.FirstID, batch.LastID, now))
}

// ?1 to ?5 are an extent.
const (
	eventsOfSQL = `
SELECT id, topic, key, payload, headers, created_at, available_at
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ORDER BY id`

	idsOfSQL = `
SELECT id, CASE WHEN ?6 THEN key END, created_at
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ORDER BY id`

	// What an address is made of. One with a longer key is not known, and the sink takes none.
	addressOfSQL = `
SELECT id, topic, CASE WHEN length(key) <= 65536 THEN key END, NULL, NULL, created_at, available_at
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)`
)

func (r *relayTable) load(ctx context.Context, tx transaction, batch *buffer.Lease, in holding, count int) error {
	which := in.extent(batch, nil).args()
	list := func() error {
		rows, err := tx.rows(ctx, idsOfSQL, append(which, r.b.config.Ordered)...)
		if err == nil {
			batch.Events, err = scanListed(rows, count)
		}
		if err == nil && len(batch.Events) == 1 && batch.KillsReader() {
			if rows, err = tx.rows(ctx, addressOfSQL, which...); err == nil {
				batch.Events, _, err = scanEvents(rows, 1)
			}
		}
		return err
	}
	return readUnless(batch, list, func() error {
		rows, err := tx.rows(ctx, eventsOfSQL, which...)
		return r.b.fillEvents(ctx, tx, batch, count, rows, err)
	})
}

// readUnless reads the events of a batch that was taken over. It lists them without their contents if they are not
// needed, if they are too large (Cut), or if they kill their reader.
func readUnless(batch *buffer.Lease, list, read func() error) error {
	if batch.DeliveryRecorded() || batch.MayKillReader() {
		if err := list(); err != nil || batch.DeliveryRecorded() { // then it is only deleted
			return err
		}
		if batch.KillsReader() {
			batch.FailRead(buffer.ErrKillsReader, 0)
			return nil
		}
	}
	if err := read(); err != nil || !batch.Cut {
		return err
	}
	fitted := len(batch.Events)
	batch.Cut = false
	if err := list(); err != nil {
		return err
	}
	batch.FailRead(buffer.ErrTooLarge, fitted)
	return nil
}

// buffer.MatchedTopic characters.
const topicsOfSQL = `
SELECT id, substr(topic, 1, 4096), created_at, available_at
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ORDER BY id`

func (r *relayTable) topics(ctx context.Context, tx transaction, batch *buffer.Lease, in holding) error {
	rows, err := tx.rows(ctx, topicsOfSQL, in.extent(batch, nil).args()...)
	batch.Events, err = db.All(rows, err, func(rows *sql.Rows, e *outbox.Event) error {
		var (
			createdAt   string
			availableAt *string
		)
		if err := rows.Scan(&e.ID, &e.Topic, &createdAt, &availableAt); err != nil {
			return err
		}
		return setTimes(e, createdAt, availableAt)
	})
	return err
}

const restampSQL = `
UPDATE outbox_events AS e SET group_id = ?2 WHERE group_id = ?1 AND` + unheldSQL

func (r *relayTable) restamp(ctx context.Context, tx transaction, from, to uuid.UUID) error {
	_, err := tx.exec(ctx, restampSQL, from.String(), to.String())
	return err
}

func (r *relayTable) clear(ctx context.Context, tx transaction) (events int64, err error) {
	return tx.exec(ctx, clearSQL, r.b.config.Table)
}

const payloadIsJSONSQL = `
SELECT upper(type) = 'TEXT' FROM pragma_table_info(?1) WHERE name = 'payload'`

// fillEvents reads the events of rows, of which there are at most limit, into the batch and closes rows. It sets Cut
// if they would be too large for a batch.
func (b *Buffer) fillEvents(ctx context.Context, tx transaction, batch *buffer.Lease, limit int, rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	if batch.Events, batch.Cut, err = scanEvents(rows, limit); err != nil {
		return err
	}
	if err := tx.row(ctx, payloadIsJSONSQL, b.config.Table).Scan(&batch.PayloadIsJSON); err != nil {
		return err
	}
	invalid := func(e outbox.Event) bool { return !utf8.Valid(e.Payload) }
	batch.PayloadIsJSON = batch.PayloadIsJSON && !slices.ContainsFunc(batch.Events, invalid) // json_valid accepts such text
	return nil
}

func scanEvents(rows *sql.Rows, limit int) (events []outbox.Event, cut bool, err error) {
	defer rows.Close()
	size := 0
	events = make([]outbox.Event, 0, min(limit, 1024))
	for rows.Next() {
		var (
			e           outbox.Event
			createdAt   string
			availableAt *string
		)
		if err := rows.Scan(&e.ID, &e.Topic, &e.Key, &e.Payload, (*[]byte)(&e.Headers), &createdAt, &availableAt); err != nil {
			return nil, false, err
		}
		if size += buffer.EventBytes(&e); size > buffer.MaxBytes && len(events) > 0 {
			return events, true, nil
		}
		if err := setTimes(&e, createdAt, availableAt); err != nil {
			return nil, false, err
		}
		if e.Payload == nil {
			e.Payload = []byte{}
		}
		events = append(events, e)
	}
	return events, false, rows.Err()
}

// setTimes sets the times of an event.
func setTimes(e *outbox.Event, createdAt string, availableAt *string) (err error) {
	if e.CreatedAt, err = db.ParseTime(createdAt); err != nil {
		return fmt.Errorf("created_at of event %d: %w", e.ID, err)
	}
	if availableAt != nil {
		if e.AvailableAt, err = db.ParseTime(*availableAt); err != nil {
			return fmt.Errorf("available_at of event %d: %w", e.ID, err)
		}
	}
	return nil
}

// scanListed reads rows of idsOfSQL. `order: key` asks only which keys are equal, so that a hash does; keys together may
// be larger than a batch.
func scanListed(rows *sql.Rows, limit int) (events []outbox.Event, err error) {
	defer rows.Close()
	events = make([]outbox.Event, 0, min(limit, 1024))
	for rows.Next() {
		var (
			e         outbox.Event
			key       sql.RawBytes
			createdAt string
		)
		if err := rows.Scan(&e.ID, &key, &createdAt); err != nil {
			return nil, err
		}
		if key != nil {
			hash := sha256.Sum256(key)
			text := string(hash[:])
			e.Key = &text
		}
		if e.CreatedAt, err = db.ParseTime(createdAt); err != nil {
			return nil, fmt.Errorf("created_at of event %d: %w", e.ID, err)
		}
		e.Payload = []byte{}
		events = append(events, e)
	}
	return events, rows.Err()
}

// ?1 to ?5 are an extent.
const (
	// An event that was archived before was delivered again under the same group_id.
	archiveSQL = `
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id, routes_no)
SELECT id, topic, key, payload, headers, created_at, ?6, ?7
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ON CONFLICT (id, group_id) DO NOTHING`

	// A restored buffer brings an event back under a group_id that it died under before. If that dead
	// letter was closed since, it is opened again. An event that was put back and has an open dead letter because no sink took it needs no
	// other one of this kind: a replay of both would send it twice.
	burySQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error, sink, history)
SELECT ?7, id, topic, key, payload, headers, created_at, ?6, ?8, ?9, ?10, ?11
FROM outbox_events AS e
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
  AND NOT (?10 = '*' AND EXISTS (
    SELECT 1 FROM outbox_dead_letters AS o
    WHERE o.pipeline = ?7 AND o.event_id = e.id AND o.created_at = e.created_at AND o.topic = e.topic AND o.sink = '*' AND o.closed_at IS NULL))
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = excluded.topic, key = excluded.key, payload = excluded.payload, headers = excluded.headers,
    created_at = excluded.created_at, attempts = excluded.attempts, error = excluded.error, history = excluded.history,
    died_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), notified_at = NULL, closed_at = NULL, closed_as = NULL, closed_by = NULL, closed_reason = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	// A trigger may have dropped the row without an error.
	unburiedSQL = `
SELECT count(*) FROM outbox_events AS e
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
  AND NOT EXISTS (SELECT 1 FROM outbox_dead_letters AS d WHERE d.pipeline = ?6 AND d.event_id = e.id AND (d.group_id = ?7 OR ?8 = '*' AND d.sink = '*' AND d.closed_at IS NULL))`

	deleteSQL = `
DELETE FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)`

	countExtentSQL = `
SELECT count(*) FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)`

	regroupSQL = `
UPDATE outbox_events SET group_id = ?6
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)`
)

func (r *relayTable) bury(ctx context.Context, tx transaction, _ *buffer.Lease, which extent, as burial) error {
	if _, err := tx.exec(ctx, burySQL, append(which.args(), as.group.String(), r.b.config.Pipeline, as.attempts, as.error, as.sink, as.history)...); err != nil {
		return err
	}
	return r.b.buried(ctx, tx, which, as)
}

// buried checks that each event of an extent, which is to be deleted, has a dead letter.
func (b *Buffer) buried(ctx context.Context, tx transaction, which extent, as burial) error {
	var unburied int
	err := tx.row(ctx, unburiedSQL, append(which.args(), b.config.Pipeline, as.group.String(), as.sink)...).Scan(&unburied)
	if err == nil && unburied > 0 {
		return &buffer.UnburiedError{Events: unburied}
	}
	return err
}

func (r *relayTable) remove(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, archived bool, routesNo *int64) (deleted int64, err error) {
	if archived && r.b.config.Archive != "" {
		if _, err := tx.exec(ctx, archiveSQL, append(which.args(), batch.GroupID.String(), routesNo)...); err != nil {
			return 0, err
		}
	}
	return tx.exec(ctx, deleteSQL, which.args()...)
}

func (r *relayTable) regroup(ctx context.Context, tx transaction, _ *buffer.Lease, which extent, o *buffer.Outcome) error {
	var events int
	if err := tx.row(ctx, countExtentSQL, which.args()...).Scan(&events); err != nil {
		return err
	}
	return r.b.stamped(events)(tx.exec(ctx, regroupSQL, append(which.args(), o.GroupID.String())...))
}
