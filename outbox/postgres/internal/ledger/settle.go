package ledger

import (
	"context"
	"errors"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// FenceSQL ends a fence. Settle is one round trip whose first statement is the fence: it changes the ledger row that
// group_id and lease_no name, and sets relay.fenced if there was one. Every statement after it
// reads relay.fenced, so an owner that lost its lease changes nothing. relay.newest_at says how the
// batch's rows are found: empty, by the group_id on them; otherwise by their ids, which are its members, and none of them
// is newer (see heldBySQL). JSON writes a time exactly, and whatever the DateStyle. relay.stamp_xid is the batch's stamp_xid, which a row of the
// same stamp inherits.
const FenceSQL = `
RETURNING set_config('relay.fenced', '1', true),
          set_config('relay.newest_at', CASE WHEN members IS NULL THEN ''
                                             ELSE to_json(coalesce(newest_at, 'infinity')) #>> '{}' END, true),
          set_config('relay.stamp_xid', coalesce(stamp_xid::text, ''), true)`

// NewestSQL is relay.newest_at, read once a statement. It is NULL if the batch's rows are found by their group_id, so no row is theirs by id.
const NewestSQL = `(SELECT nullif(current_setting('relay.newest_at'), '')::timestamptz)`

// StampXidSQL is the stamp_xid of the fenced batch, or NULL.
const StampXidSQL = `(SELECT nullif(current_setting('relay.stamp_xid', true), '')::xid8)`

// A waiting batch has no owner, with any lease_no.
const (
	fenceDeleteSQL = `
DELETE FROM outbox_batches
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + FenceSQL

	// A delivered batch keeps its row until its events are gone.
	fenceKeepSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp() + $4::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + FenceSQL

	fenceRetrySQL = `
UPDATE outbox_batches
SET state = 'waiting', unfinished_leases = $9::int, due_at = clock_timestamp() + $4::interval,
    attempts = $5::int, outages = $6::int, error = $7, address = $8, history = coalesce($10, history)
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + FenceSQL
)

// Settlement is one Settle, of events or of dead letters.
type Settlement struct {
	Ledger *Ledger
	Tables *Tables
	Batch  *buffer.Lease
	// Closed counts the ledger rows that a step of a delivered batch removed.
	Closed int64
	fenced bool
	newest string
	stamp  string // stamp_xid
	sink   string
	kept   keptCheck
	before []pg.Step // before what the DELETE left is recorded in another transaction
}

// Run settles: the fence, then the steps of the settlement.
func (s *Settlement) Run(ctx context.Context, o *outcomes.Set, steps []pg.Step) error {
	// A settle that a crash forgets is done again under the same group_id, so it
	// need not wait for the disk, unless it made a new one.
	commit := "off"
	if !o.RetriesWhole() && len(o.Retry) > 0 {
		commit = "on"
	}
	recorded := s.recordsKept()
	if recorded {
		steps = append(steps, s.recordStep())
	}
	b := s.Ledger.base
	begin := b.DB.SettleTx(b.DB.StatementTimeout, "synchronous_commit", commit, "lock_timeout", pg.Milliseconds(s.Tables.LockTimeout))
	begin.Row = func([][]byte) error {
		s.fenced = false
		s.kept.begin()
		return nil
	}
	// After a deadlock with the application it is not run again at once, which could
	// make the application the next victim: the caller records the delivery.
	err := b.DB.RetryTx(ctx, slices.Concat([]pg.Step{begin}, s.lock(o), []pg.Step{s.fence(o)}, steps), pg.CodeSerialization)
	switch {
	case err != nil:
		return s.refused(ctx, err, b.Explain(ctx, "settling a batch", err))
	case !s.fenced:
		return buffer.ErrLeaseLost
	case o.RetriesWhole():
		return nil
	case s.frees(o):
		return nil
	case !s.Batch.DeliveryRecorded():
		return s.recordKept(ctx, recorded)
	case s.Closed == 0:
		return s.lockedOrKept(ctx)
	}
	return nil
}

// refused makes err, which explains the cause of a failed settle, a *buffer.SettleError if that settle would fail again. On a full disk it would, and
// the batch's own row can still be updated, in the space of its older versions.
func (s *Settlement) refused(ctx context.Context, cause, err error) error {
	_, unstamped := errors.AsType[*buffer.UnstampedError](err)
	if !unstamped && !pg.IsRefused(cause) && pg.Code(cause) != pg.CodeDiskFull || errors.Is(err, buffer.ErrNotReady) && pg.Code(cause) != pg.CodeNoPrivilege {
		return err
	}
	refused := &buffer.SettleError{Table: s.Tables.Buffer, RetryIn: buffer.KeptRetry(s.Batch.LeaseNo), Err: err}
	if pg.Code(cause) == pg.CodeDiskFull {
		refused.RetryIn = min(refused.RetryIn, buffer.FullRetry)
	}
	if s.Batch.DeliveryRecorded() {
		if err := s.Ledger.putOff(ctx, s.Batch, refused.RetryIn, refused); err != nil {
			return err
		}
	}
	return refused
}

func (s *Settlement) fence(o *outcomes.Set) pg.Step {
	args := []string{s.Ledger.name(s.Tables), s.Batch.GroupID.String(), pg.Int(s.Batch.LeaseNo)}
	sql := fenceDeleteSQL
	switch {
	case s.Ledger.routed() && !o.RetriesWhole():
		sql = fenceDeleteRoutedSQL
		args = append(args, s.claim())
		if s.Batch.DeliveryRecorded() {
			sql = fenceKeepRoutedSQL
			args = append(args, pg.Interval(deliveredRetry))
		}
	case o.RetriesWhole():
		sql = fenceRetrySQL
		args = append(args, pg.Interval(o.All.After), pg.Int(int64(o.All.Attempts)), pg.Int(int64(o.All.Outages)),
			s.Ledger.base.DB.Text(o.All.Error), s.Ledger.base.DB.OptionalText(o.All.Address), pg.Int(int64(o.All.UnfinishedLeases)), s.history(o.All))
	case s.Batch.DeliveryRecorded():
		sql = fenceKeepSQL
		args = append(args, pg.Interval(deliveredRetry))
	}
	return pg.Step{Prepare: true, SQL: s.Tables.SQL(sql), Args: args, Row: func(v [][]byte) error {
		s.fenced, s.newest, s.stamp = true, string(v[1]), string(v[2])
		if len(v) > 3 {
			s.sink = string(v[3])
		}
		return nil
	}}
}

// freeRestSQL keeps of a delivered batch only what was delivered. Those events may be gone.
const freeRestSQL = `
UPDATE outbox_batches SET events = cardinality($4::bigint[]), delivered = $4::bigint[],
       members = CASE WHEN members IS NOT NULL THEN $5::int8multirange END, lanes = CASE WHEN lanes IS NOT NULL THEN '{}'::int[] END
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint`

// frees reports whether the settle only gives a new group_id to the events of a delivered batch that were not delivered.
func (s *Settlement) frees(o *outcomes.Set) bool {
	return s.Batch.DeliveryRecorded() && o.All == nil && len(o.Delivered)+len(o.Dead) == 0
}

// FreeRest is the step about the ledger row after such retries; ok is false if the settle is another one.
func (s *Settlement) FreeRest(o *outcomes.Set) (step pg.Step, ok bool) {
	if !s.frees(o) {
		return step, false
	}
	return pg.Step{SQL: s.Tables.SQL(freeRestSQL), Args: []string{
		s.Ledger.name(s.Tables), s.Batch.GroupID.String(), pg.Int(s.Batch.LeaseNo), pg.IDArray(s.Batch.Delivered), idset.Of(s.Batch.Delivered).Multirange(),
	}}, true
}

// Bounds are group_id, first id and last id of the batch.
func (s *Settlement) Bounds() []string {
	return []string{s.Batch.GroupID.String(), pg.Int(s.Batch.FirstID), pg.Int(s.Batch.LastID)}
}

// Closing is a step about the ledger row and what is left of its events.
func (s *Settlement) Closing(sql string, affected *int64, more ...string) pg.Step {
	return pg.Step{SQL: s.Tables.SQL(sql), Args: append([]string{
		s.Ledger.name(s.Tables), s.Batch.GroupID.String(), pg.Int(s.Batch.LeaseNo), pg.Int(s.Batch.FirstID), pg.Int(s.Batch.LastID),
	}, more...), Affected: affected}
}

// HistorySQL is the history of the events of a step, as [Settlement.HistoryStep] set it before.
const HistorySQL = `nullif(current_setting('relay.history', true), '')`

// HistoryStep sets relay.history for the steps that bury the events of an outcome or give them a new group_id.
func (s *Settlement) HistoryStep(o *buffer.Outcome) pg.Step {
	return pg.SetLocal("relay.history", s.Batch.HistoryAfter(o, s.Ledger.base.Owner).String())
}

// history is the history of a whole batch as a parameter. NULL leaves the ledger row's as it is: nothing was tried.
func (s *Settlement) history(o *buffer.Outcome) string {
	if !o.Tried {
		return pg.Null
	}
	return s.Batch.HistoryAfter(o, s.Ledger.base.Owner).String()
}

// RegroupArgs are the parameters of a statement that gives some events of the batch a new group_id.
func (s *Settlement) RegroupArgs(o *buffer.Outcome, ids string) []string {
	origins := s.Batch.PartOrigins()
	return []string{
		s.Ledger.name(s.Tables), s.Batch.GroupID.String(), o.GroupID.String(), pg.Int(s.Batch.FirstID), pg.Int(s.Batch.LastID),
		ids, pg.Interval(o.After), s.Ledger.base.Owner,
		pg.Int(int64(o.Attempts)), pg.Int(int64(o.Outages)), pg.UUIDArray(origins), s.Ledger.base.DB.Text(o.Error), s.Ledger.base.DB.OptionalText(o.Address), pg.Int(int64(o.UnfinishedLeases)),
	}
}
