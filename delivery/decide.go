package delivery

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// policy decides which events are retried and when, and which become dead letters. It is pure.
type policy struct {
	maxAttempts        int
	neverBury, ordered bool
	backoff            Backoff
}

// decide turns a Send's result into outcomes:
//
//	accepted               delivered
//	unavailable            the batch waits; no attempt is counted
//	unavailable for it     halved, and the event that is alone waits; no attempt is counted
//	to be split            each part gets a group_id of its own and is due at once; a part
//	                       that is refused is buried or retried
//	per event              each event as its own verdict says
//	rejected as a whole    halved, until the bad event stands alone; alone it is buried,
//	                       at once if permanent, otherwise after maxAttempts
//
// At once means: if the sink accepts others. While it may refuse everything, a permanent rejection is one attempt
// of maxAttempts, and the events are held: they wait until the sink accepts something.
func (p *policy) decide(l *buffer.Lease, r result) []buffer.Outcome {
	switch {
	case r.split != nil:
		return p.split(l, r.split.Groups, r.others)
	case r.divide:
		return p.divideOutage(l, r.whole.err.Error())
	case r.each != nil:
		return p.decideEach(l, r.each, r.others)
	case r.whole.kind == accepted:
		return []buffer.Outcome{{Verdict: buffer.Delivered}}
	case r.whole.kind == rejected && l.Len() > 1 && (!r.hold || p.isLast(l.Attempts)):
		return p.halveRejected(l, r)
	case p.buries(r.whole, l.Attempts, r.others):
		return []buffer.Outcome{p.dead(nil, l.Attempts, r.whole)}
	}
	return []buffer.Outcome{p.retry(l, part{verdict: r.whole, attempts: l.Attempts, held: r.hold || p.holds(r.whole, r.others), alone: r.alone})}
}

// part is events that are sent again together.
type part struct {
	verdict  verdict // the first of theirs, or the one that waits longest
	attempts int     // before this one
	ids      []int64 // nil: all of the batch
	held     bool    // refused while the sink may refuse everything
	alone    bool    // asked to come back later, and others are not
}

// decideEach decides each event by its own verdict. Events that share a kind, an
// address and a count of attempts share an outcome, and so a new group_id.
func (p *policy) decideEach(l *buffer.Lease, each []verdict, others bool) []buffer.Outcome {
	attempts := p.attempts(l)
	waits := func(i int) bool { return each[i].kind != accepted && !p.buries(each[i], attempts(i), others) }
	shares := p.keepOrder(l.Events, waits, func(i, first int) bool {
		return i < first || each[i].permanent && p.buries(each[i], attempts(i), others)
	})
	var (
		outcomes     []buffer.Outcome
		delivered    []int64
		parts        []*part
		allTheirFate = true // none was accepted
	)
	for i := range each {
		id, first := l.Events[i].ID, shares(i)
		allTheirFate = allTheirFate && each[i].kind != accepted
		switch v := each[first]; {
		case v.kind == accepted:
			delivered = append(delivered, id)
		case p.buries(v, attempts(first), others):
			outcomes = append(outcomes, p.dead([]int64{id}, attempts(first), v))
		default:
			var one *part
			if parts, one = partFor(parts, v, attempts(first), p.holds(v, others)); first == i && v.retryAfter > one.verdict.retryAfter {
				one.verdict.err, one.verdict.retryAfter = v.err, v.retryAfter
			}
			one.ids = append(one.ids, id)
		}
	}
	if len(delivered) == len(each) {
		return []buffer.Outcome{{Verdict: buffer.Delivered}}
	}
	if len(delivered) > 0 {
		outcomes = append(outcomes, buffer.Outcome{Verdict: buffer.Delivered, IDs: delivered})
	}
	for _, one := range parts {
		if len(one.ids) == len(each) && allTheirFate { // the group_id stays, unless they were rejected
			one.ids = nil
		}
		outcomes = append(outcomes, p.retry(l, *one))
	}
	return outcomes
}

// maxParts is how many unavailable addresses a batch is split by. The rest waits together, for the
// sink as a whole.
const maxParts = 16

// partFor finds the part of events like this one, or adds it.
func partFor(parts []*part, v verdict, attempts int, held bool) ([]*part, *part) {
	find := func() *part {
		for _, one := range parts {
			if (one.verdict.kind == rejected) == (v.kind == rejected) && one.verdict.address == v.address && one.attempts == attempts && one.held == held {
				return one
			}
		}
		return nil
	}
	found := find()
	if found == nil && v.kind != rejected && len(parts) >= maxParts {
		v.address = ""
		found = find()
	}
	if found == nil {
		found = &part{verdict: v, attempts: attempts, held: held}
		parts = append(parts, found)
	}
	return parts, found
}

// buries reports whether a rejection is an event's last. others: the sink accepts others.
func (p *policy) buries(v verdict, attempts int, others bool) bool {
	return v.kind == rejected && !p.neverBury && (v.permanent && others || attempts+1 >= p.maxAttempts)
}

// holds reports whether an event waits that would be buried if the sink accepted others.
func (p *policy) holds(v verdict, others bool) bool {
	return v.kind == rejected && !p.neverBury && v.permanent && !others
}

// isLast reports whether the attempt that follows these is the last one.
func (p *policy) isLast(attempts int) bool { return !p.neverBury && attempts+1 >= p.maxAttempts }

func (p *policy) dead(ids []int64, attempts int, v verdict) buffer.Outcome {
	return buffer.Outcome{Verdict: buffer.Dead, IDs: ids, Attempts: attempts + 1, Error: v.err.Error()}
}

// retry counts an attempt if the part was rejected. After an outage it waits until the
// sink recovers, unless the sink said how long to wait: then nothing is sent sooner.
//
// After an answer that rejected the batch it gets a new group_id, because an API that stores its answers by
// idempotency key would repeat this one. After an outage it keeps the old one: nobody knows what happened. So does a
// batch that an earlier owner may have sent, while the sink may refuse everything.
func (p *policy) retry(l *buffer.Lease, one part) buffer.Outcome {
	keep := one.held && maybeSent(l)
	if one.verdict.kind == rejected && !one.verdict.mayBePoison && one.ids == nil && !keep {
		one.ids = l.IDs()
	}
	o := buffer.Outcome{Verdict: buffer.Retry, IDs: one.ids, GroupID: groupFor(l, one.ids), Attempts: one.attempts, Error: one.verdict.err.Error()}
	if one.verdict.kind == rejected {
		o.Attempts++
		o.After = p.backoff.After(o.Attempts)
		if one.held {
			o.Address = new(string)
		}
		if keep && one.ids == nil { // the next owner knows it, too
			o.UnfinishedLeases = 1
		}
		return o
	}
	o.Outages = l.Outages + 1
	o.After, o.Address = p.backoff.After(o.Outages), &one.verdict.address
	switch {
	case one.alone: // a pause of the sink for every try would hold up all others
		o.After = max(o.After, one.verdict.retryAfter)
		if one.verdict.retryAfter > 0 || one.verdict.address == "" {
			o.Address = nil
		}
	case one.verdict.retryAfter > 0:
		o.After, o.Address = afterAsked(o.After, one.verdict.retryAfter), nil
	}
	return o
}

// maxAfterAsked bounds the backoff of a batch whose sink said when to come back: an earlier outage may have raised it to many minutes. A sink that asks for
// a moment again and again, such as for one tenant, is not asked each time.
const maxAfterAsked = 30 * time.Second

// afterAsked returns when a batch is due whose sink asked for a pause.
func afterAsked(backoff, pause time.Duration) time.Duration {
	return max(pause, min(backoff, maxAfterAsked))
}

// maybeSent reports whether an earlier owner of the batch did not finish it, and may have sent it.
func maybeSent(l *buffer.Lease) bool { return l.UnfinishedLeases > 1 }

// groupFor keeps the group_id of a batch that stays whole.
func groupFor(l *buffer.Lease, ids []int64) uuid.UUID {
	if ids == nil {
		return l.GroupID
	}
	return buffer.NewGroupID()
}

// halve cuts a batch in two, each half due at once, with the attempts it had.
func (p *policy) halve(l *buffer.Lease, why string) []buffer.Outcome {
	ids := l.IDs()
	middle := (len(ids) + 1) / 2
	return p.carryAttempts(l, []buffer.Outcome{sendNow(l, ids[:middle], why), sendNow(l, ids[middle:], why)})
}

// halveRejected halves a batch that was rejected as a whole. An event that is now alone begins with no attempt: until then the rejections
// may have been about another event of its batch.
func (p *policy) halveRejected(l *buffer.Lease, r result) []buffer.Outcome {
	halves := p.halve(l, r.whole.err.Error())
	for i := range halves {
		if len(halves[i].IDs) == 1 {
			halves[i].Attempts = 0
		}
	}
	return halves
}

// divideOutage halves a batch that alone keeps meeting an outage. Its halves are not fresh: that they meet it again says
// nothing of the sink. Their backoff begins anew, or the search for the event would take as long as all outages before.
func (p *policy) divideOutage(l *buffer.Lease, why string) []buffer.Outcome {
	halves := p.halve(l, why)
	for i := range halves {
		halves[i].Outages = 1
	}
	return halves
}

// split makes a batch of each group.
func (p *policy) split(l *buffer.Lease, groups []sink.Group, others bool) []buffer.Outcome {
	if p.ordered {
		groups = splitIntoRuns(l, groups)
	}
	outcomes := make([]buffer.Outcome, 0, len(groups))
	for _, g := range groups {
		ids := make([]int64, len(g.Indexes))
		for i, at := range g.Indexes {
			ids[i] = l.Events[at].ID
		}
		if g.Err == nil {
			outcomes = append(outcomes, sendNow(l, ids, ""))
			continue
		}
		v := verdictOf(g.Err)
		v.kind = rejected
		if p.buries(v, l.Attempts, others) {
			outcomes = append(outcomes, p.dead(ids, l.Attempts, v))
		} else {
			outcomes = append(outcomes, p.retry(l, part{verdict: v, attempts: l.Attempts, ids: ids, held: p.holds(v, others)}))
		}
	}
	return p.carryAttempts(l, outcomes)
}

// sendNow makes a new batch of these events, due at once.
func sendNow(l *buffer.Lease, ids []int64, why string) buffer.Outcome {
	return buffer.Outcome{Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID(), Attempts: l.Attempts, Error: why}
}

// finishDelivered deletes the events that were delivered before; the rest gets a new group_id.
func (p *policy) finishDelivered(l *buffer.Lease, before []int64) []buffer.Outcome {
	was := make(map[int64]bool, len(before))
	for _, id := range before {
		was[id] = true
	}
	delivered, rest := []int64{}, []int64(nil)
	for _, id := range l.IDs() {
		if was[id] {
			delivered = append(delivered, id)
		} else {
			rest = append(rest, id)
		}
	}
	if len(rest) == 0 {
		return []buffer.Outcome{{Verdict: buffer.Delivered}}
	}
	return p.carryAttempts(l, []buffer.Outcome{{Verdict: buffer.Delivered, IDs: delivered}, sendNow(l, rest, "")})
}

// freeRest gives the events of a delivered batch that were not delivered a new group_id, ahead of the delete of the others,
// which may fail. It returns nil if all were delivered, or if those are gone.
func (p *policy) freeRest(l *buffer.Lease) []buffer.Outcome {
	outcomes := p.finishDelivered(l, l.Delivered)
	if len(outcomes) < 2 || len(outcomes[0].IDs) == 0 {
		return nil
	}
	return outcomes[1:]
}

// putOff lets events wait of a batch of which nothing was delivered, and which the database refuses to settle because of a dead
// letter. What is to be retried is retried; if order is kept, the batch stays whole instead. dead are the outcomes that need
// no other send, of all events in the batch with that group_id, which is uuid.Nil if there are none.
func (p *policy) putOff(l *buffer.Lease, outcomes []buffer.Outcome, refused *buffer.SettleError) (waiting, dead []buffer.Outcome, group uuid.UUID) {
	wait := buffer.Outcome{ // it was sent, so it is not fresh
		Verdict: buffer.Retry, GroupID: l.GroupID, Attempts: l.Attempts, Outages: max(1, l.Outages), After: refused.RetryIn, Error: refused.Error(),
	}
	var retried []buffer.Outcome
	for _, o := range outcomes {
		if o.Verdict == buffer.Dead {
			dead = append(dead, o)
			wait.IDs = append(wait.IDs, o.IDs...)
		} else {
			retried = append(retried, o)
		}
	}
	switch {
	case len(retried) == 0:
		wait.IDs = nil
		return []buffer.Outcome{wait}, dead, l.GroupID
	case len(dead) == 0 || p.ordered:
		wait.IDs = nil
		return []buffer.Outcome{wait}, nil, uuid.Nil
	}
	wait.GroupID = buffer.NewGroupID()
	return append(retried, wait), dead, wait.GroupID
}

// released puts back a batch that is not sent because the relay stops, due at once. A batch that
// another process may have sent must not count as fresh.
func released(l *buffer.Lease) []buffer.Outcome {
	outages := l.Outages
	if l.UnfinishedLeases > 1 {
		outages = max(1, outages)
	}
	return []buffer.Outcome{{Verdict: buffer.Retry, GroupID: l.GroupID, Attempts: l.Attempts, Outages: outages}}
}

// decideRejected decides on a batch of which the projection rejected some events: they become
// dead letters, and the rest is due at once. It returns nil if the batch should wait instead,
// because the projection failed for all of it and may itself be wrong. others: it does not fail for all events, because another one
// was accepted since it failed for these.
func (p *policy) decideRejected(l *buffer.Lease, others bool) []buffer.Outcome {
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
		case len(l.Events) == 0 && (!others || !failsForItsData(l)):
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
	if len(outcomes) == 0 || len(rest) == 0 {
		return outcomes
	}
	return append(outcomes, sendNow(l, rest, ""))
}

// failsForItsData reports whether each event that cannot be projected has an error of its own.
func failsForItsData(l *buffer.Lease) bool {
	return len(l.Rejected) > 0 && (l.ProjectErr == nil || l.Len() == 1 && errors.Is(l.ProjectErr, buffer.ErrEventData))
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

// ErrProjection is found in an outage that is not the sink's: the projection of a custom table failed.
var ErrProjection = errors.New("not sent, its projection failed")

func notSent(err error) error { return fmt.Errorf("%w: %w", ErrProjection, err) }
