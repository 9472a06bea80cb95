package routing

import "github.com/outboxrelay/relay/outbox/buffer"

// DroppedOutcomes are the outcomes of a batch whose sink is dropped.
func DroppedOutcomes(batch *buffer.Lease, name string, as buffer.Dropped) []buffer.Outcome {
	all := []buffer.Outcome{{Verdict: buffer.Delivered}}
	if as != buffer.DroppedDead || batch.Len() == 0 {
		return all
	}
	delivered := map[int64]bool{}
	for _, id := range batch.Delivered {
		delivered[id] = true
	}
	dead, gone := buffer.Outcome{Verdict: buffer.Dead, Attempts: batch.Attempts, Error: "sink " + name + " was dropped"}, buffer.Outcome{Verdict: buffer.Delivered}
	for _, id := range batch.IDs() {
		if delivered[id] {
			gone.IDs = append(gone.IDs, id)
		} else {
			dead.IDs = append(dead.IDs, id)
		}
	}
	switch {
	case dead.IDs == nil:
		return all
	case gone.IDs == nil:
		return []buffer.Outcome{dead}
	}
	return []buffer.Outcome{gone, dead}
}
