package deadletter

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// DeadLetters are a pipeline's dead letters. It implements buffer.DeadLetters.
type DeadLetters struct{ base *ledger.Base }

// New returns the dead letters of a pipeline.
func New(base *ledger.Base) *DeadLetters { return &DeadLetters{base} }

// matchSQL is a DeadFilter; its parameters are those of Match, $5 and $6 the latest and the earliest death, as an interval before now and as a time, $3 the topic, the sink, 'sinks' for SinkNotified, who closes them and why. The server plans with their values, so
// that a condition without a value costs nothing, and the index of open dead letters is used.
const matchSQL = `
  d.pipeline = $1
  AND ($2::bigint[] IS NULL AND $8::uuid[] IS NULL OR d.event_id = ANY ($2::bigint[]) OR $8::uuid[] IS NOT NULL AND d.event_uuid = ANY ($8::uuid[]))
  AND (($3::text[])[1] = '' OR d.topic = ($3::text[])[1])
  AND (($3::text[])[2] = '' OR d.sink = ($3::text[])[2]` + formerNamesSQL + `)
  AND ($4 = '' OR position(lower($4) IN lower(d.error)) > 0)
  AND (($5::text[])[1] IS NULL OR d.died_at <= (SELECT clock_timestamp()) - ($5::text[])[1]::interval)
  AND (($5::text[])[2] IS NULL OR d.died_at < ($5::text[])[2]::timestamptz)
  AND (($6::text[])[1] IS NULL OR d.died_at > (SELECT clock_timestamp()) - ($6::text[])[1]::interval)
  AND (($6::text[])[2] IS NULL OR d.died_at >= ($6::text[])[2]::timestamptz)
  AND (NOT $7::boolean OR d.notified_at IS NOT NULL` + noHookSQL + `)`

// formerNamesSQL finds the dead letters of a sink under its former names. A pipeline with a single sink needs no privilege on outbox_sinks.
const formerNamesSQL = ` OR d.sink IN (
    SELECT unnest(s.formerly) FROM outbox_sinks s JOIN outbox_buffers b ON b.buffer = s.buffer WHERE b.pipeline = $1 AND s.sink = ($3::text[])[2])`

// noHookSQL finds the dead letters of sinks without a hook of their own.
const noHookSQL = ` OR ($3::text[])[3] = 'sinks' AND d.sink NOT IN (
    SELECT unnest(s.sink || s.formerly) FROM outbox_sinks s JOIN outbox_buffers b ON b.buffer = s.buffer
    WHERE b.pipeline = $1 AND s.hook AND s.dropped_at IS NULL)`

// SQL fills the real names into a statement with matchSQL.
func (l *DeadLetters) SQL(t *ledger.Tables, statement string) string {
	if l.base.Sinks == nil {
		statement = strings.NewReplacer(formerNamesSQL, "", noHookSQL, "", presentNameSQL, "d.sink").Replace(statement)
	}
	return t.SQL(statement)
}

// Match returns the parameters of matchSQL, and more.
func (l *DeadLetters) Match(f buffer.DeadFilter, more ...string) []string {
	ids, uuids := pg.Null, pg.Null
	if f.UUIDs != nil {
		uuids = pg.UUIDArray(f.UUIDs)
	}
	if f.IDs != nil {
		ids = pg.IDArray(f.IDs)
	}
	var names pg.Array
	names.Append([]byte(pg.Text(f.Topic)))
	names.Append([]byte(pg.Text(f.Sink)))
	if f.SinkNotified && !f.Notified && l.base.Sinks != nil {
		names.Append([]byte("sinks"))
		f.Notified = true
	} else {
		names.Append([]byte{})
	}
	names.Append([]byte(l.base.DB.Text(f.ClosedBy)))
	names.Append([]byte(l.base.DB.Text(f.ClosedReason)))
	return append([]string{l.base.Pipeline, ids, names.String(), pg.Text(f.Error), bound(f.OlderThan, f.Before), bound(f.NewerThan, f.From), pg.Bool(f.Notified), uuids}, more...)
}

// bound is $5 or $6 of matchSQL.
func bound(ago time.Duration, at time.Time) string {
	var a pg.Array
	var interval, timestamp []byte
	if ago != 0 {
		interval = []byte(pg.Interval(ago))
	}
	if !at.IsZero() {
		timestamp = []byte(pg.Timestamp(at))
	}
	a.Append(interval)
	a.Append(timestamp)
	return a.String()
}

// presentNameSQL is the name of a dead letter's sink now. A dead letter keeps the name under which it died.
const presentNameSQL = `coalesce((
         SELECT s.sink FROM outbox_sinks s JOIN outbox_buffers b ON b.buffer = s.buffer
         WHERE b.pipeline = $1 AND d.sink IN (SELECT unnest(s.sink || s.formerly))
         ORDER BY s.dropped_at IS NOT NULL, s.sink <> d.sink LIMIT 1), d.sink)`

// columnsSQL are an event's columns and those that decoder.add reads after them, before the sink.
const columnsSQL = `d.event_id, d.topic, d.key, d.payload, d.headers, d.created_at,
       d.group_id, d.attempts, d.error, d.died_at, d.notified_at, d.closed_at, d.closed_as, d.closed_by, d.closed_reason, d.event_uuid`

const listSQL = `
SELECT ` + columnsSQL + `, ` + presentNameSQL + `, d.event_row, d.history
FROM outbox_dead_letters d
WHERE ` + matchSQL + `
  AND ($9::boolean OR d.closed_at IS NULL)
  AND ($10::bigint IS NULL OR (d.event_id, d.group_id) > ($10::bigint, $11::uuid))
ORDER BY d.event_id, d.group_id LIMIT $12::bigint`

// ListDead implements buffer.DeadLetters.
func (l *DeadLetters) ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]buffer.DeadEvent, error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	eventID, groupID := pg.Null, pg.Null
	if after != nil {
		eventID, groupID = pg.Int(after.EventID), after.GroupID.String()
	}
	rows := newDecoder(l.base, t)
	begin := pg.ReadTx(pg.BulkTimeout, "enable_seqscan", "off")
	begin.Row = rows.Reset
	err = l.base.DB.Transact(ctx, begin, pg.Step{
		SQL:     l.SQL(t, listSQL),
		Args:    l.Match(f, pg.Bool(f.Closed), eventID, groupID, pg.Int(int64(limit))),
		Columns: rows.Columns, Row: rows.addWithRow,
	})
	if errors.Is(err, buffer.ErrTooLarge) {
		err = nil // the next page begins there
	}
	return rows.dead, l.base.Explain(ctx, "listing dead letters", err)
}

// No index has died_at: the server keeps the newest while it reads what matches, as the count does. Payloads are not read, and long texts only of
// those that are listed.
const newestSQL = `
SELECT d.event_id, left(d.topic, 4096), left(d.key, 4096), d.created_at, d.group_id, d.attempts, left(d.error, 4096),
       d.died_at, d.notified_at, d.closed_at, d.closed_as, d.closed_by, d.closed_reason, d.event_uuid, ` + presentNameSQL + `
FROM (
  SELECT d.* FROM outbox_dead_letters d
  WHERE ` + matchSQL + `
    AND ($9::boolean OR d.closed_at IS NULL)
  ORDER BY d.died_at DESC, d.event_id DESC, d.group_id DESC LIMIT $10::bigint) d
ORDER BY d.died_at DESC, d.event_id DESC, d.group_id DESC`

// ListNewestDead implements buffer.DeadLetters.
func (l *DeadLetters) ListNewestDead(ctx context.Context, f buffer.DeadFilter, limit int) (all []buffer.DeadEvent, err error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	begin := pg.ReadTx(pg.BulkTimeout, "enable_seqscan", "off")
	begin.Row = func([][]byte) error {
		all = nil
		return nil
	}
	err = l.base.DB.Transact(ctx, begin, pg.Step{
		SQL: l.SQL(t, newestSQL), Args: l.Match(f, pg.Bool(f.Closed), pg.Int(int64(limit))),
		Row: func(v [][]byte) error {
			all = append(all, readListed(l.base.Pipeline, v))
			return nil
		},
	})
	return all, l.base.Explain(ctx, "listing dead letters", err)
}

// readListed reads a row of newestSQL.
func readListed(pipeline string, v [][]byte) buffer.DeadEvent {
	one := buffer.DeadEvent{
		Event: outbox.Event{ID: pg.ReadInt8(v[0]), Topic: string(v[1]), CreatedAt: pg.ReadTime(v[3])},
		DeadLetter: buffer.DeadLetter{
			Pipeline: pipeline, GroupID: uuid.UUID(v[4]), Attempts: pg.ReadInt4(v[5]), Error: string(v[6]), DiedAt: pg.ReadTime(v[7]),
		},
		ClosedAs: string(v[10]), ClosedBy: string(v[11]), ClosedReason: string(v[12]),
	}
	if v[2] != nil {
		key := string(v[2])
		one.Key = &key
	}
	if v[8] != nil {
		one.NotifiedAt = pg.ReadTime(v[8])
	}
	if v[9] != nil {
		one.ClosedAt = pg.ReadTime(v[9])
	}
	if v[13] != nil {
		one.UUID = uuid.UUID(v[13])
	}
	if sink := string(v[14]); sink != ledger.DefaultSink {
		one.Sink = sink
	}
	return one
}

// Open dead letters are counted by their index; counting closed ones takes longer the more there are.
const countSQL = `
SELECT open.n, open.unnotified, closed.n
FROM (SELECT count(*) AS n, count(*) FILTER (WHERE d.notified_at IS NULL) AS unnotified
      FROM outbox_dead_letters d WHERE d.closed_at IS NULL AND ` + matchSQL + `) open,
     (SELECT count(*) AS n
      FROM outbox_dead_letters d WHERE d.closed_at IS NOT NULL AND ` + matchSQL + `) closed`

// CountDead implements buffer.DeadLetters.
func (l *DeadLetters) CountDead(ctx context.Context, f buffer.DeadFilter) (n buffer.DeadCount, err error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return n, err
	}
	err = l.base.DB.Transact(ctx, pg.ReadTx(pg.BulkTimeout, "enable_seqscan", "off"), pg.Step{
		SQL: l.SQL(t, countSQL), Args: l.Match(f),
		Row: func(v [][]byte) error {
			n = buffer.DeadCount{Open: pg.ReadInt8(v[0]), Unnotified: pg.ReadInt8(v[1]), Closed: pg.ReadInt8(v[2])}
			return nil
		},
	})
	return n, l.base.Explain(ctx, "counting dead letters", err)
}

// As countSQL, it reads all that match; open ones by their index.
const byTimeSQL = `
SELECT to_timestamp(floor(extract(epoch FROM d.died_at)::float8 / $10::float8) * $10::float8), count(*), min(d.died_at), max(d.died_at)
FROM outbox_dead_letters d
WHERE ` + matchSQL + `
  AND ($9::boolean OR d.closed_at IS NULL)
GROUP BY 1 ORDER BY 1 DESC LIMIT $11::bigint`

// CountDeadByTime implements buffer.DeadTimes.
func (l *DeadLetters) CountDeadByTime(ctx context.Context, f buffer.DeadFilter, period time.Duration, limit int) (all []buffer.DeadPeriod, err error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	begin := pg.ReadTx(pg.BulkTimeout, "enable_seqscan", "off")
	begin.Row = func([][]byte) error {
		all = nil
		return nil
	}
	err = l.base.DB.Transact(ctx, begin, pg.Step{
		SQL: l.SQL(t, byTimeSQL), Args: l.Match(f, pg.Bool(f.Closed), pg.Int(int64(period/time.Second)), pg.Int(int64(limit))),
		Row: func(v [][]byte) error {
			all = append(all, buffer.DeadPeriod{Begin: pg.ReadTime(v[0]).UTC(), Count: pg.ReadInt8(v[1]), First: pg.ReadTime(v[2]).UTC(), Last: pg.ReadTime(v[3]).UTC()})
			return nil
		},
	})
	return all, l.base.Explain(ctx, "counting dead letters by time", err)
}

// Those that ReplayableSQL leaves out.
const droppedSQL = `
SELECT sink, EXISTS (SELECT FROM outbox_sinks s WHERE s.buffer = $9 AND s.sink = l.sink), count(*)
FROM (
  SELECT ` + presentNameSQL + ` AS sink FROM outbox_dead_letters d
  WHERE d.closed_at IS NULL AND ` + matchSQL + ` AND d.sink NOT IN ('*', 'default') AND NOT EXISTS (
    SELECT FROM outbox_sinks s WHERE s.buffer = $9 AND s.dropped_at IS NULL AND d.sink IN (SELECT unnest(s.sink || s.formerly)))
) l GROUP BY sink ORDER BY sink`

// CountDropped implements buffer.DeadLetters.
func (l *DeadLetters) CountDropped(ctx context.Context, f buffer.DeadFilter) (all []buffer.DroppedLetters, err error) {
	if l.base.Sinks == nil {
		return nil, nil
	}
	t, err := l.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	begin := pg.ReadTx(pg.BulkTimeout, "enable_seqscan", "off")
	begin.Row = func([][]byte) error {
		all = nil
		return nil
	}
	err = l.base.DB.Transact(ctx, begin, pg.Step{SQL: l.SQL(t, droppedSQL), Args: l.Match(f, t.Buffer), Row: func(v [][]byte) error {
		all = append(all, buffer.DroppedLetters{Sink: string(v[0]), Registered: pg.ReadBool(v[1]), Letters: pg.ReadInt8(v[2])})
		return nil
	}})
	return all, l.base.Explain(ctx, "counting dead letters of dropped sinks", err)
}

// PickOpenSQL begins a statement that locks matching dead letters. It skips those that another
// transaction has locked: they are being replayed, discarded or notified.
const PickOpenSQL = `
WITH picked AS MATERIALIZED (
  SELECT d.event_id, d.group_id FROM outbox_dead_letters d
  WHERE d.closed_at IS NULL AND ` + matchSQL

const discardSQL = PickOpenSQL + `
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE SKIP LOCKED
)
UPDATE outbox_dead_letters d SET closed_at = clock_timestamp(), closed_as = 'discarded', closed_by = nullif(($3::text[])[4], ''), closed_reason = nullif(($3::text[])[5], '')
FROM picked p WHERE d.pipeline = $1 AND d.event_id = p.event_id AND d.group_id = p.group_id`

// Discard implements buffer.DeadLetters.
func (l *DeadLetters) Discard(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return 0, err
	}
	var n int64
	err = l.base.DB.Transact(ctx, l.base.DB.WriteTx(pg.BulkTimeout, pg.PlanByKey...), pg.Step{
		SQL: l.SQL(t, discardSQL), Args: l.Match(f, pg.Int(int64(limit))), Affected: &n,
	})
	return int(n), l.base.Explain(ctx, "discarding dead letters", err)
}

// decoder decodes columnsSQL.
type decoder struct {
	pg.EventDecoder
	pipeline string
	dead     []buffer.DeadEvent
}

func newDecoder(base *ledger.Base, t *ledger.Tables) decoder {
	return decoder{EventDecoder: pg.EventDecoder{PayloadOID: t.DeadPayloadOID}, pipeline: base.Pipeline}
}

// add is the Row function for columnsSQL and the sink.
func (d *decoder) add(v [][]byte) error {
	if err := d.Append(v); err != nil {
		return err
	}
	v = v[6:]
	n := len(d.Events)
	event := &d.Events[n-1]
	if v[9] != nil {
		event.UUID = uuid.UUID(v[9])
	}
	one := buffer.DeadEvent{Event: *event, DeadLetter: buffer.DeadLetter{
		Pipeline: d.pipeline, GroupID: uuid.UUID(v[0]), Attempts: pg.ReadInt4(v[1]), Error: string(v[2]), DiedAt: pg.ReadTime(v[3]),
	}, ClosedAs: string(v[6]), ClosedBy: string(v[7]), ClosedReason: string(v[8])}
	if sink := string(v[10]); sink != ledger.DefaultSink {
		one.Sink = sink
	}
	if v[4] != nil {
		one.NotifiedAt = pg.ReadTime(v[4])
	}
	if v[5] != nil {
		one.ClosedAt = pg.ReadTime(v[5])
	}
	d.dead = append(d.dead[:n-1], one) // a transaction that runs again begins anew
	return nil
}

// addWithRow is add, and reads event_row after the other columns.
func (d *decoder) addWithRow(v [][]byte) error {
	if err := d.add(v); err != nil {
		return err
	}
	d.Weigh(len(v[17]))
	if row := v[17]; len(row) > 0 {
		d.dead[len(d.dead)-1].Row = d.Copy(row)
	}
	d.dead[len(d.dead)-1].History = buffer.ParseHistory(string(v[18]))
	return nil
}

// complete sets the batch's DeadLetters, in the order of its events.
func (d *decoder) complete(batch *buffer.Lease) {
	if len(batch.Events) == 0 {
		return
	}
	slices.SortFunc(d.dead, func(a, b buffer.DeadEvent) int { return cmp.Compare(a.ID, b.ID) })
	for i := range d.dead {
		batch.DeadLetters = append(batch.DeadLetters, &d.dead[i].DeadLetter)
	}
}
