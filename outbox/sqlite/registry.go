package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// A sink is dropped in one transaction that takes it out of the registry. Then its batches are ended one by one, as a settle with nothing
// sent: by the command, and again by the sweeps of every relay, because a batch that a relay had leased may be put back later. A batch
// of a sink that is not in the registry is never ended.

var _ buffer.SinkRegistry = (*Buffer)(nil)

// A pipeline that has a single sink again keeps the sinks that it had, which can be restored and dropped.
const listSinksSQL = `
WITH waiting AS (
  SELECT sink, count(*) AS batches, sum(max(events - json_array_length(delivered), 0)) AS events
  FROM outbox_batches WHERE buffer = ?1 AND sink <> '*' GROUP BY sink
), names AS (
  SELECT sink FROM outbox_sinks WHERE buffer = ?1 UNION SELECT sink FROM waiting
)
SELECT n.sink, s.sink IS NOT NULL, coalesce(s.match, '[]'), coalesce(s.formerly, '[]'), coalesce(w.batches, 0), coalesce(w.events, 0),
       s.seen_at, coalesce((julianday('now') - julianday(s.seen_at)) * 86400, 0.0), s.dropped_at, coalesce(s.dropped_as, ''),
       coalesce(s.match_before, '[]'), iif(s.match_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 day'), s.match_at, NULL)
FROM names AS n LEFT JOIN outbox_sinks AS s ON s.buffer = ?1 AND s.sink = n.sink LEFT JOIN waiting AS w ON w.sink = n.sink
WHERE (SELECT routed FROM outbox_buffers WHERE buffer = ?1) OR s.sink IS NOT NULL
ORDER BY n.sink`

// Sinks implements buffer.SinkRegistry.
func (b *Buffer) Sinks(ctx context.Context) (all []buffer.RegisteredSink, err error) {
	err = b.read(ctx, "reading the sinks", func(tx transaction) error {
		all, err = b.listSinks(ctx, tx)
		return err
	})
	return all, err
}

func (b *Buffer) listSinks(ctx context.Context, tx transaction) ([]buffer.RegisteredSink, error) {
	rows, err := tx.rows(ctx, listSinksSQL, b.config.Table)
	return db.All(rows, err, func(rows *sql.Rows, s *buffer.RegisteredSink) error {
		var (
			match, formerly, before string
			seen, dropped, changed  sql.NullString
			unseen                  float64
		)
		err := rows.Scan(&s.Name, &s.Registered, &match, &formerly, &s.Batches, &s.Events, &seen, &unseen, &dropped, &s.DroppedAs, &before, &changed)
		if err := errors.Join(err, json.Unmarshal([]byte(match), &s.Match), json.Unmarshal([]byte(formerly), &s.Formerly), json.Unmarshal([]byte(before), &s.MatchBefore)); err != nil {
			return err
		}
		s.Unseen = time.Duration(unseen * float64(time.Second))
		routing.Configure(s, b.config.Sinks)
		for _, t := range []struct {
			text sql.NullString
			at   *time.Time
		}{{seen, &s.SeenAt}, {dropped, &s.DroppedAt}, {changed, &s.MatchAt}} {
			if !t.text.Valid {
				continue
			}
			if *t.at, err = time.Parse(db.TimeFormat, t.text.String); err != nil {
				return fmt.Errorf("a time of sink %s: %w", s.Name, err)
			}
		}
		return nil
	})
}

// sinkFindings returns what is wrong with the registered sinks.
func (b *Buffer) sinkFindings(ctx context.Context, tx transaction) (findings []buffer.Finding, err error) {
	sinks, err := b.listSinks(ctx, tx)
	for i := range sinks {
		if f, wrong := sinks[i].Finding(); wrong {
			findings = append(findings, f)
		}
		if f, differs := sinks[i].MatchFinding(); differs {
			findings = append(findings, f)
		}
	}
	return findings, err
}

// A sink that has batches without being in the registry is added to it, as dropped.
const (
	dropSinkSQL = `
INSERT INTO outbox_sinks AS s (buffer, sink, batch_size, dropped_at, dropped_as, routed, registered_at)
VALUES (?1, ?2, 1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?4, ?3, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
ON CONFLICT (buffer, sink) DO UPDATE
SET dropped_at = coalesce(s.dropped_at, excluded.dropped_at), dropped_as = excluded.dropped_as, routed = excluded.routed`

	restoreSinkSQL = `
UPDATE outbox_sinks SET dropped_at = NULL, dropped_as = NULL, routed = ?3 WHERE buffer = ?1 AND sink = ?2`

	routedOfSQL = `
SELECT b.routes_no, coalesce(s.routed, '[]')
FROM outbox_buffers AS b LEFT JOIN outbox_sinks AS s ON s.buffer = b.buffer AND s.sink = ?2
WHERE b.buffer = ?1`
)

// DropSink implements buffer.SinkRegistry.
func (b *Buffer) DropSink(ctx context.Context, name string, as buffer.Dropped) error {
	return b.changeSink(ctx, name, func(*buffer.RegisteredSink) bool { return true }, false, dropSinkSQL, string(as))
}

// RestoreSink implements buffer.SinkRegistry.
func (b *Buffer) RestoreSink(ctx context.Context, name string) error {
	return b.changeSink(ctx, name, func(s *buffer.RegisteredSink) bool { return !s.DroppedAt.IsZero() }, true, restoreSinkSQL)
}

// changeSink runs a statement that changes a sink of the registry; routed says whether events are routed to it from the next number on. The error is
// a *buffer.NoSinkError if the sink is none of those that can be changed so.
func (b *Buffer) changeSink(ctx context.Context, name string, can func(*buffer.RegisteredSink) bool, routed bool, statement string, args ...any) error {
	missing := &buffer.NoSinkError{Table: b.config.Table, Name: name}
	err := b.write(ctx, "changing the sinks", func(tx transaction) error {
		all, err := b.listSinks(ctx, tx)
		if err != nil {
			return err
		}
		for i := range all {
			if can(&all[i]) {
				missing.Known = append(missing.Known, all[i].Name)
			}
		}
		if !slices.Contains(missing.Known, name) {
			return missing
		}
		var (
			no   int64
			text string
		)
		if err := tx.row(ctx, routedOfSQL, b.config.Table, name).Scan(&no, &text); err != nil {
			return err
		}
		with, err := parseRouted(text)
		if err != nil {
			return fmt.Errorf("table outbox_sinks: sink %s: %w", name, err)
		}
		if _, err := tx.exec(ctx, statement, append([]any{b.config.Table, name, with.since(no+1, routed).json()}, args...)...); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, countChangeSQL, b.config.Table, true); err != nil {
			return err
		}
		_, err = tx.exec(ctx, wakeKeptSQL, b.config.Table, true)
		return err
	})
	if missing, ok := errors.AsType[*buffer.NoSinkError](err); ok {
		return missing
	}
	return err
}

const endingSQL = `
SELECT sink, dropped_as FROM outbox_sinks AS s
WHERE buffer = ?1 AND dropped_at IS NOT NULL AND EXISTS (
  SELECT 1 FROM outbox_batches AS b
  WHERE b.buffer = ?1 AND b.sink = s.sink AND (b.state = 'waiting' OR b.due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))`

// A batch of a dropped sink that nobody has leased, due or not.
const takeOverEndingSQL = `
UPDATE outbox_batches
SET state = CASE state WHEN 'waiting' THEN 'leased' ELSE state END,
    lease_no = lease_no + 1, unfinished_leases = unfinished_leases + 1, owner = ?1,
    due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?2)
WHERE group_id = (
  SELECT group_id FROM outbox_batches
  WHERE buffer = ?3 AND sink = ?4 AND (state = 'waiting' OR due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    AND EXISTS (SELECT 1 FROM outbox_sinks WHERE buffer = ?3 AND sink = ?4 AND dropped_at IS NOT NULL)
  ORDER BY due_at LIMIT 1)` + takenSQL

// endLease is how long a batch of a dropped sink is leased to be ended.
const endLease = 30 * time.Second

// EndDropped implements buffer.SinkRegistry.
func (b *Buffer) EndDropped(ctx context.Context, limit int) (ended buffer.Ended, err error) {
	var (
		ending [][2]string
		moves  []move
	)
	err = b.read(ctx, "looking for dropped sinks", func(tx transaction) error {
		rows, err := tx.rows(ctx, endingSQL, b.config.Table)
		if ending, err = db.All(rows, err, func(rows *sql.Rows, e *[2]string) error { return rows.Scan(&e[0], &e[1]) }); err != nil {
			return err
		}
		moves, err = b.movable(ctx, tx)
		return err
	})
	if err == nil && len(moves) > 0 { // otherwise it is not worth waiting for the write lock
		err = b.write(ctx, "renaming batches", func(tx transaction) error { return b.moveBatches(ctx, tx) })
	}
	if err != nil {
		return ended, err
	}
	for _, sink := range ending {
		for ; limit > 0; limit-- {
			batch, err := b.takeOverEnding(ctx, sink[0], buffer.Dropped(sink[1]))
			if err != nil {
				return ended, err
			}
			if batch == nil {
				break
			}
			err = b.Settle(ctx, batch, routing.DroppedOutcomes(batch, sink[0], buffer.Dropped(sink[1])))
			switch {
			case errors.Is(err, buffer.ErrLeaseLost): // the next sweep tries again
				continue
			case err != nil:
				return ended, err
			}
			ended.Batches++
			ended.Events += int64(batch.Len() - len(batch.Delivered))
		}
	}
	return ended, nil
}

// takeOverEnding takes over a batch of a dropped sink, with the contents that its dead letters need.
func (b *Buffer) takeOverEnding(ctx context.Context, sink string, as buffer.Dropped) (*buffer.Lease, error) {
	l := ledger{b, b.config.Table, sink}
	batch, err := l.take(ctx, endLease, func(tx transaction) (*sql.Row, error) {
		return tx.row(ctx, takeOverEndingSQL, b.config.Owner, db.Seconds(endLease), b.config.Table, sink), nil
	})
	if err != nil || batch == nil {
		return nil, err
	}
	if err := l.load(ctx, batch, b.topicsLoader(ctx)); err != nil {
		return nil, err
	}
	if as == buffer.DroppedDead && b.config.Custom.Is() {
		delivered := batch.Delivered
		batch.Delivered = nil // the rest dies, and is projected for that
		b.events.project(ctx, batch, endLease/2)
		batch.Delivered = delivered
	}
	return batch, nil
}

// A pipeline that has a single sink again takes the table back when every sink is dropped and none of their batches is left. What was claimed
// and not routed is the single sink's. Nothing of that was sent, so no lease that was left unfinished is a death by its events.
const (
	unrouteSQL = `
UPDATE outbox_buffers SET routed = 0, routes_no = routes_no + 1
WHERE buffer = ?1 AND routed
  AND NOT EXISTS (SELECT 1 FROM outbox_sinks WHERE buffer = ?1 AND dropped_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE buffer = ?1 AND sink NOT IN ('*', 'default'))`

	unroutedSQL = `
UPDATE outbox_batches SET sink = 'default', unfinished_leases = 0, outages = 0, due_at = iif(due_at = ` + never + `, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), due_at)
WHERE buffer = ?1 AND sink = '*'`
)

// endAtOnce is how many batches of dropped sinks a claim ends.
const endAtOnce = 100

// unroute takes the table back for a single sink, if every sink of the registry is dropped.
func (b *Buffer) unroute(ctx context.Context) error {
	if _, err := b.EndDropped(ctx, endAtOnce); err != nil {
		return err
	}
	var left []string
	err := b.write(ctx, "taking the table back from several sinks", func(tx transaction) error {
		done, err := tx.exec(ctx, unrouteSQL, b.config.Table)
		if err != nil {
			return err
		}
		if done > 0 {
			if _, err := tx.exec(ctx, unroutedSQL, b.config.Table); err != nil {
				return err
			}
			_, err := tx.exec(ctx, removeSinkSQL, b.config.Table, singleSink)
			return err
		}
		sinks, err := b.listSinks(ctx, tx)
		for _, s := range sinks {
			if s.DroppedAt.IsZero() || s.Batches > 0 {
				left = append(left, s.Name)
			}
		}
		return err
	})
	if err != nil || left == nil { // or another relay has taken it back
		return err
	}
	return fmt.Errorf("%w: events of table %s are routed to several sinks (%s), and this pipeline has a single one. Configure sinks, or drop each of them: relay sinks drop %s -c relay.yaml",
		buffer.ErrNotReady, b.config.Table, strings.Join(left, ", "), left[0])
}
