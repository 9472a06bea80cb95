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

// sinksSQL is the status of each sink ($6 is the pipeline), and what the registry says of it. What has a former name of a sink is the sink's: its dead letters keep
// the name under which they died, and a batch may come back under it. A batch that waits for a change of the registry is due at infinity.
const sinksSQL = `(
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
  FROM outbox_dead_letters WHERE pipeline = $6 AND closed_at IS NULL GROUP BY sink
), registered AS (
  SELECT sink, formerly, seen_at, dropped_at FROM outbox_sinks WHERE buffer = $1
), found AS (
  SELECT sink FROM registered UNION SELECT sink FROM batches UNION SELECT sink FROM letters
), names AS (
  SELECT f.sink, coalesce((
    SELECT r.sink FROM registered r WHERE f.sink IN (SELECT unnest(r.sink || r.formerly)) ORDER BY r.dropped_at IS NOT NULL, r.sink <> f.sink LIMIT 1), f.sink) AS name
  FROM found f
), sinks AS (
  SELECT name, array_agg(sink) AS names, min(oldest_at) AS oldest_at, min(next_at) AS next_at, min(oldest_suspect) AS oldest_suspect,
         ARRAY[coalesce(sum(leased), 0), coalesce(sum(waiting), 0), coalesce(sum(delivered), 0), coalesce(sum(due), 0), coalesce(sum(pending), 0),
               coalesce(sum(suspects), 0), coalesce(sum(dead), 0), coalesce(sum(unnotified), 0)]::bigint[] AS counts
  FROM names LEFT JOIN batches USING (sink) LEFT JOIN letters USING (sink) GROUP BY name
)
SELECT 'sink', row_number() OVER (ORDER BY s.name), s.name, '', '', '', '', '', '', '', r.sink IS NOT NULL, false,
       (extract(epoch FROM clock_timestamp() - s.oldest_at) * 1000000)::bigint,
       coalesce(extract(epoch FROM s.next_at - clock_timestamp()) * 1000000, 0)::bigint,
       coalesce(extract(epoch FROM clock_timestamp() - s.oldest_suspect) * 1000000, 0)::bigint,
       coalesce(extract(epoch FROM clock_timestamp() - r.seen_at) * 1000000, 0)::bigint, 0, 0, 0,
       r.seen_at, r.dropped_at, s.counts, s.names || coalesce(r.formerly, '{}')
FROM sinks s LEFT JOIN registered r ON r.sink = s.name)`

// addSink adds a row of sinksSQL. at has the indexes of the configured sinks in s, and gets those of others.
func (b *Backlog) addSink(t *ledger.Tables, s *buffer.Status, at map[string]int, v [][]byte) {
	micros := func(v []byte) time.Duration { return max(0, time.Duration(pg.ReadInt8(v))*time.Microsecond) }
	var counts [8]int64
	n := 0
	pg.ReadArray(v[21], func(count []byte) {
		counts[n] = pg.ReadInt8(count)
		n++
	})
	one := buffer.SinkStatus{
		Name: string(v[2]), Leased: counts[0], Waiting: counts[1], Delivered: counts[2], Due: counts[3], Pending: counts[4], Next: micros(v[13]),
		Suspects: counts[5], OldestSuspect: micros(v[14]), Dead: counts[6], Unnotified: counts[7],
		Dropped: v[20] != nil,
	}
	one.OldestPending, one.AgeUnknown = t.Age(v[12], one.Pending)
	names := []string{one.Name}
	pg.ReadArray(v[22], func(name []byte) { names = append(names, string(name)) })
	registered := buffer.RegisteredSink{
		Name: one.Name, Registered: pg.ReadBool(v[10]), Batches: one.Leased + one.Waiting + one.Delivered, Events: one.Pending, Unseen: micros(v[15]),
		Configured: slices.ContainsFunc(b.base.Sinks, func(r buffer.Route) bool { return slices.Contains(names, r.Sink) }),
	}
	if v[19] != nil {
		registered.SeenAt = pg.ReadTime(v[19])
	}
	if v[20] != nil {
		registered.DroppedAt = pg.ReadTime(v[20])
	}
	if f, wrong := registered.Finding(); wrong && one.Name != buffer.Unrouted && (registered.Registered || registered.Batches > 0) {
		s.SinkFindings = append(s.SinkFindings, f)
	}
	s.Sinks = routing.PlaceStatus(s.Sinks, at, one, names)
}

// freshEvents are the unclaimed events. due are those of them that were delayed and that the floor has passed.
type freshEvents struct {
	events     int64
	due        int64
	oldest     time.Duration
	ageUnknown bool
}

// estimateDelayed estimates the delayed events, and those of them that are due, where they are too many to count. inIndex is how many the index of delayed events
// has, by its statistics.
func (f *freshEvents) estimateDelayed(s *buffer.Status, inIndex int64) {
	if s.Delayed > buffer.PendingExact {
		s.Delayed = max(s.Delayed, inIndex-f.due)
	}
	if f.due > buffer.PendingExact {
		f.events += max(0, inIndex-s.Delayed-f.due)
	}
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
