package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/halves"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// liveColumnsSQL are what readLive reads. A time of infinity has no distance.
const liveColumnsSQL = `
SELECT group_id, sink, buffer <> $1, state, lease_no,
       CASE WHEN isfinite(due_at) THEN (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint END,
       owner, attempts, outages, unfinished_leases, ` + ledger.AnySuspectSQL + `, origins <> '{}', events, cardinality(delivered), first_id, uuids[1],
       CASE WHEN isfinite(claimed_at) THEN (extract(epoch FROM clock_timestamp() - claimed_at) * 1000000)::bigint END, coalesce(error, ''), address`

const (
	listLiveSQL = liveColumnsSQL + `, count(*) OVER ()
FROM outbox_batches WHERE buffer IN ($1, $2)
ORDER BY claimed_at DESC, group_id LIMIT $3::bigint`

	liveSQL = liveColumnsSQL + `
FROM outbox_batches WHERE buffer IN ($1, $2) AND group_id = $3::uuid`
)

// readLive reads a row of liveColumnsSQL.
func readLive(v [][]byte) buffer.LiveBatch {
	b := buffer.LiveBatch{
		GroupID: uuid.UUID(v[0]), Sink: string(v[1]), Hook: pg.ReadBool(v[2]), State: string(v[3]), LeaseNo: pg.ReadInt8(v[4]), Due: math.MaxInt64,
		Owner: string(v[6]), Attempts: pg.ReadInt4(v[7]), Outages: pg.ReadInt4(v[8]), UnfinishedLeases: pg.ReadInt4(v[9]), Suspect: pg.ReadBool(v[10]),
		Parted: pg.ReadBool(v[11]), Events: int64(pg.ReadInt4(v[12])), Delivered: int64(pg.ReadInt4(v[13])), FirstID: pg.ReadInt8(v[14]),
		Age: pg.ReadAge(v[16]), Error: string(v[17]),
	}
	if v[5] != nil && pg.ReadInt8(v[5]) < math.MaxInt64/int64(time.Microsecond) {
		b.Due = time.Duration(pg.ReadInt8(v[5])) * time.Microsecond
	}
	if v[15] != nil {
		b.FirstUUID = uuid.UUID(v[15])
	}
	if v[18] != nil {
		address := string(v[18])
		b.Address = &address
	}
	return b
}

// liveNames are the names by which ledger rows name the buffer, and its dead-letter hooks.
func liveNames(t *table) []string { return []string{t.Buffer, t.Buffer + ledger.DeadLettersSuffix} }

// ListBatches implements buffer.LiveBatches.
func (b *Buffer) ListBatches(ctx context.Context, limit int) (batches []buffer.LiveBatch, total int64, err error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, 0, err
	}
	begin := pg.ReadTx(b.db.StatementTimeout)
	begin.Row = func([][]byte) error {
		batches, total = nil, 0
		return nil
	}
	err = b.db.Transact(ctx, begin, pg.Step{
		SQL: t.SQL(listLiveSQL), Args: append(liveNames(t), pg.Int(int64(limit))),
		Row: func(v [][]byte) error {
			batches, total = append(batches, readLive(v)), pg.ReadInt8(v[19])
			return nil
		},
	})
	return batches, total, b.explain(ctx, "listing batches", err)
}

// LiveBatch implements buffer.LiveBatches.
func (b *Buffer) LiveBatch(ctx context.Context, groupID uuid.UUID) (live buffer.LiveBatch, ok bool, err error) {
	t, err := b.ready(ctx)
	if err != nil {
		return live, false, err
	}
	err = b.db.Transact(ctx, pg.ReadTx(b.db.StatementTimeout), pg.Step{
		SQL: t.SQL(liveSQL), Args: append(liveNames(t), groupID.String()), Row: func(v [][]byte) error {
			live, ok = readLive(v), true
			return nil
		},
	})
	return live, ok, b.explain(ctx, "reading a batch", err)
}

// BatchEvents implements buffer.LiveBatches.
func (b *Buffer) BatchEvents(ctx context.Context, groupID uuid.UUID, limit int) (*buffer.Lease, error) {
	t, err := b.projects(ctx)
	if err != nil {
		return nil, err
	}
	return t.events.View(ctx, groupID, limit)
}

const retryBatchSQL = `
UPDATE outbox_batches SET due_at = least(due_at, clock_timestamp()), owner = $4
WHERE buffer IN ($1, $2) AND group_id = $3::uuid AND state = 'waiting'`

// RetryBatch implements buffer.LiveBatches.
func (b *Buffer) RetryBatch(ctx context.Context, groupID uuid.UUID, request string) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	var due int64
	err = b.db.Transact(ctx, b.db.WriteTx(b.db.StatementTimeout), pg.Step{
		SQL: t.SQL(retryBatchSQL), Args: append(liveNames(t), groupID.String(), b.db.Text(request)), Affected: &due,
	})
	switch {
	case err != nil:
		return b.explain(ctx, "retrying a batch", err)
	case due == 0:
		return buffer.ErrNotWaiting
	}
	return nil
}

// leaseWaitingSQL leases a batch that still waits as it was read. It is not sent, so its unfinished leases stay what they were.
const leaseWaitingSQL = `
UPDATE outbox_batches SET state = 'leased', lease_no = lease_no + 1, owner = $4, due_at = clock_timestamp() + $5::interval
WHERE buffer IN ($1, $2) AND group_id = $3::uuid AND lease_no = $6::bigint AND state = 'waiting'
RETURNING lease_no, attempts, outages, unfinished_leases, first_id, last_id, origins, claim_id, clock_timestamp(), history`

// The events of a batch of a custom table; see package custom.
const (
	customIDsSQL = `
SELECT e.custom_id::bigint, NULL::uuid
FROM outbox_batches l JOIN custom_events e ON e.custom_id BETWEEN l.first_id AND l.last_id AND e.group_id = coalesce(l.claim_id, l.group_id)
  AND (l.members IS NULL OR e.custom_id::bigint <@ l.members)
WHERE l.group_id = $1::uuid ORDER BY 1`

	customIDsUUIDSQL = `
SELECT u.n, u.id
FROM outbox_batches l JOIN LATERAL unnest(l.uuids, CASE
  WHEN l.members IS NULL THEN ARRAY(SELECT generate_series(l.first_id, l.last_id))
  ELSE ARRAY(SELECT generate_series(lower(m), upper(m) - 1) FROM unnest(l.members) m) END) u(id, n) ON true
JOIN custom_events e ON e.custom_id = u.id AND e.group_id = coalesce(l.claim_id, l.group_id)
WHERE l.group_id = $1::uuid ORDER BY 1`
)

// DivideBatch implements buffer.LiveBatches.
func (b *Buffer) DivideBatch(ctx context.Context, groupID uuid.UUID, doubled bool) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	if err := b.base.Own(ctx, &t.Tables); err != nil {
		return err
	}
	live, _, err := b.LiveBatch(ctx, groupID) // one that is gone has no state
	if err != nil {
		return err
	}
	if err := halves.Check(&live, doubled); err != nil {
		return err
	}
	settler, ordered, err := b.settlerOf(&live)
	if err != nil {
		return err
	}
	batch, err := b.leaseWaiting(ctx, t, &live)
	if err != nil {
		return err
	}
	listed, err := b.listIDs(ctx, t, *batch)
	if err == nil {
		err = settler.Settle(ctx, listed, halves.Outcomes(&live, listed, ordered))
	}
	if err == nil || errors.Is(err, buffer.ErrLeaseLost) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), halves.PutBackTimeout)
	defer cancel()
	if putBack := settler.Settle(ctx, batch, halves.PutBack(&live, batch)); putBack != nil { // its lease ends
		err = errors.Join(err, putBack)
	}
	return err
}

// settlerOf returns who settles a batch, and whether its sink keeps order by key.
func (b *Buffer) settlerOf(live *buffer.LiveBatch) (settler buffer.Settler, ordered bool, err error) {
	if live.Sink == ledger.DefaultSink && b.config.Sinks == nil {
		return b, b.config.Ordered, nil
	}
	for i := range b.config.Sinks {
		if r := &b.config.Sinks[i]; b.base.Current != nil && b.base.Current(r.Sink) == live.Sink {
			return b.sink(r.Sink), r.Ordered, nil
		}
	}
	return nil, false, fmt.Errorf("its sink, %s, is not in the configuration of this relay", live.Sink)
}

func (b *Buffer) leaseWaiting(ctx context.Context, t *table, live *buffer.LiveBatch) (*buffer.Lease, error) {
	var (
		batch *buffer.Lease
		ends  = time.Now().Add(halves.Lease)
		begin = b.db.WriteTx(b.db.StatementTimeout, "synchronous_commit", "on")
	)
	begin.Row = func([][]byte) error {
		batch = nil
		return nil
	}
	err := b.db.Transact(ctx, begin, pg.Step{
		SQL:  t.SQL(leaseWaitingSQL),
		Args: append(liveNames(t), live.GroupID.String(), b.db.Text(b.config.Owner), pg.Interval(halves.Lease), pg.Int(live.LeaseNo)),
		Row: func(v [][]byte) error {
			batch = &buffer.Lease{
				Batch: buffer.Batch{GroupID: live.GroupID, Pipeline: b.config.Pipeline}, LeaseNo: pg.ReadInt8(v[0]), Attempts: pg.ReadInt4(v[1]),
				Outages: pg.ReadInt4(v[2]), UnfinishedLeases: pg.ReadInt4(v[3]), FirstID: pg.ReadInt8(v[4]), LastID: pg.ReadInt8(v[5]),
				Ends: ends, ClaimedAt: pg.ReadTime(v[8]), ClaimedLocal: time.Now(), History: buffer.ParseHistory(string(v[9])),
			}
			pg.ReadArray(v[6], func(id []byte) { batch.Origins = append(batch.Origins, uuid.UUID(id)) })
			if v[7] != nil {
				batch.ClaimID = uuid.UUID(v[7])
			}
			return nil
		},
	})
	switch {
	case err != nil:
		return nil, b.explain(ctx, "leasing a batch to divide it", err)
	case batch == nil:
		return nil, buffer.ErrNotWaiting
	}
	return batch, nil
}

// listIDs returns the leased batch with nothing but the ids of its events.
func (b *Buffer) listIDs(ctx context.Context, t *table, batch buffer.Lease) (*buffer.Lease, error) {
	if t.custom == nil {
		return ledger.ReadTopics(ctx, b.Ledger, &t.Tables, batch)
	}
	sql := customIDsSQL
	if t.UUIDs {
		sql = customIDsUUIDSQL
	}
	begin := pg.ReadTx(b.db.StatementTimeout, pg.PlanByKey...)
	begin.Row = func([][]byte) error {
		batch.Events = nil
		return nil
	}
	err := b.db.Transact(ctx, begin, pg.Step{SQL: t.SQL(sql), Args: []string{batch.GroupID.String()}, Row: func(v [][]byte) error {
		e := outbox.Event{ID: pg.ReadInt8(v[0])}
		if v[1] != nil {
			e.UUID = uuid.UUID(v[1])
		}
		batch.Events = append(batch.Events, e)
		return nil
	}})
	return &batch, b.explain(ctx, "listing the events of a batch", err)
}
