package delivery

import (
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// unsettled remembers what the sink accepted of batches whose settle failed. If the database could not be written until the
// lease was over, another worker of this process may take such a batch over, and must not send it again.
type unsettled struct {
	mu      sync.Mutex
	batches map[uuid.UUID]acceptedIDs
}

type acceptedIDs struct {
	ids []int64
	// dead are the outcomes of a batch that the database refused to settle.
	dead []buffer.Outcome
	at   time.Time
}

func (u *unsettled) remember(l *buffer.Lease, outcomes []buffer.Outcome) {
	ids := deliveredIDs(l, outcomes)
	if len(ids) == 0 {
		return
	}
	u.put(l.GroupID, acceptedIDs{ids: ids, at: time.Now()})
}

// putOff remembers the outcomes of a batch that waits because the database refused its dead letters, so that it need not be sent again.
func (u *unsettled) putOff(groupID uuid.UUID, dead []buffer.Outcome) {
	if len(dead) > 0 {
		u.put(groupID, acceptedIDs{dead: dead, at: time.Now()})
	}
}

// refused returns these outcomes; nil if none are known.
func (u *unsettled) refused(groupID uuid.UUID) []buffer.Outcome {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.batches[groupID].dead
}

func (u *unsettled) put(groupID uuid.UUID, one acceptedIDs) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.batches, func(_ uuid.UUID, one acceptedIDs) bool { return time.Since(one.at) > historyExpires }) // another process has it
	if u.batches == nil || len(u.batches) >= maxBatches {
		u.batches = map[uuid.UUID]acceptedIDs{}
	}
	u.batches[groupID] = one
}

// accepted returns the ids that the sink accepted of the batch; nil if nothing is known.
func (u *unsettled) accepted(groupID uuid.UUID) []int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.batches[groupID].ids
}

// settled drops a batch that is settled. One whose events were unknown was only put back.
func (u *unsettled) settled(l *buffer.Lease) {
	if eventsUnknown(l) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.batches, l.GroupID)
}

// eventsUnknown reports whether a batch was neither read nor listed.
func eventsUnknown(l *buffer.Lease) bool { return l.NotRead != nil && l.Len() == 0 }
