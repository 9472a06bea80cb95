package buffertest

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

func (w *world) settle(t *rapid.T) {
	o := w.owner(t)
	outcomes := w.outcomes(t, o)
	if w.fenced(t, "Settle", o, o.buffer.Settle(t.Context(), o.batch, outcomes)) {
		w.settled(t, o, outcomes)
	}
}

// outcomes draws one for every event of the batch: delivered, dead, or one of
// two parts to be sent again.
func (w *world) outcomes(t *rapid.T, o *owner) []buffer.Outcome {
	const toDeliver, toBury, toRetry, toRetryToo, fates = 0, 1, 2, 3, 4
	mixture := rapid.SampledFrom([][]int{
		{toDeliver},
		{toBury},
		{toRetry},
		{toRetry, toRetryToo},
		{toDeliver, toRetry},
		{toDeliver, toBury, toRetry, toRetryToo},
	}).Draw(t, "mixture")
	var parts [fates][]int64
	for _, id := range o.batch.IDs() {
		fate := toDeliver
		if !slices.Contains(w.marked(o), id) {
			fate = rapid.SampledFrom(mixture).Draw(t, "fate")
		}
		if fate == toBury && o.queue {
			fate = toRetry
		}
		parts[fate] = append(parts[fate], id)
	}
	var outcomes []buffer.Outcome
	for fate, ids := range parts {
		if len(ids) == 0 {
			continue
		}
		out := buffer.Outcome{Verdict: buffer.Delivered, IDs: ids}
		switch fate {
		case toBury:
			out.Verdict, out.Attempts, out.Error = buffer.Dead, rapid.IntRange(1, 9).Draw(t, "attempts"), "refused"
		case toRetry, toRetryToo:
			out.Verdict, out.GroupID, out.Error = buffer.Retry, buffer.NewGroupID(), "busy"
			out.Attempts, out.Outages = rapid.IntRange(0, 9).Draw(t, "attempts"), rapid.IntRange(0, 9).Draw(t, "outages")
			out.After = rapid.SampledFrom([]time.Duration{0, lease}).Draw(t, "after")
			if out.Outages > 0 {
				out.Address = rapid.SampledFrom([]*string{nil, text(""), text("a"), text("b")}).Draw(t, "address")
			}
		}
		if len(ids) == len(o.batch.Events) && rapid.Bool().Draw(t, "as a whole") {
			out.IDs = nil
			if out.Verdict == buffer.Retry {
				out.GroupID = o.batch.GroupID
			}
		}
		outcomes = append(outcomes, out)
	}
	return outcomes
}

// settled does to the model what Settle must have done to the tables.
func (w *world) settled(t *rapid.T, o *owner, outcomes []buffer.Outcome) {
	was := w.live[o.batch.GroupID]
	delete(w.live, o.batch.GroupID)
	for _, out := range outcomes {
		ids := out.IDs
		if ids == nil {
			ids = o.batch.IDs()
		}
		if out.Verdict == buffer.Retry {
			l := &liveBatch{queue: o.queue, state: "waiting", attempts: out.Attempts, outages: out.Outages, address: out.Address, due: later}
			if out.After == 0 {
				l.due = now
			}
			if out.GroupID == o.batch.GroupID {
				l.leaseNo, l.origins = was.leaseNo, was.origins
			} else {
				l.origins = append(slices.Clone(was.origins), o.batch.GroupID)
				w.members[out.GroupID] = ids
			}
			w.live[out.GroupID] = l
			for _, id := range ids {
				if o.queue {
					w.deadIn(t, o.batch.GroupID, id).queueGroup = out.GroupID
				} else {
					w.rows[id] = out.GroupID
				}
			}
			continue
		}
		for _, id := range ids {
			if o.queue {
				w.deadIn(t, o.batch.GroupID, id).notified = true
				continue
			}
			if w.fate[id] != "" {
				t.Fatalf("event %d is %s although it was %s", id, out.Verdict, w.fate[id])
			}
			w.fate[id] = out.Verdict.String()
			delete(w.rows, id)
			if out.Verdict == buffer.Dead {
				w.dead[buffer.DeadKey{EventID: id, GroupID: o.batch.GroupID}] = &deadLetter{}
			}
		}
	}
}
