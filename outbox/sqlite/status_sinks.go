package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// The status of a buffer with several sinks. An event is in a row of each sink that does not have it, so the pending events are those
// that any row has. Rows that may share events have the same claim_id: only the members of those are compared.
const (
	pendingRowsSQL = `
SELECT coalesce(claim_id, ''), events - json_array_length(delivered), coalesce(members, '[]'), delivered
FROM outbox_batches WHERE buffer = ?1 AND events > json_array_length(delivered)`

	// What has a former name of a sink is the sink's: its dead letters keep the name under which they died, and a batch may come back under it. A
	// batch that waits for a change of the registry is never due.
	sinksStatusSQL = `
WITH batches AS (
  SELECT sink, count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         count(*) FILTER (WHERE state <> 'leased' AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) AS due,
         sum(max(events - json_array_length(delivered), 0)) AS pending,
         min(oldest_at) FILTER (WHERE events > json_array_length(delivered)) AS oldest_at,
         min(due_at) FILTER (WHERE state = 'waiting' AND due_at < ` + never + `) AS next_at,
         count(*) FILTER (WHERE ` + anySuspectSQL + `) AS suspects,
         min(claimed_at) FILTER (WHERE ` + anySuspectSQL + `) AS oldest_suspect
  FROM outbox_batches WHERE buffer = ?1 GROUP BY sink
), letters AS (
  SELECT sink, count(*) AS dead, count(*) FILTER (WHERE notified_at IS NULL) AS unnotified
  FROM outbox_dead_letters WHERE pipeline = ?2 AND closed_at IS NULL GROUP BY sink
), registered AS (
  SELECT sink, formerly, dropped_at FROM outbox_sinks WHERE buffer = ?1
), found AS (
  SELECT sink FROM registered UNION SELECT sink FROM batches UNION SELECT sink FROM letters
), names AS (
  SELECT f.sink, coalesce((
    SELECT r.sink FROM registered AS r WHERE r.sink = f.sink OR f.sink IN (SELECT value FROM json_each(r.formerly))
    ORDER BY r.dropped_at IS NOT NULL, r.sink <> f.sink LIMIT 1), f.sink) AS name
  FROM found AS f
)
SELECT name, coalesce(sum(leased), 0), coalesce(sum(waiting), 0), coalesce(sum(delivered), 0), coalesce(sum(due), 0), coalesce(sum(pending), 0),
       (julianday('now') - julianday(min(oldest_at))) * 86400, coalesce((julianday(min(next_at)) - julianday('now')) * 86400, 0.0),
       coalesce(sum(suspects), 0), coalesce((julianday('now') - julianday(min(oldest_suspect))) * 86400, 0.0), coalesce(sum(dead), 0), coalesce(sum(unnotified), 0),
       EXISTS (SELECT 1 FROM registered AS r WHERE r.sink = name AND r.dropped_at IS NOT NULL),
       json_group_array(sink), coalesce((SELECT r.formerly FROM registered AS r WHERE r.sink = name), '[]')
FROM names LEFT JOIN batches USING (sink) LEFT JOIN letters USING (sink)
GROUP BY name`

	sinkWaitsSQL = `
SELECT sink, error, batches, events, first, last, early FROM (
  SELECT sink, coalesce(error, '') AS error, count(*) AS batches, sum(events) AS events,
         (julianday(min(due_at)) - julianday('now')) * 86400 AS first, (julianday(max(due_at)) - julianday('now')) * 86400 AS last,
         min(address IS NOT NULL) AS early,
         row_number() OVER (PARTITION BY sink ORDER BY count(*) DESC, min(due_at)) AS n
  FROM outbox_batches
  WHERE buffer = ?1 AND due_at < ` + never + ` AND (state = 'waiting' OR state = 'delivered' AND error IS NOT NULL)
  GROUP BY sink, error
) WHERE n <= ?2 ORDER BY sink, n`
)

// seconds is a number of seconds as a time; never negative.
func seconds(n float64) time.Duration { return max(0, time.Duration(n*float64(time.Second))) }

// sinksStatus completes a status by that of each sink. fresh is the unclaimed events, oldest the age of the oldest.
func (b *Buffer) sinksStatus(ctx context.Context, tx transaction, s *buffer.Status, fresh int64, oldest sql.NullFloat64) error {
	routed, err := b.pendingRouted(ctx, tx)
	if err != nil {
		return err
	}
	s.Pending = fresh + routed
	at := map[string]int{} // by present, former and configured name
	_, noAges := tx.age(sql.NullFloat64{}, 0)
	for _, r := range append(slices.Clone(b.config.Sinks), buffer.Route{Sink: buffer.Unrouted}) {
		at[r.Sink] = len(s.Sinks)
		s.Sinks = append(s.Sinks, buffer.SinkStatus{Name: r.Sink, AgeUnknown: noAges})
	}
	rows, err := tx.rows(ctx, sinksStatusSQL, b.config.Table, b.config.Pipeline)
	type found struct {
		buffer.SinkStatus
		names []string
	}
	all, err := db.All(rows, err, func(rows *sql.Rows, one *found) error {
		var (
			next, suspect   float64
			oldest          sql.NullFloat64
			names, formerly string
			former          []string
		)
		err := rows.Scan(&one.Name, &one.Leased, &one.Waiting, &one.Delivered, &one.Due, &one.Pending, &oldest, &next, &one.Suspects, &suspect,
			&one.Dead, &one.Unnotified, &one.Dropped, &names, &formerly)
		one.OldestPending, one.AgeUnknown = tx.age(oldest, one.Pending)
		one.Next, one.OldestSuspect = seconds(next), seconds(suspect)
		err = errors.Join(err, json.Unmarshal([]byte(names), &one.names), json.Unmarshal([]byte(formerly), &former))
		one.names = slices.Concat([]string{one.Name}, one.names, former)
		return err
	})
	if err != nil {
		return err
	}
	for _, one := range all {
		s.Sinks = routing.PlaceStatus(s.Sinks, at, one.SinkStatus, one.names)
	}
	rows, err = tx.rows(ctx, sinkWaitsSQL, b.config.Table, buffer.MaxWaits)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			name        string
			one         buffer.Wait
			first, last float64
		)
		if err := rows.Scan(&name, &one.Error, &one.Batches, &one.Events, &first, &last, &one.Early); err != nil {
			return err
		}
		one.First, one.Last = time.Duration(first*float64(time.Second)), time.Duration(last*float64(time.Second))
		if of := &s.Sinks[at[name]]; len(of.Waits) < buffer.MaxWaits {
			of.Waits = append(of.Waits, one)
		}
	}
	unrouted := s.Sinks[at[buffer.Unrouted]]
	unrouted.Pending += fresh
	age, unknown := tx.age(oldest, fresh)
	unrouted.OldestPending = max(unrouted.OldestPending, age)
	unrouted.AgeUnknown = unrouted.OldestPending == 0 && (unrouted.AgeUnknown || unknown)
	s.Sinks = slices.Delete(s.Sinks, at[buffer.Unrouted], at[buffer.Unrouted]+1)
	slices.SortFunc(s.Sinks[len(b.config.Sinks):], func(a, b buffer.SinkStatus) int { return cmp.Compare(a.Name, b.Name) })
	s.Sinks = append(s.Sinks, unrouted)
	return rows.Err()
}

// pendingRouted counts the events that any batch has and has not delivered.
func (b *Buffer) pendingRouted(ctx context.Context, tx transaction) (pending int64, err error) {
	type row struct {
		claim              string
		events             int64
		members, delivered string
	}
	rows, err := tx.rows(ctx, pendingRowsSQL, b.config.Table)
	all, err := db.All(rows, err, func(rows *sql.Rows, r *row) error { return rows.Scan(&r.claim, &r.events, &r.members, &r.delivered) })
	if err != nil {
		return 0, err
	}
	claims := map[string][]row{}
	for _, r := range all {
		if r.claim == "" {
			pending += r.events
			continue
		}
		claims[r.claim] = append(claims[r.claim], r)
	}
	for _, shared := range claims {
		if len(shared) == 1 {
			pending += shared[0].events
			continue
		}
		sets := make([]idset.Set, len(shared))
		for i, r := range shared {
			sets[i], _ = idset.ParseJSON(r.members) // unreadable ones hold nothing; see free
			if r.delivered != "[]" {
				var delivered []int64
				if err := json.Unmarshal([]byte(r.delivered), &delivered); err != nil {
					return 0, err
				}
				sets[i] = idset.Of(idset.Without(sets[i].IDs(), idset.Of(delivered)))
			}
		}
		pending += idset.Union(sets...).Len()
	}
	return pending, nil
}
