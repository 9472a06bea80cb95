package buffertest

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

func (m *model) settle(t *rapid.T) {
	o := m.owner(t)
	outcomes := m.outcomes(t, o)
	if m.fenced(t, "Settle", o, o.buffer.Settle(t.Context(), o.batch, outcomes)) {
		m.settled(t, o, outcomes)
	}
}

// outcomes draws an outcome for every event of the batch: delivered, dead, or one of two parts
// to retry.
func (m *model) outcomes(t *rapid.T, o *owner) []buffer.Outcome {
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
		if !slices.Contains(m.marked(o), id) {
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
			out.UnfinishedLeases = rapid.SampledFrom([]int{0, 0, 1, 2, 5}).Draw(t, "unfinished leases")
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

// settled changes the model as Settle must have changed the tables.
func (m *model) settled(t *rapid.T, o *owner, outcomes []buffer.Outcome) {
	was := m.live[o.batch.GroupID]
	delete(m.live, o.batch.GroupID)
	for _, out := range outcomes {
		ids := out.IDs
		if ids == nil {
			ids = o.batch.IDs()
		}
		if out.Verdict == buffer.Retry {
			l := &liveBatch{queue: o.queue, state: "waiting", unfinished: out.UnfinishedLeases, attempts: out.Attempts, outages: out.Outages, address: out.Address, due: later}
			if out.After == 0 {
				l.due = now
			}
			if out.GroupID == o.batch.GroupID {
				l.leaseNo, l.origins = was.leaseNo, was.origins
			} else {
				l.origins = append(slices.Clone(was.origins), o.batch.GroupID)
				m.members[out.GroupID] = ids
			}
			m.live[out.GroupID] = l
			for _, id := range ids {
				if o.queue {
					m.deadIn(t, o.batch.GroupID, id).queueGroup = out.GroupID
				} else {
					m.rows[id] = out.GroupID
				}
			}
			continue
		}
		for _, id := range ids {
			if o.queue {
				m.deadIn(t, o.batch.GroupID, id).notified = true
				continue
			}
			if m.fate[id] != "" {
				t.Fatalf("event %d is %s although it was %s", id, out.Verdict, m.fate[id])
			}
			m.fate[id] = out.Verdict.String()
			delete(m.rows, id)
			if out.Verdict == buffer.Dead {
				m.dead[buffer.DeadKey{EventID: id, GroupID: o.batch.GroupID}] = &deadLetter{}
			}
		}
	}
}
