package ledger

import (
	"context"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A DELETE that deletes nothing is no error to PostgreSQL: a BEFORE trigger returned NULL, a rule does something else
// instead, no row-level policy allows it. The events would be claimed again, and sent again, for ever. So a settle compares
// what it deleted with what it was to delete, which the command tags say. Fewer were deleted also if somebody deleted
// an event by hand, so only the events that are still there count.

// keptCheck is how a settle finds events that its DELETE left.
type keptCheck struct {
	ids     int            // to be deleted
	deleted []*int64       // by each step
	record  func() pg.Step // makes a delivered batch of those that are left, and returns their number
	kept    int64          // what it returned
	// In a delivered batch: those that no other transaction has locked, before the delete; those that are left.
	free map[int64]bool
	left []int64
}

func (k *keptCheck) begin() { k.kept, k.free, k.left = 0, map[int64]bool{}, nil }

// Deleting returns the step, whose rows affected are those of so many ids.
func (s *Settlement) Deleting(ids int, step pg.Step) pg.Step {
	step.Affected = new(int64)
	step.Prepare = step.Prepare && !s.Ledger.keeps.Load()
	s.kept.ids += ids
	s.kept.deleted = append(s.kept.deleted, step.Affected)
	return step
}

// Marking returns the step, which marks the events of so many ids instead of deleting them, and whose row says how many it marked.
func (s *Settlement) Marking(ids int, step pg.Step) pg.Step {
	step = s.Deleting(ids, step)
	marked := step.Affected
	step.Affected = nil
	step.Row = func(v [][]byte) error {
		*marked = pg.ReadInt8(v[0])
		return nil
	}
	return step
}

// RecordKept sets the step that makes a delivered batch of the events that the DELETE left.
func (s *Settlement) RecordKept(step func() pg.Step) { s.kept.record = step }

// KeptArgs are the parameters of such a step: buffer, group_id, lease_no, owner and when the delete is due again.
func (s *Settlement) KeptArgs() []string {
	return []string{
		s.Ledger.name(s.Tables), s.Batch.GroupID.String(), pg.Int(s.Batch.LeaseNo), s.Ledger.base.Owner, pg.Interval(buffer.KeptRetry(s.Batch.LeaseNo)),
	}
}

// Free is a step of a delivered batch that locks the events that no other transaction has locked, before the delete, and returns their ids.
func (s *Settlement) Free(step pg.Step) pg.Step {
	step.Row = func(v [][]byte) error {
		s.kept.free[pg.ReadInt8(v[0])] = true
		return nil
	}
	return step
}

// Left is the step that keeps a delivered batch, and returns the ids that are left.
func (s *Settlement) Left(step pg.Step) pg.Step {
	step.Row = func(v [][]byte) error {
		pg.ReadArray(v[0], func(id []byte) { s.kept.left = append(s.kept.left, pg.ReadInt8(id)) })
		return nil
	}
	return step
}

func (s *Settlement) keptError(kept int) error {
	s.Ledger.keeps.Store(true)
	return &buffer.KeptError{Table: s.Tables.Buffer, Kept: kept, Of: max(s.kept.ids, kept), Marked: s.Tables.Marks, RetryIn: buffer.KeptRetry(s.Batch.LeaseNo)}
}

// recordsKept reports whether the settle records in its own transaction what its DELETE leaves: once one has left
// events, because the statement would cost every settle something.
func (s *Settlement) recordsKept() bool { return s.kept.record != nil && s.Ledger.keeps.Load() }

func (s *Settlement) recordStep() pg.Step {
	step := s.kept.record()
	step.Row = func(v [][]byte) error {
		s.kept.kept = pg.ReadInt8(v[0])
		return nil
	}
	return step
}

// recordKept gives the events that the DELETE left a ledger row again, unless the settle did. It is a second transaction: a
// claim that comes before it sends the events once more, as after a kill between the two.
func (s *Settlement) recordKept(ctx context.Context, recorded bool) error {
	var deleted int64
	for _, n := range s.kept.deleted {
		deleted += *n
	}
	if !recorded && s.kept.record != nil && deleted < int64(s.kept.ids) {
		b := s.Ledger.base
		begin := b.DB.WriteTx(b.DB.StatementTimeout, "synchronous_commit", "off", "enable_seqscan", "off", "enable_bitmapscan", "off",
			"relay.fenced", "1", "relay.newest_at", s.newest, "relay.stamp_xid", s.stamp, "relay.sink", s.sink)
		begin.Row = func([][]byte) error {
			s.kept.begin()
			return nil
		}
		if err := b.DB.Transact(ctx, slices.Concat([]pg.Step{begin}, s.before, []pg.Step{s.recordStep()})...); err != nil {
			return b.Explain(ctx, "recording events that were not deleted", err)
		}
	}
	if s.kept.kept > 0 {
		return s.keptError(int(s.kept.kept))
	}
	return nil
}

// lockedOrKept returns why events of a delivered batch are left.
func (s *Settlement) lockedOrKept(ctx context.Context) error {
	kept := 0
	for _, id := range s.kept.left {
		if s.kept.free[id] {
			kept++
		}
	}
	if kept == 0 {
		return buffer.ErrLocked
	}
	err := s.keptError(kept)
	if putOffErr := s.Ledger.putOff(ctx, s.Batch, buffer.KeptRetry(s.Batch.LeaseNo), err); putOffErr != nil {
		return putOffErr
	}
	return err
}
