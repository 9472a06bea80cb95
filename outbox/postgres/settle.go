package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

// Settle is one round trip whose first statement is the fence: it touches the
// ledger row that group_id and lease_no name, and leaves in relay.holds whether
// there was one. Every statement after it asks relay.holds, so an owner that
// lost its lease changes nothing.

// A batch put back to wait is nobody's, whatever its lease_no.
const (
	fenceDeleteSQL = `
WITH held AS (
  DELETE FROM outbox_batches
  WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'
  RETURNING 1
) SELECT set_config('relay.holds', count(*)::text, true) FROM held`

	// A marked batch keeps its row until its events are gone.
	fenceKeepSQL = `
WITH held AS (
  UPDATE outbox_batches SET due_at = clock_timestamp() + $4::interval
  WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'
  RETURNING 1
) SELECT set_config('relay.holds', count(*)::text, true) FROM held`

	fenceRetrySQL = `
WITH held AS (
  UPDATE outbox_batches
  SET state = 'waiting', starts = 0, due_at = clock_timestamp() + $4::interval,
      attempts = $5::int, outages = $6::int, error = $7
  WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'
  RETURNING 1
) SELECT set_config('relay.holds', count(*)::text, true) FROM held`
)

const (
	deleteAllSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.holds') = '1' AND group_id = $1::uuid
  AND id BETWEEN $2::bigint AND $3::bigint`

	deleteSomeSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.holds') = '1' AND group_id = $1::uuid
  AND id = ANY ($2::bigint[])`

	// What the application has locked is left for the next time: in a deadlock
	// between the two it must not be the application that is shot.
	deleteFreeSQL = `
DELETE FROM outbox_events
WHERE id = ANY (ARRAY(
  SELECT id FROM outbox_events
  WHERE current_setting('relay.holds') = '1' AND group_id = $1::uuid AND id = ANY ($2::bigint[])
  ORDER BY id
  FOR UPDATE SKIP LOCKED))`

	closeLedgerSQL = `
DELETE FROM outbox_batches
WHERE current_setting('relay.holds') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint
  AND NOT EXISTS (
    SELECT FROM outbox_events e
    WHERE e.id BETWEEN $4::bigint AND $5::bigint AND e.group_id = $2::uuid)`

	burySQL = `
INSERT INTO outbox_dead_letters (pipeline, event_id, topic, key, payload, headers, created_at,
                                 group_id, attempts, error)
SELECT $1, e.id, e.topic, e.key, e.payload, e.headers, e.created_at, e.group_id, $5::int, $6
FROM outbox_events e
WHERE current_setting('relay.holds') = '1' AND e.group_id = $2::uuid
  AND e.id BETWEEN $3::bigint AND $4::bigint AND ($7::bigint[] IS NULL OR e.id = ANY ($7::bigint[]))
ON CONFLICT (pipeline, event_id, group_id) DO NOTHING`

	// A new group_id: the events change over, with a ledger row that names where
	// they came from.
	moveSQL = `
WITH moved AS (
  UPDATE outbox_events SET group_id = $3::uuid
  WHERE current_setting('relay.holds') = '1' AND group_id = $2::uuid
    AND id BETWEEN $4::bigint AND $5::bigint AND id = ANY ($6::bigint[])
  RETURNING id, created_at
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, starts,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $7::interval, $8, 0,
       $9::int, $10::int, count(*), min(id), max(id), min(created_at), $11::uuid[], $12
FROM moved HAVING count(*) > 0`
)

// markedAgain is how long a marked batch waits when its events are locked.
const markedAgain = time.Second

// Settle is described by buffertest.Buffer.
func (b *Buffer) Settle(ctx context.Context, batch *outbox.Batch, outcomes []outbox.Outcome) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	s := settlement{table: t, owner: b.config.Owner, batch: batch}
	steps, err := s.steps(outcomes)
	if err != nil {
		return err
	}
	if err := b.transact(ctx, steps...); err != nil {
		return b.explain(ctx, "settling a batch", err)
	}
	switch {
	case !s.held:
		return outbox.ErrLeaseLost
	case batch.Marked() && s.closed == 0:
		return outbox.ErrLocked
	}
	return nil
}

// settlement builds the steps of one Settle and holds what they answered.
type settlement struct {
	table  *table
	owner  string
	batch  *outbox.Batch
	held   bool
	closed int64
}

func (s *settlement) steps(outcomes []outbox.Outcome) ([]step, error) {
	var deleted []int64
	all, divided := false, false
	var work []step
	var retry *outbox.Outcome
	for i := range outcomes {
		o := &outcomes[i]
		if o.IDs == nil && len(outcomes) > 1 {
			return nil, errors.New("settling a batch: an outcome for all of it stands beside others")
		}
		all = o.IDs == nil
		switch o.Verdict {
		case outbox.Delivered:
			deleted = append(deleted, o.IDs...)
		case outbox.Dead:
			deleted = append(deleted, o.IDs...)
			work = append(work, s.bury(o))
		case outbox.Retry:
			if all {
				retry = o
				continue
			}
			divided = true
			work = append(work, s.move(o))
		default:
			return nil, fmt.Errorf("settling a batch: unknown verdict %v", o.Verdict)
		}
	}
	switch {
	case retry != nil:
	case s.batch.Marked():
		if all {
			deleted = s.batch.IDs()
		}
		work = append(work, s.deleteFree(deleted), s.closeLedger())
	case all:
		work = append(work, s.deleteAll())
	default:
		work = append(work, s.deleteSome(deleted))
	}
	// A settle that a crash forgets is done again under the same group_id, so it
	// need not wait for the disk, unless it made a new one.
	commit := "off"
	if divided {
		commit = "on"
	}
	begin := settings("synchronous_commit", commit, "lock_timeout", milliseconds(s.table.lockTimeout),
		"jit", "off", "enable_seqscan", "off")
	return append([]step{begin, s.fence(retry)}, work...), nil
}

func (s *settlement) fence(retry *outbox.Outcome) step {
	args := []string{s.table.buffer, s.batch.GroupID.String(), itoa(s.batch.LeaseNo)}
	sql := fenceDeleteSQL
	switch {
	case retry != nil:
		sql = fenceRetrySQL
		args = append(args, interval(retry.After), itoa(int64(retry.Attempts)), itoa(int64(retry.Outages)), text(retry.Error))
	case s.batch.Marked():
		sql = fenceKeepSQL
		args = append(args, interval(markedAgain))
	}
	return step{sql: s.table.sql(sql), args: args, row: func(v [][]byte) error {
		s.held = string(v[0]) == "1"
		return nil
	}}
}

func (s *settlement) bounds() []string {
	return []string{s.batch.GroupID.String(), itoa(s.batch.FirstID), itoa(s.batch.LastID)}
}

func (s *settlement) deleteAll() step {
	return step{sql: s.table.sql(deleteAllSQL), args: s.bounds()}
}

func (s *settlement) deleteSome(ids []int64) step {
	return step{sql: s.table.sql(deleteSomeSQL), args: []string{s.batch.GroupID.String(), idArray(ids)}}
}

func (s *settlement) deleteFree(ids []int64) step {
	return step{sql: s.table.sql(deleteFreeSQL), args: []string{s.batch.GroupID.String(), idArray(ids)}}
}

func (s *settlement) closeLedger() step {
	return step{
		sql: s.table.sql(closeLedgerSQL),
		args: append([]string{s.table.buffer, s.batch.GroupID.String(), itoa(s.batch.LeaseNo)},
			itoa(s.batch.FirstID), itoa(s.batch.LastID)),
		affected: &s.closed,
	}
}

func (s *settlement) bury(o *outbox.Outcome) step {
	ids := null
	if o.IDs != nil {
		ids = idArray(o.IDs)
	}
	args := append([]string{s.batch.Pipeline}, s.bounds()...)
	return step{sql: s.table.sql(burySQL), args: append(args, itoa(int64(o.Attempts)), text(o.Error), ids)}
}

func (s *settlement) move(o *outbox.Outcome) step {
	origins := append(append(make([]uuid.UUID, 0, len(s.batch.Origins)+1), s.batch.Origins...), s.batch.GroupID)
	return step{sql: s.table.sql(moveSQL), args: []string{
		s.table.buffer, s.batch.GroupID.String(), o.GroupID.String(), itoa(s.batch.FirstID), itoa(s.batch.LastID),
		idArray(o.IDs), interval(o.After), s.owner,
		itoa(int64(o.Attempts)), itoa(int64(o.Outages)), uuidArray(origins), text(o.Error),
	}}
}

// text makes an error fit for a text column: UTF-8 without NUL.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

const markSQL = `
UPDATE outbox_batches
SET state = 'delivered', delivered = $4::bigint[], due_at = clock_timestamp() + $5::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'`

// Mark is described by buffertest.Buffer.
func (b *Buffer) Mark(ctx context.Context, batch *outbox.Batch, delivered []int64) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	var held int64
	err = b.transact(ctx, settings("synchronous_commit", "off"), step{
		sql: t.sql(markSQL),
		args: []string{
			t.buffer, batch.GroupID.String(), itoa(batch.LeaseNo), idArray(delivered), interval(markedAgain),
		},
		affected: &held,
	})
	if err != nil {
		return b.explain(ctx, "marking a batch delivered", err)
	}
	if held == 0 {
		return outbox.ErrLeaseLost
	}
	return nil
}
