package router

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Sink is the ledger of one sink of a buffer, with what an operator and a distributor ask of it.
type Sink struct {
	*ledger.Ledger
	routes *Routes
	base   *ledger.Base
	name   string
	due    *watermark.DueLine
}

// NewSink returns the ledger of a sink.
func NewSink(r *Routes, name string) *Sink {
	due := new(watermark.DueLine)
	return &Sink{Ledger: ledger.New(r.base, "", name, due.After), routes: r, base: r.base, name: name, due: due}
}

// Name is the sink's name in the configuration.
func (s *Sink) Name() string { return s.name }

// Serves reports whether the process serves the sink: see [Routes.Serves].
func (s *Sink) Serves(ctx context.Context, t *ledger.Tables) (bool, error) {
	return s.routes.Serves(ctx, t, s.name)
}

// pausedSQL reports whether the pipeline or the sink is paused. Another relay may have renamed the sink.
const pausedSQL = `(EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND paused_at IS NOT NULL)
        OR EXISTS (SELECT FROM outbox_sinks WHERE buffer = $1 AND (sink = $2 OR $2 = ANY (formerly)) AND paused_at IS NOT NULL))`

// Paused implements buffer.Pausable.
func (s *Sink) Paused(ctx context.Context) (paused bool, err error) {
	t, err := s.base.Ready(ctx)
	if err != nil {
		return false, err
	}
	err = s.base.DB.Transact(ctx, pg.ReadTx(s.base.DB.StatementTimeout), pg.Step{
		SQL: t.SQL("SELECT " + pausedSQL), Args: []string{t.Buffer, s.name},
		Row: func(v [][]byte) error {
			paused = pg.ReadBool(v[0])
			return nil
		},
	})
	return paused, s.base.Explain(ctx, "reading whether sink "+s.name+" is paused", err)
}

// No more batches are counted than are enough to know what to do: a sink that was away for days may have many. Behind these, what no worker has leased is among those
// that became due last.
const countSQL = `
SELECT clock.now, min(due_at),
       count(*) FILTER (WHERE due_at <= clock.now AND NOT ` + ledger.SuspectSQL + `),
       count(*) FILTER (WHERE due_at <= clock.now AND ` + ledger.SuspectSQL + `),
       count(*) FILTER (WHERE state = 'waiting'),
       count(*) FILTER (WHERE state = 'delivered'),
       ` + pausedSQL + `,
       CASE WHEN count(due_at) < 5000 THEN count(*) FILTER (WHERE due_at <= clock.now AND ` + ledger.UnsentSQL + `) ELSE (
         SELECT count(*) FROM (
           SELECT state, lease_no, origins FROM outbox_batches
           WHERE buffer = $1 AND sink = $2 AND due_at > $3::timestamptz AND due_at <= clock.now
           ORDER BY due_at DESC LIMIT 1000) last WHERE ` + ledger.UnsentSQL + `) END
FROM (SELECT clock_timestamp() AS now) clock
LEFT JOIN (
  SELECT due_at, state, unfinished_leases, lease_no, origins FROM outbox_batches
  WHERE buffer = $1 AND sink = $2 AND due_at > $3::timestamptz
  ORDER BY due_at LIMIT 5000
) first ON true
GROUP BY clock.now`

// countReadySQL counts due batches of a sink that keeps order by key. A batch that waits for another is not one.
const countReadySQL = ledger.ReadySQL + `
SELECT count(*) FILTER (WHERE ready AND NOT ` + ledger.SuspectSQL + `), count(*) FILTER (WHERE ready AND ` + ledger.SuspectSQL + `),
       count(*) FILTER (WHERE state = 'waiting' AND NOT unsent), coalesce(min(seq), -1),
       count(*) FILTER (WHERE ready AND unsent)
FROM (
  SELECT *, due_at <= (SELECT clock_timestamp()) AND n IN (SELECT n FROM ready) AS ready FROM ordered
  WHERE $2::text IS NULL AND $3::text IS NULL AND $4::text IS NULL AND $5::text IS NULL) b`

// countReady replaces the number of due batches, and that of waiting ones by those that were sent: those that wait for another
// batch do not wait for a retry.
func (s *Sink) countReady(ctx context.Context, t *ledger.Tables, backlog *buffer.Backlog) error {
	from, unsent := s.Seq().Next(time.Now()), backlog.Unsent > 0
	err := s.countWithin(ctx, t, from, backlog, ledger.Near)
	if err == nil && (backlog.Due+backlog.Suspects == 0 || unsent && backlog.Unsent == 0) { // retries may hold the first places
		err = s.countWithin(ctx, t, from, backlog, ledger.Far)
	}
	return err
}

func (s *Sink) countWithin(ctx context.Context, t *ledger.Tables, from int64, backlog *buffer.Backlog, within []string) error {
	args := []string{t.Buffer, pg.Null, pg.Null, pg.Null, pg.Null, s.routes.Current(s.name)}
	return s.base.DB.Transact(ctx, pg.ReadTx(s.base.DB.StatementTimeout, "enable_seqscan", "off", "enable_bitmapscan", "off", "enable_sort", "off"), pg.Step{
		SQL: t.SQL(countReadySQL), Args: append(append(args, within...), pg.Int(from)),
		Row: func(v [][]byte) error {
			backlog.Due, backlog.Suspects, backlog.Waiting = int(pg.ReadInt8(v[0])), int(pg.ReadInt8(v[1])), int(pg.ReadInt8(v[2]))
			s.Seq().Counted(pg.ReadInt8(v[3]))
			backlog.Unsent = int(pg.ReadInt8(v[4]))
			return nil
		},
	})
}

// CountBacklog implements buffer.Inspector.
func (s *Sink) CountBacklog(ctx context.Context, _ int) (backlog buffer.Backlog, err error) {
	t, err := s.base.Ready(ctx)
	if err != nil {
		return backlog, err
	}
	if serves, err := s.Serves(ctx, t); err != nil {
		return backlog, err
	} else if !serves { // a pause outlasts a drop that is taken back
		backlog.Paused, err = s.Paused(ctx)
		return backlog, err
	}
	err = s.base.DB.Transact(ctx, pg.ReadTx(s.base.DB.StatementTimeout, "enable_seqscan", "off"), pg.Step{
		SQL: t.SQL(countSQL), Args: []string{t.Buffer, s.routes.Current(s.name), pg.Timestamp(s.due.Next(time.Now()))},
		Row: func(v [][]byte) error {
			var oldest time.Time
			if v[1] != nil {
				oldest = pg.ReadTime(v[1])
			}
			s.due.Counted(pg.ReadTime(v[0]), oldest)
			n := func(i int) int { return int(pg.ReadInt8(v[i])) }
			backlog = buffer.Backlog{Due: n(2), Suspects: n(3), Waiting: n(4), Delivered: n(5), Paused: pg.ReadBool(v[6]), Unsent: n(7)}
			return nil
		},
	})
	if err == nil && backlog.Due+backlog.Suspects+backlog.Waiting > 0 && s.base.KeepsOrder(s.name) {
		err = s.countReady(ctx, t, &backlog)
	}
	return backlog, s.base.Explain(ctx, "counting batches", err)
}

const statusSQL = `
WITH names AS (
  SELECT $2::text AS sink UNION ALL SELECT unnest(formerly) FROM outbox_sinks WHERE buffer = $1 AND sink = $2
)
SELECT count(*) FILTER (WHERE state = 'leased'), count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'delivered'),
       coalesce(sum(greatest(events - cardinality(delivered), 0)), 0)::bigint,
       (extract(epoch FROM clock_timestamp() - min(oldest_at) FILTER (WHERE events > cardinality(delivered) AND isfinite(oldest_at))) * 1000000)::bigint,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $3 AND sink = ANY (ARRAY(SELECT sink FROM names)) AND closed_at IS NULL),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $3 AND sink = ANY (ARRAY(SELECT sink FROM names)) AND closed_at IS NULL AND notified_at IS NULL)
FROM outbox_batches WHERE buffer = $1 AND sink = $2`

// Status implements buffer.Inspector.
func (s *Sink) Status(ctx context.Context) (status buffer.Status, err error) {
	t, err := s.base.Ready(ctx)
	if err != nil {
		return status, err
	}
	err = s.base.DB.Transact(ctx, pg.ReadTx(s.base.DB.StatementTimeout, pg.PlanByPrimaryKey...), pg.Step{
		SQL: t.SQL(statusSQL), Args: []string{t.Buffer, s.routes.Current(s.name), s.base.Pipeline},
		Row: func(v [][]byte) error {
			n := func(i int) int64 { return pg.ReadInt8(v[i]) }
			status = buffer.Status{
				Leased: n(0), Waiting: n(1), Delivered: n(2), Pending: n(3), Dead: n(5), Unnotified: n(6),
			}
			status.OldestPending, status.AgeUnknown = t.Age(v[4], status.Pending)
			return nil
		},
	})
	return status, s.base.Explain(ctx, "reading the status of sink "+s.name, err)
}
