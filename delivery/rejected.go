package delivery

import (
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// decideRejected decides on a batch of which the projection rejected some events: they become
// dead letters, and the rest is due at once. It returns nil if the batch should wait instead,
// because the projection failed for all of it and may itself be wrong.
func (p *policy) decideRejected(l *buffer.Lease) []buffer.Outcome {
	switch {
	case len(l.Rejected) == 0:
		return nil
	case l.Len() > 1 && errors.Is(l.ProjectErr, buffer.ErrEventData):
		return p.halve(l, projectionFailed(l).Error())
	}
	var (
		outcomes []buffer.Outcome
		missing  []int64
		rest     []int64
	)
	for i := range l.Events {
		rest = append(rest, l.Events[i].ID)
	}
	for _, r := range l.Rejected {
		switch id := r.Event.ID; {
		case errors.Is(r.Err, buffer.ErrNotProjected):
			missing = append(missing, id)
		case len(l.Events) == 0:
			rest = append(rest, id)
		default:
			outcomes = append(outcomes, p.dead([]int64{id}, l.Attempts, verdict{kind: rejected, err: notSent(r.Err)}))
		}
	}
	dead := buffer.Outcome{Verdict: buffer.Dead, IDs: missing, Attempts: l.Attempts, Error: buffer.ErrNotProjected.Error()}
	switch len(missing) {
	case 0:
	case l.Len():
		dead.IDs = nil
		return []buffer.Outcome{dead}
	default:
		outcomes = append(outcomes, dead)
	}
	if len(outcomes) == 0 {
		return nil
	}
	return append(outcomes, sendNow(l, rest, ""))
}

// projectionFailed returns why nothing of the batch can be sent; nil if that is not known.
func projectionFailed(l *buffer.Lease) error {
	switch {
	case l.ProjectErr != nil:
		return notSent(l.ProjectErr)
	case len(l.Rejected) > 0:
		return notSent(l.Rejected[0].Err)
	}
	return nil
}

func notSent(err error) error { return fmt.Errorf("not sent, its projection failed: %w", err) }
