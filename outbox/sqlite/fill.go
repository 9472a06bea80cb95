package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
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

// A fill gives a sink events that were never routed to it. What a sink got is recorded by numbers: a batch has the routes_no with which it was routed, its
// parts have it too, and so have its events in the archive. outbox_sinks.routed are the numbers of a sink. An event lacks the sink if none of its
// records, the batches that hold it and its rows in the archive, has a number of the sink.
//
// A number stands for a set of sinks, for ever: a change of the registry is only about later numbers. So what was filled gets the number of
// exactly those sinks that had it before and the filled one. There may be none, because two sinks were added together: then the fill draws one, which no route uses.
// A fill that was killed is begun again.
//
// A settle reads what its batch shares from the row that it removes, so also a batch that is leased can be filled.

var _ buffer.SinkFiller = (*Buffer)(nil)

const (
	// The claims whose batches lack the sink, the oldest events first; a batch that shares no event is one by itself. A replayed batch has no routes_no: it
	// belongs to the sink that it was replayed to. One that is only to be deleted was delivered everywhere.
	fillClaimsSQL = `
SELECT coalesce(claim_id, group_id) FROM outbox_batches
WHERE buffer = ?1 AND sink <> '*' AND routes_no IS NOT NULL AND (SELECT count(*) FROM json_each(?2) WHERE value <= routes_no) % 2 = 0
  AND (claim_id IS NOT NULL OR state <> 'delivered')
GROUP BY 1 ORDER BY min(first_id)`

	fillHeldSQL = `
SELECT group_id, first_id, last_id, ` + holdingColumns + ` FROM outbox_batches WHERE claim_id = ?1
UNION ALL
SELECT group_id, first_id, last_id, ` + holdingColumns + ` FROM outbox_batches WHERE group_id = ?1 AND claim_id IS NULL`

	// ?1 to ?5 are an extent.
	fillEventsSQL = `
SELECT id, substr(topic, 1, 4096), created_at FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
  AND created_at >= ?6
ORDER BY id`

	// A batch that shared no event gets the claim_id that its events may carry.
	fillShareSQL = `
UPDATE outbox_batches SET claim_id = group_id, members = ?2 WHERE group_id = ?1 AND claim_id IS NULL`

	fillMarkSQL = `
UPDATE outbox_batches SET routes_no = ?2
WHERE claim_id = ?1 AND routes_no = ?3 AND sink <> '*'`

	setRoutedSQL = `
UPDATE outbox_sinks SET routed = ?3 WHERE buffer = ?1 AND sink = ?2`

	setRoutesNoSQL = `
UPDATE outbox_buffers SET routes_no = ?2 WHERE buffer = ?1`

	archivedRowsSQL = `
SELECT routes_no, archived_at FROM outbox_archive WHERE id = ?1 AND created_at = ?2`

	// A page of the archive, by its primary key. What a pipeline with a single sink has archived has no routes_no. An event with an open dead
	// letter that no sink took is archived, too, and a replay of it is matched against all sinks.
	fillPageSQL = `
SELECT rowid, id, group_id, substr(topic, 1, 4096), created_at,
       created_at >= ?4 AND CASE WHEN routes_no IS NULL THEN coalesce(archived_at < ?6, FALSE) ELSE (SELECT count(*) FROM json_each(?5) WHERE value <= routes_no) % 2 = 0 END
         AND NOT EXISTS (
           SELECT 1 FROM outbox_archive AS o
           WHERE o.id = p.id AND o.created_at = p.created_at AND (SELECT count(*) FROM json_each(?5) WHERE value <= o.routes_no) % 2 = 1)
         AND NOT EXISTS (SELECT 1 FROM outbox_events AS e WHERE e.id = p.id)
         AND NOT EXISTS (SELECT 1 FROM outbox_dead_letters AS d WHERE d.pipeline = ?7 AND d.event_id = p.id AND d.closed_at IS NULL AND d.sink IN ('*', 'default'))
FROM outbox_archive AS p
WHERE (id, group_id) > (?1, ?2) ORDER BY id, group_id LIMIT ?3`
)

const (
	fillPage   = 1000 // rows of the archive that a transaction reads
	fillClaims = 50   // claims that a transaction fills
)

// fill is a fill of one sink.
type fill struct {
	b        *Buffer
	sink     string
	since    string
	dry      bool
	progress func(buffer.Filled)
	filled   buffer.Filled
	seen     map[string]bool // claims, also those without an event for the sink, which lack it for ever
}

// filling is the sink as a transaction finds it, among all of the registry, and the present routes_no.
type filling struct {
	*registeredSink
	all    []registeredSink
	topics buffer.Patterns
	no     int64
}

// fillEvent is an event that the sink may lack.
type fillEvent struct {
	id, row          int64
	topic, createdAt string
	routesNo         int64 // of the batch that holds it
}

// FillSink implements buffer.SinkFiller.
func (b *Buffer) FillSink(ctx context.Context, sink string, since time.Time, dry bool, progress func(buffer.Filled)) (buffer.Filled, error) {
	if ms := since.Truncate(time.Millisecond); ms.Before(since) { // the table has no finer times
		since = ms.Add(time.Millisecond)
	}
	f := &fill{b: b, sink: sink, since: since.UTC().Format(db.TimeFormat), dry: dry, progress: progress, seen: map[string]bool{}}
	switch {
	case b.config.Custom.Is():
		return f.filled, fmt.Errorf("filling sink %s from a custom table: %w", sink, errors.ErrUnsupported)
	case b.config.Ordered:
		return f.filled, fmt.Errorf("filling sink %s of a pipeline with order: key: %w", sink, errors.ErrUnsupported)
	}
	// What is settled meanwhile is in the archive, which comes last.
	err := f.waiting(ctx)
	if err == nil && b.config.Archive != "" {
		if err = f.archived(ctx); err == nil { // another fill, or a replay, may have put events back before
			err = f.waiting(ctx)
		}
	}
	if missing, ok := errors.AsType[*buffer.NoSinkError](err); ok {
		return f.filled, missing
	}
	return f.filled, err
}

// within runs act in a transaction that sees the sink in the registry, and changes nothing if the fill only counts.
func (f *fill) within(ctx context.Context, doing string, act func(tx transaction, to *filling) error) error {
	run := f.b.write
	if f.dry {
		run = f.b.read
	}
	return run(ctx, doing, func(tx transaction) error {
		to, err := f.to(ctx, tx)
		if err != nil {
			return err
		}
		return act(tx, to)
	})
}

// to returns the sink; the error is a *buffer.NoSinkError if events are routed to none of that name.
func (f *fill) to(ctx context.Context, tx transaction) (*filling, error) {
	all, err := f.b.registeredSinks(ctx, tx)
	if err != nil {
		return nil, err
	}
	missing := &buffer.NoSinkError{Table: f.b.config.Table, Name: f.sink}
	for i := range all {
		if s := &all[i]; slices.Contains(s.Formerly, singleSink) { // number 0 is what the single sink was to get
			s.routed, s.registeredAt = s.routed.and(routedWith{0, 1}), nil
		}
	}
	for i := range all {
		s := &all[i]
		if s.Dropped {
			continue
		}
		if missing.Known = append(missing.Known, s.Sink); s.Sink != f.sink {
			continue
		}
		to := &filling{registeredSink: s, all: all}
		if to.topics, err = buffer.ParsePatterns(s.Match); err != nil {
			return nil, fmt.Errorf("table outbox_sinks: sink %s: %w", s.Sink, err)
		}
		return to, tx.row(ctx, routesNoSQL, f.b.config.Table).Scan(&to.no)
	}
	return nil, missing
}

// number returns the number of exactly those sinks that had events before and the filled one.
func (f *fill) number(ctx context.Context, tx transaction, to *filling, had func(*registeredSink) bool) (int64, error) {
	var numbers []int64
	want := make([]bool, len(to.all))
	for i := range to.all {
		s := &to.all[i]
		want[i] = s.Sink == to.Sink || had(s)
		numbers = append(numbers, s.routed...)
	}
	slices.Sort(numbers)
	for _, no := range slices.Backward(slices.Compact(numbers)) {
		stands := no >= 1 && no <= to.no
		for i := range to.all {
			stands = stands && to.all[i].routed.has(no) == want[i]
		}
		if stands {
			return no, nil
		}
	}
	drawn := to.no + 1
	for i := range to.all {
		s := &to.all[i]
		s.routed = s.routed.since(drawn, want[i]).since(drawn+1, s.routed.has(drawn))
		if _, err := tx.exec(ctx, setRoutedSQL, f.b.config.Table, s.Sink, s.routed.json()); err != nil {
			return 0, err
		}
	}
	to.no = drawn + 1
	_, err := tx.exec(ctx, setRoutesNoSQL, f.b.config.Table, to.no)
	return drawn, err
}

// done reports events that the sink got.
func (f *fill) done(waiting, archived int64) {
	f.filled.Waiting += waiting
	f.filled.Archived += archived
	if f.progress != nil {
		f.progress(f.filled)
	}
}

// waiting gives the sink the events that wait for others.
func (f *fill) waiting(ctx context.Context) error {
	for {
		var claims []string
		err := f.b.read(ctx, "looking for events that sink "+f.sink+" lacks", func(tx transaction) error {
			to, err := f.to(ctx, tx)
			if err != nil {
				return err
			}
			rows, err := tx.rows(ctx, fillClaimsSQL, f.b.config.Table, to.routed.json())
			claims, err = db.Column[string](rows, err)
			return err
		})
		if err != nil {
			return err
		}
		claims = slices.DeleteFunc(claims, func(claim string) bool { return f.seen[claim] })
		if len(claims) == 0 { // a batch that came back in parts meanwhile would be a claim of its own
			return nil
		}
		for some := range slices.Chunk(claims, fillClaims) {
			var sum int64
			err := f.within(ctx, "filling sink "+f.sink, func(tx transaction, to *filling) error {
				for _, claim := range some {
					n, err := f.claim(ctx, tx, to, claim)
					if err != nil {
						return err
					}
					sum += n
				}
				return nil
			})
			if err != nil {
				return err
			}
			for _, claim := range some {
				f.seen[claim] = true
			}
			f.done(sum, 0)
		}
	}
}

// held is a batch of a claim.
type held struct {
	batch buffer.Lease
	in    holding
}

// claim gives the sink the events of one claim that it lacks.
func (f *fill) claim(ctx context.Context, tx transaction, to *filling, claim string) (n int64, err error) {
	rows, err := tx.rows(ctx, fillHeldSQL, claim)
	all, err := db.All(rows, err, func(rows *sql.Rows, h *held) error {
		return rows.Scan(append([]any{&h.batch.GroupID, &h.batch.FirstID, &h.batch.LastID}, h.in.columns()...)...)
	})
	if err != nil {
		return 0, err
	}
	var (
		lacking []fillEvent
		has     []idset.Set
		in      *holding // of the latest batch that lacks the sink
		share   *held
	)
	for i := range all {
		h := &all[i]
		if h.in.sink == f.sink || h.in.routesNo != nil && to.routed.has(*h.in.routesNo) {
			members, err := h.members(ctx, f.b, tx)
			if err != nil {
				return 0, err
			}
			has = append(has, members)
			continue
		}
		if h.in.sink == buffer.Unrouted || h.in.routesNo == nil {
			continue
		}
		rows, err := tx.rows(ctx, fillEventsSQL, append(h.in.extent(&h.batch, nil).args(), f.since)...)
		events, err := db.All(rows, err, func(rows *sql.Rows, e *fillEvent) error {
			e.routesNo = *h.in.routesNo
			return rows.Scan(&e.id, &e.topic, &e.createdAt)
		})
		if err != nil {
			return 0, err
		}
		lacking = append(lacking, events...)
		if in == nil || h.in.newest != nil && (in.newest == nil || *h.in.newest > *in.newest) {
			in = &h.in
		}
		if h.in.claimID == nil {
			share = h
		}
	}
	slices.SortFunc(lacking, func(a, b fillEvent) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.routesNo, b.routesNo)) })
	lacking = slices.CompactFunc(lacking, func(a, b fillEvent) bool { return a.id == b.id })
	chosen := slices.DeleteFunc(lacking, func(e fillEvent) bool {
		return !to.topics.Match(e.topic) || slices.ContainsFunc(has, func(s idset.Set) bool { return s.Has(e.id) })
	})
	if f.dry || len(chosen) == 0 {
		return int64(len(chosen)), nil
	}
	if share != nil {
		members, err := share.members(ctx, f.b, tx)
		if err != nil {
			return 0, err
		}
		if _, err := tx.exec(ctx, fillShareSQL, claim, members.JSON()); err != nil {
			return 0, err
		}
	}
	for _, events := range byNumber(chosen) {
		routed := events[0].routesNo
		no, err := f.number(ctx, tx, to, func(s *registeredSink) bool { return s.routed.has(routed) })
		if err != nil {
			return 0, err
		}
		if err := f.give(ctx, tx, to, events, holding{claim: in.claim, newest: in.newest, claimID: &claim, routesNo: &no}); err != nil {
			return 0, err
		}
		if _, err = tx.exec(ctx, fillMarkSQL, claim, no, routed); err != nil {
			return 0, err
		}
	}
	return int64(len(chosen)), nil
}

// byNumber returns the events of each number, in the order of their first ones.
func byNumber(events []fillEvent) (groups [][]fillEvent) {
	places := map[int64]int{}
	for i := range events {
		no := events[i].routesNo
		place, known := places[no]
		if !known {
			place, groups = len(groups), append(groups, nil)
			places[no] = place
		}
		groups[place] = append(groups[place], events[i])
	}
	return groups
}

// members are the ids that the batch holds.
func (h *held) members(ctx context.Context, b *Buffer, tx transaction) (idset.Set, error) {
	if h.in.members != nil {
		members, _ := idset.ParseJSON(*h.in.members) // unreadable ones hold nothing; see free
		return members, nil
	}
	events, err := b.keysIn(ctx, tx, h.in.extent(&h.batch, nil))
	ids := make([]int64, len(events))
	for i := range events {
		ids[i] = events[i].id
	}
	return idset.Of(ids), err
}

// give writes batches of events for the sink.
func (f *fill) give(ctx context.Context, tx transaction, to *filling, events []fillEvent, in holding) error {
	for some := range slices.Chunk(events, to.BatchSize) {
		ids, oldest := make([]int64, len(some)), some[0].createdAt
		for i, e := range some {
			ids[i], oldest = e.id, min(oldest, e.createdAt)
		}
		_, err := tx.exec(ctx, deliverSQL, buffer.NewGroupID().String(), f.b.config.Table, in.claim, false, db.Seconds(0), f.b.config.Owner,
			len(ids), ids[0], ids[len(ids)-1], oldest, nil, "filled", idset.Of(ids).JSON(), in.newest, f.sink, *in.claimID, *in.routesNo, nil, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// archived gives the sink the events of the archive.
func (f *fill) archived(ctx context.Context) error {
	var (
		id    = int64(math.MinInt64)
		group = uuid.Nil.String()
		last  *int64 // that was chosen
	)
	for {
		var (
			rows   int
			chosen []fillEvent
		)
		err := f.within(ctx, "filling sink "+f.sink+" from the archive", func(tx transaction, to *filling) error {
			found, err := tx.rows(ctx, fillPageSQL, id, group, fillPage, f.since, to.routed.json(), to.registeredAt, f.b.config.Pipeline)
			page, err := db.All(found, err, func(found *sql.Rows, e *fillEvent) error {
				lacks := false
				if err := found.Scan(&e.row, &e.id, &group, &e.topic, &e.createdAt, &lacks); err != nil {
					return err
				}
				id = e.id
				if lacks && to.topics.Match(e.topic) && (last == nil || *last != e.id) {
					last, chosen = &e.id, append(chosen, *e)
				}
				return nil
			})
			rows = len(page)
			if err != nil || f.dry || len(chosen) == 0 {
				return err
			}
			return f.putBack(ctx, tx, to, chosen)
		})
		if err != nil {
			return err
		}
		f.done(0, int64(len(chosen)))
		if rows < fillPage {
			return nil
		}
	}
}

// record is what a row of the archive says of an event: with which number it was routed, if that is known, and when it was archived.
type record struct {
	routesNo *int64
	at       string
}

// archivedFor reports whether an event with these rows in the archive does not lack a sink.
func archivedFor(s *registeredSink, records []record) bool {
	lacks := false
	for _, r := range records {
		switch {
		case r.routesNo == nil:
			lacks = lacks || s.registeredAt != nil && r.at < *s.registeredAt
		case s.routed.has(*r.routesNo):
			return true
		default:
			lacks = true
		}
	}
	return !lacks
}

// putBack inserts events of the archive, with a claim for the sink alone. They take along which sinks do not lack them, as the archive says: its rows
// may be deleted before they return.
func (f *fill) putBack(ctx context.Context, tx transaction, to *filling, events []fillEvent) error {
	rows := make([]int64, len(events))
	for i, e := range events {
		rows[i] = e.row
	}
	claim := buffer.NewGroupID().String()
	if err := f.b.putArchived(ctx, tx, claim, rows); err != nil {
		return err
	}
	for i := range events {
		e := &events[i]
		found, err := tx.rows(ctx, archivedRowsSQL, e.id, e.createdAt)
		records, err := db.All(found, err, func(found *sql.Rows, r *record) error { return found.Scan(&r.routesNo, &r.at) })
		if err != nil {
			return err
		}
		if e.routesNo, err = f.number(ctx, tx, to, func(s *registeredSink) bool { return archivedFor(s, records) }); err != nil {
			return err
		}
	}
	for _, some := range byNumber(events) {
		if err := f.give(ctx, tx, to, some, holding{claim: claimmode.Stamp, claimID: &claim, routesNo: &some[0].routesNo}); err != nil {
			return err
		}
	}
	return nil
}
