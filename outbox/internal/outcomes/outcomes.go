// Package outcomes validates and groups the outcomes of a batch before a buffer writes them.
package outcomes

import (
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Set is the outcomes of one batch by their verdict.
type Set struct {
	// All is the only outcome, if it is one for the whole batch; otherwise nil.
	All                    *buffer.Outcome
	Delivered, Dead, Retry []*buffer.Outcome
}

// Group validates outcomes: an outcome for the whole batch stands alone, each verdict is known,
// a retry of the whole batch keeps its group_id, and a retry of a part has a new one.
// The set points into outcomes.
func Group(batch *buffer.Lease, outcomes []buffer.Outcome) (s Set, err error) {
	if len(outcomes) == 0 {
		return s, errors.New("settling a batch: no outcome; expected at least one")
	}
	for i := range outcomes {
		one := &outcomes[i]
		if one.IDs == nil {
			if len(outcomes) > 1 {
				return s, fmt.Errorf("settling a batch: an outcome for the whole batch is one of %d; expected it alone", len(outcomes))
			}
			s.All = one
		}
		switch one.Verdict {
		case buffer.Delivered:
			s.Delivered = append(s.Delivered, one)
		case buffer.Dead:
			s.Dead = append(s.Dead, one)
		case buffer.Retry:
			if (one.IDs == nil) != (one.GroupID == batch.GroupID) {
				return s, fmt.Errorf("settling a batch: group_id of a retry of ids %v is %s; expected the batch's own, %s, for a retry of the whole batch and a new one for a part",
					one.IDs, one.GroupID, batch.GroupID)
			}
			s.Retry = append(s.Retry, one)
		default:
			return s, fmt.Errorf("settling a batch: verdict is %v; expected delivered, dead or retry", one.Verdict)
		}
	}
	return s, nil
}

// RetriesWhole reports whether the whole batch is to be sent again as it is.
func (s *Set) RetriesWhole() bool { return s.All != nil && s.All.Verdict == buffer.Retry }

// IDs returns the ids that were delivered and those that died.
func (s *Set) IDs(batch *buffer.Lease) (delivered, dead []int64) {
	of := func(outcomes []*buffer.Outcome) (ids []int64) {
		for _, one := range outcomes {
			if one.IDs == nil {
				return batch.IDs()
			}
			ids = append(ids, one.IDs...)
		}
		return ids
	}
	return of(s.Delivered), of(s.Dead)
}
