package router

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A sink is dropped in one transaction that takes it out of the registry. Then its batches are ended one by one, as a settle with nothing
// sent: by the command, and again by the sweeps of every relay, because a batch that a relay had leased may be put back later. A batch
// of a sink that is not in the registry is never ended.

// A pipeline that has a single sink again keeps the sinks that it had, which can be restored and dropped.
const listSQL = `
SELECT coalesce(s.sink, l.sink), s.sink IS NOT NULL, s.match, s.formerly, coalesce(l.batches, 0), coalesce(l.events, 0),
       s.seen_at, coalesce(extract(epoch FROM clock_timestamp() - s.seen_at) * 1000000, 0)::bigint, s.dropped_at, coalesce(s.dropped_as, ''),
       s.match_before, CASE WHEN s.match_at > clock_timestamp() - interval '1 day' THEN s.match_at END
FROM (SELECT * FROM outbox_sinks WHERE buffer = $1) s
FULL JOIN (
  SELECT sink, count(*) AS batches, sum(greatest(events - cardinality(delivered), 0))::bigint AS events
  FROM outbox_batches WHERE buffer = $1 AND sink <> '*' GROUP BY sink
) l ON l.sink = s.sink
WHERE (SELECT routed FROM outbox_buffers WHERE buffer = $1) OR s.sink IS NOT NULL
ORDER BY 1`

// Sinks lists the registry; see buffer.SinkRegistry.
func (r *Routes) Sinks(ctx context.Context, t *ledger.Tables) (all []buffer.RegisteredSink, err error) {
	begin := pg.ReadTx(r.base.DB.StatementTimeout)
	begin.Row = func([][]byte) error {
		all = nil
		return nil
	}
	err = r.base.DB.Transact(ctx, begin, pg.Step{SQL: t.SQL(listSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
		s := buffer.RegisteredSink{
			Name: string(v[0]), Registered: pg.ReadBool(v[1]), Batches: pg.ReadInt8(v[4]), Events: pg.ReadInt8(v[5]),
			Unseen: time.Duration(pg.ReadInt8(v[7])) * time.Microsecond, DroppedAs: buffer.Dropped(v[9]),
		}
		if s.Registered {
			s.Match, s.Formerly = texts(v[2]), texts(v[3])
		}
		routing.Configure(&s, r.base.Sinks)
		if v[6] != nil {
			s.SeenAt = pg.ReadTime(v[6])
		}
		if v[8] != nil {
			s.DroppedAt = pg.ReadTime(v[8])
		}
		if v[10] != nil && v[11] != nil {
			s.MatchBefore, s.MatchAt = texts(v[10]), pg.ReadTime(v[11])
		}
		all = append(all, s)
		return nil
	}})
	return all, r.base.Explain(ctx, "reading the sinks", err)
}

// Takes returns the topics that a sink takes. The error is a [*buffer.NoSinkError] if events are routed to none of that name.
func (r *Routes) Takes(ctx context.Context, t *ledger.Tables, sink string) (buffer.Patterns, error) {
	all, err := r.Sinks(ctx, t)
	if err != nil {
		return nil, err
	}
	missing := &buffer.NoSinkError{Table: t.Buffer, Name: sink}
	for _, s := range all {
		if !s.Registered || !s.DroppedAt.IsZero() {
			continue
		}
		missing.Known = append(missing.Known, s.Name)
		if s.Name == sink {
			topics, err := buffer.ParsePatterns(s.Match)
			if err != nil {
				return nil, fmt.Errorf("table outbox_sinks: sink %s: %w", sink, err)
			}
			return topics, nil
		}
	}
	return nil, missing
}

// A sink that has batches without being in the registry is added to it, as dropped.
const (
	dropSQL = `
INSERT INTO outbox_sinks AS s (buffer, sink, batch_size, dropped_at, dropped_as)
SELECT $1, $2, 1, clock_timestamp(), $3
WHERE EXISTS (SELECT FROM outbox_sinks WHERE buffer = $1 AND sink = $2)
   OR EXISTS (SELECT FROM outbox_batches WHERE buffer = $1 AND sink = $2)
ON CONFLICT (buffer, sink) DO UPDATE
SET dropped_at = coalesce(s.dropped_at, EXCLUDED.dropped_at), dropped_as = EXCLUDED.dropped_as,
    routed = s.routed - (SELECT int8multirange(int8range(routes_no + 1, NULL)) FROM outbox_buffers WHERE buffer = $1)
RETURNING set_config('relay.changed', '1', true)`

	restoreSQL = `
UPDATE outbox_sinks SET dropped_at = NULL, dropped_as = NULL,
       routed = routed + (SELECT int8multirange(int8range(routes_no + 1, NULL)) FROM outbox_buffers WHERE buffer = $1)
WHERE buffer = $1 AND sink = $2 AND dropped_at IS NOT NULL
RETURNING set_config('relay.changed', '1', true)`

	countDropSQL = `
UPDATE outbox_buffers SET routes_no = routes_no + 1
WHERE buffer = $1 AND current_setting('relay.changed', true) = '1'`
)

// Drop drops a sink; see buffer.SinkRegistry.
func (r *Routes) Drop(ctx context.Context, t *ledger.Tables, name string, as buffer.Dropped) error {
	return r.change(ctx, t, name, func(*buffer.RegisteredSink) bool { return true },
		pg.Step{SQL: t.SQL(dropSQL), Args: []string{t.Buffer, name, string(as)}})
}

// Restore takes a drop back.
func (r *Routes) Restore(ctx context.Context, t *ledger.Tables, name string) error {
	return r.change(ctx, t, name, func(s *buffer.RegisteredSink) bool { return !s.DroppedAt.IsZero() },
		pg.Step{SQL: t.SQL(restoreSQL), Args: []string{t.Buffer, name}})
}

// change runs a step that changes a sink of the registry. The error is a *buffer.NoSinkError if the sink is none of those that can be
// changed so.
func (r *Routes) change(ctx context.Context, t *ledger.Tables, name string, can func(*buffer.RegisteredSink) bool, step pg.Step) error {
	all, err := r.Sinks(ctx, t)
	if err != nil {
		return err
	}
	missing := &buffer.NoSinkError{Table: t.Buffer, Name: name}
	for i := range all {
		if can(&all[i]) {
			missing.Known = append(missing.Known, all[i].Name)
		}
	}
	if !slices.Contains(missing.Known, name) {
		return missing
	}
	err = r.base.DB.Transact(ctx, r.base.DB.WriteTx(r.base.DB.StatementTimeout, "synchronous_commit", "on"),
		pg.Step{SQL: t.SQL(lockBufferSQL), Args: []string{t.Buffer}}, step,
		pg.Step{SQL: t.SQL(countDropSQL), Args: []string{t.Buffer}}, pg.Step{SQL: t.SQL(wakeKeptSQL), Args: []string{t.Buffer, pg.Bool(false)}})
	return r.base.Explain(ctx, "changing the sinks", err)
}

const endingSQL = `
SELECT sink, dropped_as FROM outbox_sinks s
WHERE buffer = $1 AND dropped_at IS NOT NULL AND EXISTS (
  SELECT FROM outbox_batches b
  WHERE b.buffer = $1 AND b.sink = s.sink AND (b.state = 'waiting' OR b.due_at <= (SELECT clock_timestamp())))`

// Ending returns the dropped sinks that have batches to be ended, and how they were dropped.
func (r *Routes) Ending(ctx context.Context, t *ledger.Tables) (as map[string]buffer.Dropped, err error) {
	begin := pg.ReadTx(r.base.DB.StatementTimeout, "enable_seqscan", "off")
	begin.Row = func([][]byte) error {
		as = map[string]buffer.Dropped{}
		return nil
	}
	err = r.base.DB.Transact(ctx, begin, pg.Step{SQL: t.SQL(endingSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
		as[string(v[0])] = buffer.Dropped(v[1])
		return nil
	}})
	return as, r.base.Explain(ctx, "looking for dropped sinks", err)
}
