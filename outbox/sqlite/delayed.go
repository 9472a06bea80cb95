package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/watermark"
)

// A delayed event (available_at) is none for claims, counts and the cursor until it is due. The index on available_at finds it then, which has
// no entry for other events: see package watermark.

// delayedColumn is column available_at in the relay's own table. SQLite compares texts, so that all of them must have one form.
const delayedColumn = "TEXT CHECK (available_at IS strftime('%Y-%m-%dT%H:%M:%fZ', available_at))"

// group_id is in the index so that a count need not read the rows. An event leaves the index when it is stamped.
const delayedIndexSQL = `
CREATE INDEX IF NOT EXISTS delayed_index ON outbox_events (available_at, group_id) WHERE available_at IS NOT NULL AND group_id IS NULL`

// delayedIndex is the name of the index of delayed events.
func delayedIndex(table string) string { return table + "_delayed" }

const indexOfSQL = `
SELECT tbl_name FROM sqlite_master WHERE type = 'index' AND name = ?1 COLLATE NOCASE`

// freeIndex returns the name of the table's index of delayed events that it has or may get: a table that was renamed keeps the names of its indexes.
func freeIndex(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, table string,
) (name string, err error) {
	for n := 1; ; n++ {
		if name = delayedIndex(table); n > 1 {
			name += "_" + strconv.Itoa(n)
		}
		var of string
		err := q.QueryRowContext(ctx, indexOfSQL, name).Scan(&of)
		if errors.Is(err, sql.ErrNoRows) || err == nil && strings.EqualFold(of, table) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
	}
}

// addDelayedIndex adds the index of delayed events if its name was another table's.
func (b *Buffer) addDelayedIndex(ctx context.Context) error {
	name, err := freeIndex(ctx, b.db, b.config.Table)
	if err != nil || name == delayedIndex(b.config.Table) {
		return err
	}
	_, err = b.db.ExecContext(ctx, strings.NewReplacer("delayed_index", db.Quote(name), defaultTable, db.Quote(b.config.Table)).Replace(delayedIndexSQL))
	return err
}

// waitingSinceSQL is the time from which the age of an event counts.
const waitingSinceSQL = `max(created_at, coalesce(available_at, ''))`

// delays reports whether a column of the table delays events.
func (b *Buffer) delays() bool { return !b.config.Custom.Is() || b.config.Custom.AvailableAt != "" }

// clock returns the time of a transaction, for its statements. A transaction that writes has the lock already.
func (b *Buffer) clock() (at time.Time, text string) {
	at = time.Now().UTC().Truncate(time.Millisecond)
	b.cursor.Clock(at)
	return at, at.Format(db.TimeFormat)
}

const (
	// The rest of the entries of one time, and those of later times. The index has those of one time in the order of their ids; to ask for it would sort
	// them again. The key is read only with order: key.
	dueAtSQL = `
SELECT e.id, e.available_at, CASE WHEN ?5 THEN e.key END
FROM outbox_events AS e WHERE e.available_at = ?1 AND e.id > ?2 AND e.available_at <= ?3 AND e.group_id IS NULL
ORDER BY e.id LIMIT ?4`

	dueAfterSQL = `
SELECT e.id, e.available_at, CASE WHEN ?4 THEN e.key END
FROM outbox_events AS e WHERE e.available_at > ?1 AND e.available_at <= ?2 AND e.group_id IS NULL
ORDER BY e.available_at LIMIT ?3`

	nextDelayedSQL = `
SELECT e.available_at
FROM outbox_events AS e WHERE e.available_at > ?1 AND e.group_id IS NULL
ORDER BY e.available_at LIMIT 1`
)

// maxLook is how many entries a look reads at most.
const maxLook = 20_000

// errEnough ends a look that has found what it may.
var errEnough = errors.New("enough")

// look looks for up to limit delayed events that are due, below the cursor, and tells the cursor. It returns how many it found, with one for each lane
// that is blocked, and how long until the next event is due, or until a look should read on; 0: none is delayed.
func (b *Buffer) look(ctx context.Context, tx transaction, now time.Time, cursor int64, limit int, counted bool) (found int, next time.Duration, err error) {
	var (
		held  map[uint32]bool
		live  idset.Set
		read  int
		text  = now.Format(db.TimeFormat)
		lanes = b.config.Ordered && b.config.Sinks == nil
		l     = watermark.Look{Now: now, Blocked: map[uint32]watermark.Entry{}, Counted: counted}
	)
	if lanes {
		if held, err = b.heldLanes(ctx, tx); err != nil {
			return 0, 0, err
		}
	}
	l.After = b.cursor.NextLook(now, func(lane uint32) bool { return held[lane] })
	see := func(id int64, at string, key *string) error {
		read++
		l.Last = &watermark.Entry{At: at, ID: id}
		switch {
		case id > cursor: // claims find it by themselves
		case live.Has(id):
		case key != nil && held[lane(*key)]:
			if _, known := l.Blocked[lane(*key)]; !known {
				l.Blocked[lane(*key)] = *l.Last
			}
		default:
			if len(l.Due) == 0 {
				l.First = *l.Last
			}
			if l.Due = append(l.Due, id); len(l.Due) >= limit {
				return errEnough
			}
		}
		if read >= maxLook {
			return errEnough
		}
		return nil
	}
	scan := func(statement string, args ...any) error {
		rows, err := tx.rows(ctx, statement, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var (
				id  int64
				at  string
				key *string
			)
			if err := rows.Scan(&id, &at, &key); err != nil {
				return err
			}
			if read == 0 { // it is rare that any is due
				if live, err = b.live(ctx, tx); err != nil {
					return err
				}
			}
			if err := see(id, at, key); err != nil {
				return err
			}
		}
		return rows.Err()
	}
	err = scan(dueAtSQL, l.After.At, l.After.ID, text, maxLook, lanes)
	if err == nil {
		err = scan(dueAfterSQL, l.After.At, text, maxLook, lanes)
	}
	switch {
	case err == nil:
		l.Last = nil
	case !errors.Is(err, errEnough):
		return 0, 0, err
	}
	next, err = b.nextDelayed(ctx, tx, text)
	if err != nil {
		return 0, 0, err
	}
	l.Existing = next > 0
	if l.Last != nil && len(l.Due) == 0 {
		next = 1
	}
	found = len(l.Due)
	return found + b.cursor.Looked(l), next, nil
}

// nextDelayed returns how long until the next event is due; 0: none is delayed.
func (b *Buffer) nextDelayed(ctx context.Context, tx transaction, now string) (time.Duration, error) {
	var text string
	err := tx.row(ctx, nextDelayedSQL, now).Scan(&text)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, err
	}
	at, err := db.ParseTime(text)
	const most = 365 * 24 * time.Hour
	return min(max(1, time.Until(at)), most), err
}

// live returns the events that batches hold by range.
func (b *Buffer) live(ctx context.Context, tx transaction) (idset.Set, error) {
	sets, err := b.liveSets(ctx, tx, watermark.Beginning)
	return idset.Union(sets...), err
}

// claimDue claims delayed events that are due; nil: none is.
func (b *Buffer) claimDue(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	batch, err := b.claim(ctx, lease, func(tx transaction, batch *buffer.Lease, mode string, from int64) error {
		now, text := b.clock()
		looked := b.cursor.LookAgain()
		if looked {
			if _, _, err := b.look(ctx, tx, now, from, limit, false); err != nil {
				return err
			}
		}
		for {
			ids, looks := b.cursor.TakeDue(limit)
			switch {
			case len(ids) == 0 && (!looks || looked):
				return errNothing
			case len(ids) == 0:
				looked = true
				if _, _, err := b.look(ctx, tx, now, from, lookAhead*limit, false); err != nil {
					return err
				}
				continue
			}
			if err := b.pickDue(ctx, tx, batch, mode, ids, text); err != nil {
				return err
			}
			if len(batch.Events) > 0 {
				break
			}
		}
		if b.config.Ordered {
			return b.openInOrder(ctx, tx, batch, lease, text)
		}
		ids := batch.IDs()
		var members idset.Set
		if mode == claimmode.Range {
			members = idset.Of(ids)
		}
		if err := b.open(ctx, tx, batch, lease, members, eventTimes(batch)); err != nil || members != nil {
			return err
		}
		return b.events.stamp(ctx, tx, batch, ids, text)
	})
	if batch != nil {
		b.events.project(ctx, batch, lease/2)
	}
	return batch, err
}

// lookAhead is how many batches the look of a claim finds events for.
const lookAhead = 20

// pickDue fills in those of ids, which a look has found, that no batch has and that are still due.
func (b *Buffer) pickDue(ctx context.Context, tx transaction, batch *buffer.Lease, mode string, ids []int64, now string) error {
	if mode == claimmode.Range {
		live, err := b.live(ctx, tx)
		if err != nil {
			return err
		}
		ids = idset.Without(ids, live)
	}
	if b.config.Ordered && b.config.Sinks == nil {
		if err := b.fillLanes(ctx, tx); err != nil {
			return err
		}
		var err error
		if ids, err = b.freeKeys(ctx, tx, ids); err != nil {
			return err
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return b.events.pickDue(ctx, tx, batch, ids, now)
}

const keysOfIDsSQL = `
SELECT id, key FROM outbox_events WHERE id IN (SELECT value FROM json_each(?1)) ORDER BY id`

// freeKeys returns those of ids whose keys are in no live batch.
func (b *Buffer) freeKeys(ctx context.Context, tx transaction, ids []int64) (free []int64, err error) {
	held, err := b.heldLanes(ctx, tx)
	if err != nil {
		return nil, err
	}
	rows, err := tx.rows(ctx, keysOfIDsSQL, idset.JSONIDs(ids))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id  int64
			key *string
		)
		if err := rows.Scan(&id, &key); err != nil {
			return nil, err
		}
		if key == nil || !held[lane(*key)] {
			free = append(free, id)
		}
	}
	return free, rows.Err()
}

// eventTimes returns since when the event at an index waits, and when it was inserted.
func eventTimes(batch *buffer.Lease) func(i int) (waiting, created time.Time) {
	return func(i int) (waiting, created time.Time) { return batch.Events[i].Waiting(), batch.Events[i].CreatedAt }
}

const (
	// Entries that are due from one on.
	pendingDueSQL = `
SELECT coalesce(group_concat(id), '') FROM (
  SELECT e.id FROM outbox_events AS e
  WHERE e.available_at >= ?1 AND e.available_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND e.group_id IS NULL
  ORDER BY e.available_at LIMIT ?2)`

	availableAtSQL = `
SELECT (julianday('now') - julianday(e.available_at)) * 86400 FROM outbox_events AS e WHERE e.id = ?1`

	countDelayedSQL = `
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM outbox_events AS e
          WHERE e.available_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND e.group_id IS NULL LIMIT ?1)),
       strftime('%Y-%m-%dT%H:%M:%fZ', 'now')`
)

// delayedStatus is what a status says of delayed events.
type delayedStatus struct {
	due     int64           // below the cursor and in no batch
	oldest  sql.NullFloat64 // seconds since the first of them is available
	delayed int64
	next    time.Duration
	more    bool // there are more of either than were counted
}

// delayedStatus counts delayed events, and those that are due and below the cursor, up to buffer.PendingExact each.
func (b *Buffer) delayedStatus(ctx context.Context, tx transaction, cursor int64) (s delayedStatus, err error) {
	if !b.delays() {
		return s, nil
	}
	var ids, now string
	if err := tx.row(ctx, pendingDueSQL, b.cursor.DelayedFrom().At, buffer.PendingExact).Scan(&ids); err != nil {
		return s, err
	}
	if ids != "" {
		live, err := b.live(ctx, tx)
		if err != nil {
			return s, err
		}
		s.more = strings.Count(ids, ",") >= buffer.PendingExact-1
		for text := range strings.SplitSeq(ids, ",") {
			id, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return s, err
			}
			if id > cursor || live.Has(id) {
				continue
			}
			if s.due++; s.due == 1 {
				if err := tx.row(ctx, availableAtSQL, id).Scan(&s.oldest); err != nil {
					return s, err
				}
			}
		}
	}
	if err := tx.row(ctx, countDelayedSQL, buffer.PendingExact+1).Scan(&s.delayed, &now); err != nil {
		return s, err
	}
	s.more = s.more || s.delayed > buffer.PendingExact
	s.next, err = b.nextDelayed(ctx, tx, now)
	return s, err
}

const countIndexSQL = `
SELECT (SELECT count(*) FROM outbox_events AS e WHERE e.available_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND e.group_id IS NULL),
       (SELECT count(*) FROM outbox_events AS e WHERE e.available_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND e.group_id IS NULL)`

// delayedCount is how many delayed events there are, as counted last. A count of a million reads the index for some tenths of a second.
type delayedCount struct {
	mu           sync.Mutex
	until        time.Time // it is new enough
	due, delayed int64
}

// delayedRest is the rest after a count, in multiples of how long it took.
const delayedRest = 100

// countDelayed counts delayed events, due or not, on a connection of its own: claims do not wait for it.
func (b *Buffer) countDelayed(ctx context.Context) (due, delayed int64, err error) {
	c := &b.delayed
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	if began.Before(c.until) {
		return c.due, c.delayed, nil
	}
	conn, err := db.Open(b.file, "rw", "query_only(1)")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	err = b.explain(ctx, "counting delayed events", b.begin(ctx, conn, readOnly, func(tx transaction) error {
		return tx.row(ctx, countIndexSQL).Scan(&c.due, &c.delayed)
	}))
	if err == nil {
		c.until = time.Now().Add(delayedRest * time.Since(began))
	}
	return c.due, c.delayed, err
}

// peekDue fills in delayed events that are due, below the cursor.
func (b *Buffer) peekDue(ctx context.Context, tx transaction, batch *buffer.Lease, cursor int64, limit int, now string) error {
	if !b.delays() {
		return nil
	}
	rows, err := tx.rows(ctx, dueAfterSQL, b.cursor.DelayedFrom().At, now, maxLook, false)
	ids, err := db.All(rows, err, func(rows *sql.Rows, id *int64) error { return rows.Scan(id, new(any), new(any)) })
	if err != nil || len(ids) == 0 {
		return err
	}
	live, err := b.live(ctx, tx)
	if err != nil {
		return err
	}
	ids = slices.DeleteFunc(ids, func(id int64) bool { return id > cursor || live.Has(id) })
	if b.config.Ordered && b.config.Sinks == nil {
		if ids, err = b.freeKeys(ctx, tx, ids); err != nil {
			return err
		}
	}
	if ids = ids[:min(limit, len(ids))]; len(ids) == 0 {
		return nil
	}
	return b.events.pickDue(ctx, tx, batch, ids, now)
}

// lacksDelayedIndex lists that no index finds delayed events by a column.
func (b *Buffer) lacksDelayedIndex(ctx context.Context, tx transaction, column, fix string) ([]buffer.Finding, error) {
	for _, look := range []string{dueAfterSQL, dueAtSQL} {
		steps, err := planSteps(tx.rows(ctx, "EXPLAIN QUERY PLAN "+look, "", 0, 0, 0, false))
		if err != nil {
			return nil, err
		}
		if len(steps) != 1 || !strings.HasPrefix(steps[0], "SEARCH") || !strings.Contains(steps[0], " INDEX ") || strings.Contains(steps[0], "INTEGER PRIMARY KEY") {
			index, err := freeIndex(ctx, tx.tx, b.config.Table)
			if err != nil {
				return nil, err
			}
			fix = strings.Replace(fix, db.Quote(delayedIndex(b.config.Table)), db.Quote(index), 1)
			return []buffer.Finding{problem("table "+db.Quote(b.config.Table)+" has no index on column "+db.Quote(column)+", so that each look for delayed events would read the whole table", fix)}, nil
		}
	}
	return nil, nil
}

const firstColumnSQL = `
SELECT coalesce(name, '') FROM pragma_index_info(?1) WHERE seqno = 0`

// findsDelayed reports whether an index is one of delayed events.
func (r *relayTable) findsDelayed(ctx context.Context, index string) bool {
	var first string
	err := r.b.db.QueryRowContext(ctx, firstColumnSQL, index).Scan(&first)
	return err == nil && first == "available_at"
}

const farDelayedSQL = `
SELECT count(*), coalesce(min(available_at), '') FROM (
  SELECT e.available_at FROM outbox_events AS e
  WHERE e.available_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+10 years') AND e.group_id IS NULL ORDER BY e.available_at LIMIT 1000)`

// delayed adds whether events wait for a time that is nearly always one in the wrong unit.
func (d *diagnosis) delayed(ctx context.Context) {
	const about = "delayed events"
	var (
		far   int
		first string
	)
	err := d.b.begin(ctx, d.b.db, readOnly, func(tx transaction) error { return tx.row(ctx, farDelayedSQL).Scan(&far, &first) })
	if err == nil && far > 0 { // tables says what is missing
		d.warn(about, fmt.Sprintf("events with an available_at more than 10 years from now: %d, the first at %s; they wait until then", far, first),
			"UPDATE "+db.Quote(d.b.config.Table)+" SET available_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE available_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+10 years')")
	}
}
