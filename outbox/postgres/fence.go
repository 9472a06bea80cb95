package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Settle is one round trip whose first statement is the fence: it touches the
// ledger row that group_id and lease_no name, and leaves in relay.holds that there was
// one. Every statement after it asks relay.holds, so an owner that lost its lease
// changes nothing. relay.ranged says how the batch's rows are found: '1' by the ids that
// are its members, ” by its group_id on them.
const holdsSQL = `
RETURNING set_config('relay.holds', '1', true),
          set_config('relay.ranged', CASE WHEN members IS NULL THEN '' ELSE '1' END, true)`

// A batch put back to wait is nobody's, whatever its lease_no.
const (
	fenceDeleteSQL = `
DELETE FROM outbox_batches
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + holdsSQL

	// A marked batch keeps its row until its events are gone.
	fenceKeepSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp() + $4::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + holdsSQL

	fenceRetrySQL = `
UPDATE outbox_batches
SET state = 'waiting', unfinished_leases = 0, due_at = clock_timestamp() + $4::interval,
    attempts = $5::int, outages = $6::int, error = $7, address = $8
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'` + holdsSQL
)

// settlement is one Settle: of events, or of dead letters.
type settlement struct {
	ledger ledger
	table  *table
	batch  *buffer.Lease
	// What the steps answered.
	held   bool
	closed int64
}

// run settles: work is what is done behind the fence.
func (s *settlement) run(ctx context.Context, o kinds, work []pg.Step) error {
	// A settle that a crash forgets is done again under the same group_id, so it
	// need not wait for the disk, unless it made a new one.
	commit := "off"
	if !o.back() && len(o.retry) > 0 {
		commit = "on"
	}
	b := s.ledger.b
	begin := b.db.WriteTx(b.db.StatementTimeout, "synchronous_commit", commit, "lock_timeout", pg.Milliseconds(s.table.lockTimeout),
		"enable_seqscan", "off", "enable_bitmapscan", "off", "plan_cache_mode", "force_generic_plan", "relay.holds", "", "relay.ranged", "")
	begin.Row = func([][]byte) error {
		s.held = false
		return nil
	}
	// After a deadlock with the application it is not run again at once, which could
	// make the application the next victim: the caller marks the batch.
	err := b.db.RetryTx(ctx, append([]pg.Step{begin, s.fence(o)}, work...), pg.CodeSerialization)
	switch {
	case err != nil:
		return b.explain(ctx, "settling a batch", err)
	case !s.held:
		return buffer.ErrLeaseLost
	case s.batch.DeliveryRecorded() && !o.back() && s.closed == 0:
		return buffer.ErrLocked
	}
	return nil
}

func (s *settlement) fence(o kinds) pg.Step {
	args := []string{s.ledger.name(s.table), s.batch.GroupID.String(), pg.Int(s.batch.LeaseNo)}
	sql := fenceDeleteSQL
	switch {
	case o.back():
		sql = fenceRetrySQL
		args = append(args, pg.Interval(o.all.After), pg.Int(int64(o.all.Attempts)), pg.Int(int64(o.all.Outages)),
			pg.Text(o.all.Error), pg.OptionalText(o.all.Address))
	case s.batch.DeliveryRecorded():
		sql = fenceKeepSQL
		args = append(args, pg.Interval(markedAgain))
	}
	return pg.Step{Prepare: true, SQL: s.table.sql(sql), Args: args, Row: func([][]byte) error {
		s.held = true
		return nil
	}}
}

// kinds are the outcomes by their verdict.
type kinds struct {
	// all: the only one there is, for all of the batch.
	all                    *buffer.Outcome
	delivered, dead, retry []*buffer.Outcome
}

func sortOutcomes(outcomes []buffer.Outcome) (o kinds, err error) {
	for i := range outcomes {
		one := &outcomes[i]
		if one.IDs == nil {
			if len(outcomes) > 1 {
				return o, errors.New("settling a batch: an outcome for all of it stands beside others")
			}
			o.all = one
		}
		switch one.Verdict {
		case buffer.Delivered:
			o.delivered = append(o.delivered, one)
		case buffer.Dead:
			o.dead = append(o.dead, one)
		case buffer.Retry:
			o.retry = append(o.retry, one)
		default:
			return o, fmt.Errorf("settling a batch: unknown verdict %v", one.Verdict)
		}
	}
	return o, nil
}

// back tells that all of the batch is to be sent again as it is.
func (o *kinds) back() bool { return o.all != nil && o.all.Verdict == buffer.Retry }

// ids are those that were delivered and those that died.
func (o *kinds) ids(b *buffer.Lease) (delivered, dead []int64) {
	of := func(outcomes []*buffer.Outcome) (ids []int64) {
		for _, one := range outcomes {
			if one.IDs == nil {
				return b.IDs()
			}
			ids = append(ids, one.IDs...)
		}
		return ids
	}
	return of(o.delivered), of(o.dead)
}
