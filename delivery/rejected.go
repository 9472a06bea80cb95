package delivery

import (
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// hasUnprojected reports whether the projection returned no row for some events.
func hasUnprojected(l *buffer.Lease) bool {
	if l.ProjectErr != nil {
		return false
	}
	for i := range l.Events {
		if l.Events[i].NoProjection {
			return true
		}
	}
	return false
}

// buryUnprojected buries the events for which there is nothing to send. The rest is due at
// once under a new group_id, because nobody knows whether it was sent before with them.
func buryUnprojected(l *buffer.Lease) []buffer.Outcome {
	dead := buffer.Outcome{Verdict: buffer.Dead, Attempts: l.Attempts, Error: buffer.NotProjected}
	var rest []int64
	for i := range l.Events {
		if l.Events[i].NoProjection {
			dead.IDs = append(dead.IDs, l.Events[i].ID)
		} else {
			rest = append(rest, l.Events[i].ID)
		}
	}
	if len(rest) == 0 {
		dead.IDs = nil
		return []buffer.Outcome{dead}
	}
	return []buffer.Outcome{dead, sendNow(l, rest, "")}
}

// projectionErr is why the batch, or the first such event, could not be projected; nil if
// all of it can be sent.
func projectionErr(l *buffer.Lease) error {
	if l.ProjectErr != nil {
		return l.ProjectErr
	}
	for i := range l.Events {
		if err := l.Events[i].ProjectErr; err != nil {
			return err
		}
	}
	return nil
}

// projectionResult stands for a Send's result where the projection failed. If it failed on
// some events, they are refused and the others need not wait. Otherwise the projection itself may
// be wrong; while other batches are delivered, the event is found by halving. Nothing was
// sent, whoever owned the batch before, unless the projection has changed since.
func projectionResult(l *buffer.Lease, err error) result {
	outage := result{whole: verdict{kind: unavailable, err: notProjected(err)}}
	switch {
	case errors.Is(l.ProjectErr, buffer.ErrDatabaseUnavailable):
		return outage
	case len(l.Events) < 2:
	case l.ProjectErr == nil:
		groups := make([]sink.Group, 1)
		for i := range l.Events {
			if err := l.Events[i].ProjectErr; err != nil {
				groups = append(groups, sink.Group{Indexes: []int{i}, Err: sink.Permanent(notProjected(err))})
				continue
			}
			groups[0].Indexes = append(groups[0].Indexes, i)
		}
		if len(groups[0].Indexes) > 0 {
			return result{split: &sink.SplitError{Groups: groups}}
		}
	case errors.Is(l.ProjectErr, buffer.ErrEventData):
		half := &sink.SplitError{Groups: make([]sink.Group, 2)}
		for i := range l.Events {
			g := &half.Groups[2*i/len(l.Events)]
			g.Indexes = append(g.Indexes, i)
		}
		return result{split: half}
	}
	outage.whole.mayBePoison = true
	return outage
}

func notProjected(err error) error { return fmt.Errorf("not sent, its projection failed: %w", err) }
