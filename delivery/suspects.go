package delivery

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// crashLoops reports whether the batch died alone too often to be sent again.
func crashLoops(l *buffer.Lease) bool {
	if len(l.Rejected) > 0 { // nothing was sent
		return false
	}
	if l.Len() > 1 {
		return l.DiedAlone() >= buffer.AloneBeforeHalving
	}
	return l.DiedAlone() >= buffer.AloneBeforeBurial
}

// crashLooping decides on a batch that keeps killing its workers: it is halved until the poison event is
// alone. That event is fenced, so that no other owner sends it, and buried unless the sink has it.
func (w *Worker) crashLooping(ctx context.Context, l *buffer.Lease) []buffer.Outcome {
	why := fmt.Sprintf("%d owners in a row did not finish this batch, %d while nothing else was sent", l.UnfinishedLeases-1, l.DiedAlone())
	one := part{verdict: verdict{kind: rejected, mayBePoison: true, err: errors.New(why)}, attempts: l.Attempts}
	switch {
	case l.Len() > 1:
		return w.policy.halve(l, why)
	case w.config.NeverBury:
		o := w.policy.retry(l, one)
		if l.NotRead == nil { // otherwise it is not read again
			o.UnfinishedLeases = buffer.SuspectAfter // it is tried alone again
		}
		return []buffer.Outcome{o}
	}
	if f, ok := w.sink.(sink.Fencer); ok && (l.NotRead == nil || !l.Projected) { // otherwise its address is unknown
		fenceCtx, cancel := context.WithTimeout(ctx, w.config.SendTimeout)
		defer cancel()
		delivered, err := callSink(w, ctx, fenceCtx, l, func() (bool, error) { return f.Fence(fenceCtx, &l.Batch) })
		switch {
		case err != nil:
			one.verdict = verdictOf(err)
			one.verdict.kind = unavailable
			return []buffer.Outcome{w.policy.retry(l, one)}
		case delivered:
			return []buffer.Outcome{{Verdict: buffer.Delivered}}
		}
	}
	return []buffer.Outcome{{Verdict: buffer.Dead, Attempts: l.Attempts, Error: why}}
}

// staySuspect lets the events of a suspect that was not sent be suspects further on: the batch with the count that it
// had, a part as one that did not die alone yet.
func staySuspect(l *buffer.Lease, outcomes []buffer.Outcome) {
	for i := range outcomes {
		o := &outcomes[i]
		switch unfinished := l.UnfinishedLeases - 1; {
		case o.Verdict != buffer.Retry || o.UnfinishedLeases > 0:
		case o.IDs == nil:
			o.UnfinishedLeases = unfinished
		default:
			o.UnfinishedLeases = min(unfinished, buffer.SuspectAfter)
		}
	}
}
