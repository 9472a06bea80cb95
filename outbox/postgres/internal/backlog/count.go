package backlog

import (
	"context"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/delayed"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// The sequence's last value is read by a statement of its own, before the count (see package watermark). This
// statement also locks the table before the sequence (see package claim).
var lastValueSQL = `
SELECT coalesce(pg_sequence_last_value($1::regclass), 0),
       $3::text::regclass::oid::int8, pg_relation_filenode($1::regclass)::int8, pg_postmaster_start_time(),
       (SELECT seqcache > 1 OR seqincrement > 1 FROM pg_sequence WHERE seqrelid = $1::regclass),
       b.pipeline, b.owned_since, b.swept_at, (SELECT seqmin FROM pg_sequence WHERE seqrelid = $1::regclass), (` + strings.NewReplacer("$1", "$3", "$2", "$4").Replace(ledger.OtherLedgerSQL) + `), b.paused_at IS NOT NULL
FROM (SELECT) one LEFT JOIN outbox_buffers b ON b.buffer = $2
WHERE NOT EXISTS (SELECT FROM outbox_events WHERE false)`

// Every count is bounded, and every scan begins at a watermark.
const countSQL = `
WITH` + ledger.HeldSQL + `
SELECT
  (SELECT count(*) FROM (
     SELECT FROM outbox_events e WHERE e.id > greatest($8::bigint, (SELECT upto FROM held))
       AND e.group_id IS NULL AND NOT e.id::bigint <@ (SELECT members FROM held) AND ` + ledger.AvailableOfSQL + `
     ORDER BY e.id LIMIT $4::bigint) fresh),
  (SELECT count(*) FROM (
     SELECT FROM outbox_events e WHERE e.id > $2::bigint AND e.id <= $9::bigint
       AND e.group_id IS NULL AND NOT e.id::bigint <@ (SELECT members FROM held) AND ` + ledger.AvailableOfSQL + `
     ORDER BY e.id LIMIT $4::bigint) late),
  CASE WHEN $6::boolean THEN (
     SELECT array_agg(virtualtransaction) FROM pg_locks
     WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND relation = $7::regclass
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) END,
  clock.now,
  count(*) FILTER (WHERE due_at <= clock.now AND NOT ` + ledger.SuspectSQL + `),
  count(*) FILTER (WHERE state = 'waiting' AND isfinite(due_at)),
  count(*) FILTER (WHERE state = 'delivered'),
  nullif(min(due_at), 'infinity'),
  count(*) FILTER (WHERE due_at <= clock.now AND ` + ledger.SuspectSQL + `)
FROM (SELECT clock_timestamp() AS now) clock
LEFT JOIN outbox_batches ON buffer = $1 AND sink = $10 AND due_at > $5::timestamptz
GROUP BY clock.now`

// CountBacklog implements buffer.Inspector.
func (b *Backlog) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	t, err := b.base.Ready(ctx)
	if err != nil {
		return buffer.Backlog{}, err
	}
	if b.base.Ownership.Elsewhere() {
		if err := b.base.LookElsewhere(ctx, t); err != nil {
			return buffer.Backlog{}, err
		}
	}
	c, err := b.count(ctx, t, limit)
	if err == nil && c.void {
		c, err = b.count(ctx, t, limit)
	}
	if err != nil {
		return buffer.Backlog{}, err
	}
	backlog := c.backlog
	if b.base.Ordered && b.base.Sinks == nil && backlog.Due+backlog.Suspects > 0 {
		if backlog.Due, backlog.Suspects, err = b.countDue(ctx, t); err != nil {
			return buffer.Backlog{}, b.base.Explain(ctx, "counting batches", err)
		}
	}
	if limit == 0 {
		return backlog, nil
	}
	late, orphans, err := b.fullSweep(ctx, t, limit, backlog.Unclaimed == limit)
	if err != nil {
		return buffer.Backlog{}, b.base.Explain(ctx, "sweeping", err)
	}
	backlog.Unclaimed = min(limit, backlog.Unclaimed+max(0, late-c.due)) // the sweep sees what is due as well
	backlog.Due += orphans
	if floor, numbering, ok := b.watermarks.FloorToStore(time.Now()); ok {
		return backlog, b.storeFloor(ctx, t, floor, numbering)
	}
	return backlog, nil
}

// counted is the result of a count.
type counted struct {
	backlog buffer.Backlog
	due     int  // of its unclaimed events: delayed ones that are due, below what the count scans
	void    bool // the sequence was set back, the count looked only beyond the ids of before, and it must be repeated
}

// count counts once. The error is an *ownership.Error if another pipeline owns the buffer.
func (b *Backlog) count(ctx context.Context, t *ledger.Tables, limit int) (counted, error) {
	var (
		backlog buffer.Backlog
		count   watermark.Count
		owned   error
		began   = time.Now()
		r       = b.watermarks.NextCount(began, limit)
		found   delayed.Found
	)
	steps := []pg.Step{
		b.base.DB.BatchTx(b.base.DB.StatementTimeout),
		{
			SQL:  t.SQL(lastValueSQL),
			Args: []string{t.Sequence, t.Buffer, t.Events, t.Schema},
			Row: func(v [][]byte) error {
				count.LastValue, count.Numbering = pg.ReadInt8(v[0]), t.Numbering(v[1], v[2], v[3])
				count.Blocks, count.Conditional = v[4] != nil && pg.ReadBool(v[4]), t.Conditional
				var since time.Time
				if v[6] != nil {
					since = pg.ReadTime(v[6])
				}
				if v[7] != nil {
					count.SweptAt = pg.ReadTime(v[7])
				}
				b.base.Ownership.Saw(t.Buffer, string(v[5]), b.base.Pipeline, since)
				if v[8] != nil {
					count.Start = watermark.Beginning(pg.ReadInt8(v[8]))
				}
				if v[9] != nil { // somebody moved the buffer to another ledger
					b.base.Ownership.SawElsewhere(b.base.MovedTo(t, string(v[9])))
				}
				backlog.Paused = pg.ReadBool(v[10])
				_, owned = b.base.Ownership.Known()
				return nil
			},
		},
		{
			SQL: t.Statements.Count,
			Args: []string{
				t.Buffer, pg.Int(r.LateAfter), pg.Int(r.LastValue), pg.Int(int64(limit)), pg.Timestamp(r.DueAfter),
				pg.Bool(r.Sweep), t.Sequence, pg.Int(r.Cursor), pg.Int(r.LateUpTo), b.base.ClaimsFor(),
			},
			Row: func(v [][]byte) error {
				count.Fresh, count.Late = int(pg.ReadInt8(v[0])), int(pg.ReadInt8(v[1]))
				pg.ReadArray(v[2], func(holder []byte) { count.LockHolders = append(count.LockHolders, string(holder)) })
				count.Now = pg.ReadTime(v[3])
				backlog.Due, backlog.Waiting, backlog.Delivered = int(pg.ReadInt8(v[4])), int(pg.ReadInt8(v[5])), int(pg.ReadInt8(v[6]))
				if v[7] != nil {
					count.OldestDue = pg.ReadTime(v[7])
				}
				backlog.Suspects = int(pg.ReadInt8(v[8]))
				return nil
			},
		},
	}
	looks := limit > 0 && t.Statements.Due != ""
	if looks {
		steps = append(steps, delayed.Look(b.base, t, b.watermarks, limit, &found))
	}
	err := b.base.DB.RoundTrip(ctx, steps)
	switch {
	case err != nil:
		return counted{}, b.base.Explain(ctx, "counting events", err)
	case owned != nil:
		return counted{}, owned
	}
	now := time.Now()
	count.Took = now.Sub(began)
	c := counted{void: b.watermarks.Counted(r, count, now)}
	if looks && !c.void {
		found.Counted = true
		b.watermarks.FoundDue(found.Due)
		c.due = len(found.Blocked)     // each has an event that waits for its key
		for _, id := range found.IDs { // the others are counted already
			if id <= r.Cursor && (id <= r.LateAfter || id > r.LateUpTo) {
				c.due++
			}
		}
		backlog.NextDelayed = found.Next
	}
	backlog.Unclaimed = min(limit, count.Fresh+count.Late+c.due)
	c.backlog = backlog
	return c, nil
}

const storeFloorSQL = `
UPDATE outbox_buffers SET floor = $2::bigint, numbering = $3 WHERE buffer = $1`

// closeTimeout bounds the last write of the floor: a database that is away must not hold up the end of a process.
const closeTimeout = time.Second

// StoreLastFloor writes the floor when the process ends, so that the next one does not look at what this one has
// delivered since the last write. The floor only saves work, and an error is ignored.
func (b *Backlog) StoreLastFloor(t *ledger.Tables) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if floor, numbering, ok := b.watermarks.LastFloor(); ok {
		_ = b.storeFloor(ctx, t, floor, numbering)
	}
}

func (b *Backlog) storeFloor(ctx context.Context, t *ledger.Tables, floor int64, numbering string) error {
	err := b.base.DB.Transact(ctx, b.base.DB.WriteTx(b.base.DB.StatementTimeout, "synchronous_commit", "off"),
		pg.Step{SQL: t.SQL(storeFloorSQL), Args: []string{t.Buffer, pg.Int(floor), pg.Text(numbering)}})
	return b.base.Explain(ctx, "storing the floor", err)
}

const countDueInOrderSQL = `
SELECT count(*) FILTER (WHERE NOT ` + ledger.SuspectSQL + `), count(*) FILTER (WHERE ` + ledger.SuspectSQL + `)` + ledger.DueInOrderSQL

// countDue counts the due batches that wait for no other: the others would make the pipeline look
// stalled.
func (b *Backlog) countDue(ctx context.Context, t *ledger.Tables) (due, suspects int, err error) {
	err = b.base.DB.Transact(ctx, pg.ReadTx(b.base.DB.StatementTimeout, "enable_seqscan", "off"), pg.Step{
		SQL: t.SQL(countDueInOrderSQL), Args: []string{t.Buffer, pg.Timestamp(b.watermarks.DueAfter())},
		Row: func(v [][]byte) error {
			due, suspects = int(pg.ReadInt8(v[0])), int(pg.ReadInt8(v[1]))
			return nil
		},
	})
	return due, suspects, err
}
