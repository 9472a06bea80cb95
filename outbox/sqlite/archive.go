package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

var _ buffer.Archiver = (*Buffer)(nil)

const (
	archiveNowSQL = `
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')`

	// A page of the archive, in the order in which it was filled. An event is put back for its last row. Another one may have had its id.
	// The archive also has events with dead letters: what was dead at one of several sinks, or at a replay, and what no sink took. relay dead replay sends those, so the replay of
	// the archive, to the sink ?8 or to all, leaves out an event with an open one there, and what no sink got and was discarded: such a row has no routes_no.
	archivePageSQL = `
SELECT rowid, id, group_id, substr(topic, 1, 4096), archived_at, octet_length(payload) + coalesce(octet_length(headers), 0) + coalesce(octet_length(key), 0),
       EXISTS (SELECT 1 FROM outbox_events AS e WHERE e.id = p.id),
       EXISTS (
         SELECT 1 FROM outbox_dead_letters AS d
         WHERE d.pipeline = ?7 AND d.event_id = p.id AND d.created_at = p.created_at
           AND iif(d.closed_at IS NULL,
                   ?8 = '' OR d.sink IN ('*', 'default', ?8)
                     OR d.sink IN (SELECT was.value FROM outbox_sinks AS s, json_each(s.formerly) AS was WHERE s.buffer = ?9 AND s.sink = ?8),
                   d.sink = '*' AND d.closed_as = 'discarded' AND p.routes_no IS NULL)),
       coalesce((SELECT max(o.archived_at) FROM outbox_archive AS o
                 WHERE o.id = p.id AND o.created_at = p.created_at AND (o.archived_at, o.group_id) > (p.archived_at, p.group_id)), '')
FROM outbox_archive AS p
WHERE archived_at >= max(?1, ?3) AND archived_at < ?2 AND (archived_at, id, group_id) > (?3, ?4, ?5)
ORDER BY archived_at, id, group_id LIMIT ?6`

	// See putBackSQL for the time.
	putArchivedSQL = `
INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id)
SELECT id, topic, key, payload, headers, coalesce(
         strftime('%Y-%m-%dT%H:%M:%fZ', created_at),
         strftime('%Y-%m-%dT%H:%M:%fZ', substr(created_at, 1, 10), substr(created_at, 12, 2) || ' hours', substr(created_at, 15, 2) || ' minutes', substr(created_at, 18, 6) || ' seconds')), ?1
FROM outbox_archive WHERE rowid IN (SELECT value FROM json_each(?2))`
)

// archivePage is how many rows of the archive a transaction reads: it keeps the application from writing.
const archivePage = 1000

// archivedEvent is a row of a page.
type archivedEvent struct {
	row, id   int64
	group     uuid.UUID
	topic, at string
	bytes     int
	waits     bool
	dead      bool   // see archivePageSQL
	later     string // when the event was archived again, or ""
}

// archiveReplay is a replay of the archive.
type archiveReplay struct {
	b            *Buffer
	filter       buffer.ArchiveFilter
	since, until string
	dry          bool
}

// ReplayArchived implements buffer.Archiver.
func (b *Buffer) ReplayArchived(ctx context.Context, f buffer.ArchiveFilter, dry bool, progress func(buffer.Replayed)) (all buffer.Replayed, err error) {
	switch {
	case b.config.Archive == "":
		return all, buffer.ErrNoArchive
	case b.config.Custom.Is():
		return all, buffer.ErrArchiveRows
	}
	r := &archiveReplay{b, f, roundedUp(f.Since), roundedUp(f.Until), dry}
	var now string
	if err := b.read(ctx, "reading the time", func(tx transaction) error { return tx.row(ctx, archiveNowSQL).Scan(&now) }); err != nil {
		return all, err
	}
	if f.Until.IsZero() || r.until > now { // the end of this millisecond: what is put back is archived again, later than that
		began, err := db.ParseTime(now)
		if err != nil {
			return all, err
		}
		r.until = roundedUp(began.Add(time.Millisecond))
		select {
		case <-ctx.Done():
			return all, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	if all.Until, err = db.ParseTime(r.until); err != nil {
		return all, err
	}
	after := archivedEvent{id: math.MinInt64}
	for {
		more, next, err := r.page(ctx, after)
		if err != nil || next == nil {
			return all, err
		}
		all.Events += more.Events
		all.Waiting += more.Waiting
		all.Repeated += more.Repeated
		all.Dead += more.Dead
		if progress != nil {
			progress(all)
		}
		if err := ctx.Err(); err != nil {
			return all, err
		}
		after = *next
	}
}

// roundedUp returns a time as the table has it: to milliseconds, and not earlier.
func roundedUp(at time.Time) string {
	if ms := at.Truncate(time.Millisecond); ms.Before(at) {
		at = ms.Add(time.Millisecond)
	}
	return at.UTC().Format(db.TimeFormat)
}

// page puts back what the page after a row has. next is its last row; nil: there is none.
func (r *archiveReplay) page(ctx context.Context, after archivedEvent) (more buffer.Replayed, next *archivedEvent, err error) {
	run := r.b.write
	if r.dry {
		run = r.b.read
	}
	err = run(ctx, "replaying the archive", func(tx transaction) error {
		takes, err := r.takes(ctx, tx)
		if err != nil {
			return err
		}
		limit := archivePage
		if r.filter.PageSize > 0 {
			limit = min(limit, r.filter.PageSize)
		}
		rows, err := tx.rows(ctx, archivePageSQL, r.since, r.until, after.at, after.id, after.group.String(), limit, r.b.config.Pipeline, r.filter.Sink, r.b.config.Table)
		page, err := db.All(rows, err, func(rows *sql.Rows, e *archivedEvent) error {
			return rows.Scan(&e.row, &e.id, &e.group, &e.topic, &e.at, &e.bytes, &e.waits, &e.dead, &e.later)
		})
		if err != nil || len(page) == 0 {
			return err
		}
		var chosen []archivedEvent
		more, next = buffer.Replayed{}, nil
		for size, i := 0, 0; i < len(page); i++ {
			e := &page[i]
			if size += e.bytes; size > buffer.MaxBytes && next != nil {
				break
			}
			next = e
			switch {
			case !r.filter.Topics.Match(e.topic) || !takes.Match(e.topic):
			case e.later >= r.until:
				more.Repeated++
			case e.later != "":
			case e.waits:
				more.Waiting++
			case e.dead:
				more.Dead++
			default:
				chosen = append(chosen, *e)
			}
		}
		slices.SortFunc(chosen, func(a, b archivedEvent) int { return cmp.Compare(a.id, b.id) })
		chosen = slices.CompactFunc(chosen, func(a, b archivedEvent) bool { return a.id == b.id })
		more.Events = int64(len(chosen))
		if r.dry || len(chosen) == 0 {
			return nil
		}
		return r.putBack(ctx, tx, chosen)
	})
	return more, next, err
}

// takes returns the topics of the sink; all if there is none in the filter.
func (r *archiveReplay) takes(ctx context.Context, tx transaction) (buffer.Patterns, error) {
	if r.filter.Sink == "" {
		return nil, nil
	}
	to, err := (&fill{b: r.b, sink: r.filter.Sink}).to(ctx, tx)
	if err != nil {
		return nil, err
	}
	return to.topics, nil
}

// putBack inserts events in batches: for one of several sinks, to be routed, or for the single sink.
func (r *archiveReplay) putBack(ctx context.Context, tx transaction, events []archivedEvent) error {
	claim := buffer.NewGroupID()
	for some := range slices.Chunk(events, r.filter.BatchSize) {
		rows, ids := make([]int64, len(some)), make([]int64, len(some))
		for i, e := range some {
			rows[i], ids[i] = e.row, e.id
		}
		var err error
		switch group := buffer.NewGroupID(); {
		case r.filter.Sink != "":
			if err = r.b.putArchived(ctx, tx, claim.String(), rows); err == nil {
				_, err = tx.exec(ctx, openJoinedSQL, group.String(), r.b.config.Table, claimmode.Stamp, r.b.config.Owner, idset.Of(ids).JSON(), nil, r.filter.Sink, idset.JSONIDs(ids), claim.String())
			}
		case r.b.config.Sinks != nil:
			if err = r.b.putArchived(ctx, tx, group.String(), rows); err == nil {
				_, err = tx.exec(ctx, openJoinedSQL, group.String(), r.b.config.Table, claimmode.Stamp, r.b.config.Owner, nil, nil, buffer.Unrouted, idset.JSONIDs(ids), nil)
			}
		default:
			err = r.forSingleSink(ctx, tx, group, rows, ids)
		}
		if err != nil {
			return err
		}
	}
	return r.b.fillLanes(ctx, tx)
}

func (r *archiveReplay) forSingleSink(ctx context.Context, tx transaction, group uuid.UUID, rows, ids []int64) error {
	claim, which, err := r.b.extentOfReplay(ctx, tx, group, ids)
	if err != nil {
		return err
	}
	if err := r.b.putArchived(ctx, tx, which.stamp, rows); err != nil {
		return err
	}
	_, err = r.b.openBatch(ctx, tx, group, claim, which)
	return err
}

// putArchived inserts rows of the archive under a stamp, which may be nil.
func (b *Buffer) putArchived(ctx context.Context, tx transaction, stamp any, rows []int64) error {
	put, err := tx.exec(ctx, putArchivedSQL, stamp, idset.JSONIDs(rows))
	if err == nil && put != int64(len(rows)) {
		err = fmt.Errorf("%d of %d events were not put back: a trigger on INSERT of table %s drops them", int64(len(rows))-put, len(rows), b.config.Table)
	}
	return err
}
