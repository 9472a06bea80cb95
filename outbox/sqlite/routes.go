package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// The registry, table outbox_sinks, decides what a batch is routed to, not the configuration of the process that routes
// it: an old relay that runs beside a new one gives the new one's sinks their events too. routes_no rises with each
// change, and every route compares it with what this process has read. A route sees no registry but the latest, because no other transaction
// writes while it runs.

// registry is what a process has read of it.
type registry struct {
	generation int64 // of the file
	no         int64
	table      routing.Table
	dropped    []string
	// current is the present name of a configured sink that was renamed, local the reverse.
	current, local map[string]string
}

func nameIn(names map[string]string, name string) string { return cmp.Or(names[name], name) }

// routes are the routes of a buffer. They are safe for concurrent use.
type routes struct {
	registering sync.Mutex
	read        atomic.Pointer[registry]
	open        *routing.OpenRows
	failing     routing.Failing
}

const (
	routesNoSQL = `
SELECT routes_no FROM outbox_buffers WHERE buffer = ?1`

	readSinksSQL = `
SELECT sink, match, batch_size, hook, formerly, dropped_at IS NOT NULL, routed, registered_at,
       paused_at, paused_by, paused_reason, match_before, match_at FROM outbox_sinks WHERE buffer = ?1 ORDER BY sink`
)

// registeredSink is a sink of the registry, with what a fill needs, and its pause.
type registeredSink struct {
	routing.Registered
	routed       routedWith
	registeredAt *string
	pause        [3]*string // since when, by whom and why
	before       [2]*string // match, before a start changed it, and when
}

func (b *Buffer) registeredSinks(ctx context.Context, tx transaction) ([]registeredSink, error) {
	rows, err := tx.rows(ctx, readSinksSQL, b.config.Table)
	return db.All(rows, err, func(rows *sql.Rows, r *registeredSink) error {
		var match, formerly, routed string
		if err := rows.Scan(&r.Sink, &match, &r.BatchSize, &r.Hook, &formerly, &r.Dropped, &routed, &r.registeredAt, &r.pause[0], &r.pause[1], &r.pause[2], &r.before[0], &r.before[1]); err != nil {
			return err
		}
		return errors.Join(json.Unmarshal([]byte(match), &r.Match), json.Unmarshal([]byte(formerly), &r.Formerly), json.Unmarshal([]byte(routed), &r.routed))
	})
}

// errUnregistered: the registry does not have the sinks of this process, because another file is in place of the first one, or the
// registry was emptied.
var errUnregistered = errors.New("the sinks are not registered")

// routesIn returns the registry as the transaction sees it. errors.Is finds errUnregistered.
func (b *Buffer) routesIn(ctx context.Context, tx transaction) (*registry, error) {
	known := b.routes.read.Load()
	if known == nil || known.generation != tx.generation {
		return nil, errUnregistered
	}
	var no int64
	err := tx.row(ctx, routesNoSQL, b.config.Table).Scan(&no)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, errUnregistered
	case err != nil:
		return nil, err
	case no == known.no:
		return known, nil
	}
	return b.readRoutes(ctx, tx)
}

// readRoutes reads the registry and remembers it. The transaction must not have changed it.
func (b *Buffer) readRoutes(ctx context.Context, tx transaction) (*registry, error) {
	r := &registry{generation: tx.generation, current: map[string]string{}, local: map[string]string{}}
	if err := tx.row(ctx, routesNoSQL, b.config.Table).Scan(&r.no); err != nil {
		return nil, err
	}
	all, err := b.registeredSinks(ctx, tx)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errUnregistered
	}
	var (
		open   []buffer.Route
		names  = map[string]bool{}
		former = map[string]string{}
	)
	for _, s := range all {
		names[s.Sink] = true
		for _, was := range s.Formerly {
			former[was] = s.Sink
		}
		if s.Dropped {
			r.dropped = append(r.dropped, s.Sink)
			continue
		}
		open = append(open, buffer.Route{Sink: s.Sink, Match: s.Match, BatchSize: s.BatchSize})
	}
	if r.table, err = routing.NewTable(open); err != nil {
		return nil, fmt.Errorf("table outbox_sinks: %w", err)
	}
	for _, s := range b.config.Sinks {
		if now := former[s.Sink]; now != "" && !names[s.Sink] {
			r.current[s.Sink], r.local[now] = now, s.Sink
		}
	}
	b.routes.read.Store(r)
	return r, nil
}

// ready returns the registry as this process has read it last, and registers the sinks if it never has.
func (b *Buffer) ready(ctx context.Context) (*registry, error) {
	if known := b.routes.read.Load(); known != nil && known.generation == b.follow.Generation() {
		return known, nil
	}
	if err := b.RegisterSinks(ctx); err != nil {
		return nil, err
	}
	known := b.routes.read.Load()
	if known == nil { // its file was replaced meanwhile
		return nil, errUnregistered
	}
	return known, nil
}

// A start adds sinks and updates what they take. It removes none: an old relay that restarts during a rollout would remove those of
// the new one.
const (
	saveSinkSQL = `
INSERT INTO outbox_sinks (buffer, sink, match, batch_size, hook, formerly, routed, registered_at, paused_at, paused_by, paused_reason, match_before, match_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (buffer, sink) DO UPDATE
SET match = excluded.match, batch_size = excluded.batch_size, hook = excluded.hook, formerly = excluded.formerly, routed = excluded.routed, registered_at = excluded.registered_at,
    paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_reason = excluded.paused_reason,
    match_before = excluded.match_before, match_at = excluded.match_at`

	removeSinkSQL = `
DELETE FROM outbox_sinks WHERE buffer = ?1 AND sink = ?2`

	// Of a sink that a relay knows by a former name, later batches come back by that.
	formerBatchesSQL = `
SELECT DISTINCT b.sink, s.sink FROM outbox_batches AS b JOIN outbox_sinks AS s ON s.buffer = b.buffer AND b.sink IN (SELECT value FROM json_each(s.formerly))
WHERE b.buffer = ?1 AND NOT EXISTS (SELECT 1 FROM outbox_sinks AS o WHERE o.buffer = ?1 AND o.sink = b.sink)`

	// Dead letters that wait for the hook of a sink that was renamed go with the sink. If it has no hook any more, or is dropped, they go to the
	// pipeline's. ?2 is the buffer of the hooks.
	formerHooksSQL = `
SELECT DISTINCT b.sink, coalesce((
         SELECT s.sink FROM outbox_sinks AS s
         WHERE s.buffer = ?1 AND s.hook AND s.dropped_at IS NULL AND b.sink IN (SELECT value FROM json_each(s.formerly)) LIMIT 1), 'default')
FROM outbox_batches AS b
WHERE b.buffer = ?2 AND b.sink <> 'default'
  AND NOT EXISTS (SELECT 1 FROM outbox_sinks AS s WHERE s.buffer = ?1 AND s.sink = b.sink AND s.hook AND s.dropped_at IS NULL)`

	// Those of the single sink were routed to no other.
	moveBatchesSQL = `
UPDATE outbox_batches SET sink = ?3, routes_no = CASE sink WHEN 'default' THEN coalesce(routes_no, 0) ELSE routes_no END WHERE buffer = ?1 AND sink = ?2`

	countChangeSQL = `
UPDATE outbox_buffers
SET routed = routed OR EXISTS (SELECT 1 FROM outbox_sinks WHERE buffer = ?1 AND dropped_at IS NULL), routes_no = routes_no + 1
WHERE buffer = ?1 AND (?2 OR NOT routed AND EXISTS (SELECT 1 FROM outbox_sinks WHERE buffer = ?1 AND dropped_at IS NULL))`

	// After a change of the registry, ?2, those that could not be routed with the old one are due too.
	wakeKeptSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE buffer = ?1 AND sink = '*' AND state = 'waiting' AND due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND (?2 OR due_at = ` + never + `)`

	serveSQL = `
UPDATE outbox_sinks SET seen_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE buffer = ?1 AND sink IN (SELECT value FROM json_each(?2)) AND dropped_at IS NULL`
)

// never is when kept events are due, which no sink takes.
const never = `'9999-12-31T23:59:59.999Z'`

// RegisterSinks implements buffer.SinkRegistry.
func (b *Buffer) RegisterSinks(ctx context.Context) error {
	if b.config.Sinks == nil {
		return nil
	}
	b.routes.registering.Lock()
	defer b.routes.registering.Unlock()
	err := b.write(ctx, "registering the sinks", func(tx transaction) error {
		changed, err := b.register(ctx, tx)
		if err != nil {
			return err
		}
		if err := b.moveBatches(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, countChangeSQL, b.config.Table, changed); err != nil {
			return err
		}
		if changed || b.config.Unmatched != buffer.UnmatchedKeep {
			_, err = tx.exec(ctx, wakeKeptSQL, b.config.Table, changed)
		}
		return err
	})
	if err != nil {
		return err
	}
	return b.serve(ctx)
}

// register writes the configured sinks into the registry, and reports whether that has changed anything.
func (b *Buffer) register(ctx context.Context, tx transaction) (changed bool, err error) {
	if _, _, err := b.storedMode(ctx, tx); err != nil {
		return false, err
	}
	all, err := b.registeredSinks(ctx, tx)
	if err != nil {
		return false, err
	}
	var (
		before = make([]routing.Registered, len(all))
		no     int64
	)
	for i := range all {
		before[i] = all[i].Registered
	}
	if err := tx.row(ctx, routesNoSQL, b.config.Table).Scan(&no); err != nil {
		return false, err
	}
	after, known, gone := routing.Register(before, b.config.Sinks), map[string]*registeredSink{}, map[string]*registeredSink{}
	for i := range all {
		name := all[i].Sink
		if _, stays := after[name]; stays {
			known[name] = &all[i]
			continue
		}
		gone[name] = &all[i]
		if _, err := tx.exec(ctx, removeSinkSQL, b.config.Table, name); err != nil {
			return false, err
		}
		changed = true
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		s, old, now := after[name], known[name], time.Now().UTC().Format(db.TimeFormat)
		if old != nil && old.Equal(&s) {
			continue
		}
		for _, was := range s.Formerly { // it takes the place of those
			switch former := gone[was]; {
			case former == nil:
			case old == nil:
				old = former
			default:
				old.routed = old.routed.and(former.routed)
				if old.pause[0] == nil {
					old.pause = former.pause
				}
			}
		}
		if old == nil { // events are routed to it from the next number on
			old = &registeredSink{routed: routedWith{no + 1}, registeredAt: &now}
		} else if !slices.Equal(old.Match, s.Match) {
			match := jsonTexts(old.Match)
			old.before = [2]*string{&match, &now}
		}
		_, err := tx.exec(ctx, saveSinkSQL, b.config.Table, name, jsonTexts(s.Match), s.BatchSize, s.Hook, jsonTexts(s.Formerly), old.routed.json(), old.registeredAt,
			old.pause[0], old.pause[1], old.pause[2], old.before[0], old.before[1])
		if err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

func jsonTexts(texts []string) string {
	if texts == nil {
		return "[]"
	}
	text, _ := json.Marshal(texts) // strings never fail
	return string(text)
}

// moveBatches gives sinks and hooks the batches that have another name, or none.
func (b *Buffer) moveBatches(ctx context.Context, tx transaction) error {
	moves, err := b.movable(ctx, tx)
	if err != nil {
		return err
	}
	for _, m := range moves {
		if _, err := tx.exec(ctx, moveBatchesSQL, m.buffer, m.from, m.to); err != nil {
			return err
		}
	}
	return nil
}

// move is a name that batches have and no sink has any more, and the present one.
type move struct{ buffer, from, to string }

// movable returns the moves of batches that came back under a former name, or for the hook of a sink that has none.
func (b *Buffer) movable(ctx context.Context, tx transaction) ([]move, error) {
	table, hooks := b.config.Table, b.config.Table+queueSuffix
	rows, err := tx.rows(ctx, formerBatchesSQL, table)
	sinks, err := db.All(rows, err, func(rows *sql.Rows, m *move) error {
		m.buffer = table
		return rows.Scan(&m.from, &m.to)
	})
	if err != nil {
		return nil, err
	}
	rows, err = tx.rows(ctx, formerHooksSQL, table, hooks)
	letters, err := db.All(rows, err, func(rows *sql.Rows, m *move) error {
		m.buffer = hooks
		return rows.Scan(&m.from, &m.to)
	})
	return append(sinks, letters...), err
}

// ServeSinks implements buffer.SinkRegistry.
func (b *Buffer) ServeSinks(ctx context.Context) error {
	if b.config.Sinks == nil {
		return nil
	}
	if _, err := b.ready(ctx); err != nil {
		return err
	}
	err := b.serve(ctx)
	if errors.Is(err, errUnregistered) {
		return b.RegisterSinks(ctx)
	}
	return err
}

// serve reads the registry and notes that this process serves its sinks.
func (b *Buffer) serve(ctx context.Context) error {
	return b.write(ctx, "noting that sinks are served", func(tx transaction) error {
		known, err := b.readRoutes(ctx, tx)
		if err != nil {
			return err
		}
		var names []string
		for _, s := range b.config.Sinks {
			names = append(names, nameIn(known.current, s.Sink))
		}
		if _, err = tx.exec(ctx, serveSQL, b.config.Table, jsonTexts(names)); err != nil {
			return err
		}
		return b.fillLanes(ctx, tx) // of before the sinks kept order
	})
}

// serves reports whether this process serves a sink that it is configured with: the sink is not dropped, as far as is known.
func (b *Buffer) serves(ctx context.Context, sink string) (bool, error) {
	known, err := b.ready(ctx)
	if err != nil {
		return false, err
	}
	return !slices.Contains(known.dropped, nameIn(known.current, sink)), nil
}
