package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Settle is one round trip whose first statement is the fence: it touches the
// ledger row that group_id and lease_no name, and leaves in relay.fenced that there was
// one. Every statement after it asks relay.fenced, so an owner that lost its lease
// changes nothing. relay.by_range says how the batch's rows are found: '1' by the ids that
// are its members, ” by its group_id on them.
const fenceSQL = `
RETURNING set_config('relay.fenced', '1', true),
          set_config('relay.by_range', CASE WHEN members IS NULL THEN '' ELSE '1' END, true)`

// A batch put back to wait is nobody's, whatever its lease_no.
const (
	fenceDeleteSQL = `
DELETE FROM outbox_batches
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + fenceSQL

	// A marked batch keeps its row until its events are gone.
	fenceKeepSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp() + $4::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + fenceSQL

	fenceRetrySQL = `
UPDATE outbox_batches
SET state = 'waiting', unfinished_leases = 0, due_at = clock_timestamp() + $4::interval,
    attempts = $5::int, outages = $6::int, error = $7, address = $8
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + fenceSQL
)

// settlement is one Settle: of events, or of dead letters.
type settlement struct {
	ledger ledger
	table  *table
	batch  *buffer.Lease
	// What the steps answered.
	fenced bool
	closed int64
}

// run settles: work is what is done behind the fence.
func (s *settlement) run(ctx context.Context, o *outcomes.Set, work []pg.Step) error {
	// A settle that a crash forgets is done again under the same group_id, so it
	// need not wait for the disk, unless it made a new one.
	commit := "off"
	if !o.RetriesWhole() && len(o.Retry) > 0 {
		commit = "on"
	}
	b := s.ledger.b
	begin := b.db.WriteTx(b.db.StatementTimeout, "synchronous_commit", commit, "lock_timeout", pg.Milliseconds(s.table.lockTimeout),
		"enable_seqscan", "off", "enable_bitmapscan", "off", "plan_cache_mode", "force_generic_plan", "relay.fenced", "", "relay.by_range", "")
	begin.Row = func([][]byte) error {
		s.fenced = false
		return nil
	}
	// After a deadlock with the application it is not run again at once, which could
	// make the application the next victim: the caller marks the batch.
	err := b.db.RetryTx(ctx, append([]pg.Step{begin, s.fence(o)}, work...), pg.CodeSerialization)
	switch {
	case err != nil:
		return b.explain(ctx, "settling a batch", err)
	case !s.fenced:
		return buffer.ErrLeaseLost
	case s.batch.DeliveryRecorded() && !o.RetriesWhole() && s.closed == 0:
		return buffer.ErrLocked
	}
	return nil
}

func (s *settlement) fence(o *outcomes.Set) pg.Step {
	args := []string{s.ledger.name(s.table), s.batch.GroupID.String(), pg.Int(s.batch.LeaseNo)}
	sql := fenceDeleteSQL
	switch {
	case o.RetriesWhole():
		sql = fenceRetrySQL
		args = append(args, pg.Interval(o.All.After), pg.Int(int64(o.All.Attempts)), pg.Int(int64(o.All.Outages)),
			pg.Text(o.All.Error), pg.OptionalText(o.All.Address))
	case s.batch.DeliveryRecorded():
		sql = fenceKeepSQL
		args = append(args, pg.Interval(markedAgain))
	}
	return pg.Step{Prepare: true, SQL: s.table.sql(sql), Args: args, Row: func([][]byte) error {
		s.fenced = true
		return nil
	}}
}
