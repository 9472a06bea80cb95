package backlog

import (
	"cmp"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// What has a former name of a sink is the sink's: its dead letters keep the name under which they died, and a batch may come back under it. A
// batch that waits for a change of the registry is due at infinity.
const sinksSQL = `
WITH batches AS (
  SELECT sink, count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         count(*) FILTER (WHERE state <> 'leased' AND due_at <= clock_timestamp()) AS due,
         sum(greatest(events - cardinality(delivered), 0)) AS pending,
         min(oldest_at) FILTER (WHERE events > cardinality(delivered) AND isfinite(oldest_at)) AS oldest_at,
         min(due_at) FILTER (WHERE state = 'waiting' AND isfinite(due_at)) AS next_at,
         count(*) FILTER (WHERE ` + ledger.AnySuspectSQL + `) AS suspects,
         min(claimed_at) FILTER (WHERE ` + ledger.AnySuspectSQL + `) AS oldest_suspect
  FROM outbox_batches WHERE buffer = $1 GROUP BY sink
), letters AS (
  SELECT sink, count(*) AS dead, count(*) FILTER (WHERE notified_at IS NULL) AS unnotified
  FROM outbox_dead_letters WHERE pipeline = $2 AND closed_at IS NULL GROUP BY sink
), registered AS (
  SELECT sink, formerly, dropped_at FROM outbox_sinks WHERE buffer = $1
), found AS (
  SELECT sink FROM registered UNION SELECT sink FROM batches UNION SELECT sink FROM letters
), names AS (
  SELECT f.sink, coalesce((
    SELECT r.sink FROM registered r WHERE f.sink IN (SELECT unnest(r.sink || r.formerly)) ORDER BY r.dropped_at IS NOT NULL, r.sink <> f.sink LIMIT 1), f.sink) AS name
  FROM found f
)
SELECT name, coalesce(sum(leased), 0)::bigint, coalesce(sum(waiting), 0)::bigint, coalesce(sum(delivered), 0)::bigint, coalesce(sum(due), 0)::bigint,
       coalesce(sum(pending), 0)::bigint,
       (extract(epoch FROM clock_timestamp() - min(oldest_at)) * 1000000)::bigint,
       coalesce(extract(epoch FROM min(next_at) - clock_timestamp()) * 1000000, 0)::bigint,
       coalesce(sum(suspects), 0)::bigint, coalesce(extract(epoch FROM clock_timestamp() - min(oldest_suspect)) * 1000000, 0)::bigint,
       coalesce(sum(dead), 0)::bigint, coalesce(sum(unnotified), 0)::bigint,
       EXISTS (SELECT FROM registered r WHERE r.sink = name AND r.dropped_at IS NOT NULL),
       array_agg(sink) || coalesce((SELECT r.formerly FROM registered r WHERE r.sink = name), '{}')
FROM names LEFT JOIN batches USING (sink) LEFT JOIN letters USING (sink)
GROUP BY name`

// sinksStep reads the status of each sink; at has the indexes of the configured ones in s, and gets those of others.
func (b *Backlog) sinksStep(t *ledger.Tables, s *buffer.Status, at map[string]int) pg.Step {
	micros := func(v []byte) time.Duration { return max(0, time.Duration(pg.ReadInt8(v))*time.Microsecond) }
	return pg.Step{SQL: t.SQL(sinksSQL), Args: []string{t.Buffer, b.base.Pipeline}, Row: func(v [][]byte) error {
		n := func(i int) int64 { return pg.ReadInt8(v[i]) }
		one := buffer.SinkStatus{
			Name: string(v[0]), Leased: n(1), Waiting: n(2), Delivered: n(3), Due: n(4), Pending: n(5), Next: micros(v[7]),
			Suspects: n(8), OldestSuspect: micros(v[9]), Dead: n(10), Unnotified: n(11),
			Dropped: pg.ReadBool(v[12]),
		}
		one.OldestPending, one.AgeUnknown = t.Age(v[6], one.Pending)
		names := []string{one.Name}
		pg.ReadArray(v[13], func(name []byte) { names = append(names, string(name)) })
		s.Sinks = routing.PlaceStatus(s.Sinks, at, one, names)
		return nil
	}}
}

// freshEvents are the unclaimed events. due are those of them that were delayed and that the floor has passed.
type freshEvents struct {
	events     int64
	due        int64
	oldest     time.Duration
	ageUnknown bool
}

// completeSinks puts what is not routed yet, with the unclaimed events, at the end, behind what was found without being configured.
func completeSinks(s *buffer.Status, configured int, fresh freshEvents) {
	unrouted := buffer.SinkStatus{Name: buffer.Unrouted}
	if i := slices.IndexFunc(s.Sinks, func(one buffer.SinkStatus) bool { return one.Name == buffer.Unrouted }); i >= 0 {
		unrouted = s.Sinks[i]
		s.Sinks = slices.Delete(s.Sinks, i, i+1)
	}
	slices.SortFunc(s.Sinks[configured:], func(a, b buffer.SinkStatus) int { return cmp.Compare(a.Name, b.Name) })
	unrouted.Pending += fresh.events
	unrouted.OldestPending = max(unrouted.OldestPending, fresh.oldest)
	unrouted.AgeUnknown = unrouted.OldestPending == 0 && (unrouted.AgeUnknown || fresh.ageUnknown)
	s.Sinks = append(s.Sinks, unrouted)
}
