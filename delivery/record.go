package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// record counts a Send's result, once, at the circuit breakers and the poison detector.
// The Send began then. It returns the result with the address that an outage of the whole batch is about. If
// the detector confirms that the batch is poison, the outage comes back as a rejection; if nothing of it was accepted for
// sure, as one for which the batch is divided; if only this event is asked to come back later, as one that says nothing of the sink.
func (w *Worker) record(ctx context.Context, l *buffer.Lease, r result, began time.Time) result {
	r = w.judge(ctx, l, r, began)
	switch {
	case r.split != nil: // nothing was sent
		return r
	case r.whole.kind != unavailable:
		return w.recordSend(ctx, l, r, began)
	case !r.whole.asked:
		if r.whole.mayBePoison || r.whole.notAccepted { // otherwise it may not have been sent
			w.asked.failed()
		}
		return w.recordSend(ctx, l, r, began)
	}
	address, one := w.onlyAddress(l)
	if r.each != nil && !one {
		return w.recordSend(ctx, l, r, began)
	}
	switch batch, atAddress := w.asked.record(l.GroupID, address); {
	case atAddress || batch && l.Len() == 1:
		return w.recordAlone(ctx, l, r, began)
	case batch:
		w.recordSend(ctx, l, r, began)
		return result{divide: true, whole: verdict{kind: unavailable, asked: true, err: r.whole.err}}
	}
	return w.recordSend(ctx, l, r, began)
}

// recordAlone records an answer that asks only this batch, or its address, to come back later: it says nothing of the sink. The result waits as a whole.
func (w *Worker) recordAlone(ctx context.Context, l *buffer.Lease, r result, began time.Time) result {
	if r.each != nil {
		for i := range r.each {
			r.each[i].own = true
		}
		whole := r.each[0]
		w.recordSend(ctx, l, r, began)
		r.whole, r.each = whole, nil
	}
	r.alone = true
	return r
}

// recordSend is record for what was sent.
func (w *Worker) recordSend(ctx context.Context, l *buffer.Lease, r result, began time.Time) result {
	if r.whole.kind == unavailable && (r.whole.mayBePoison || r.whole.notAccepted) {
		address, one := w.onlyAddress(l)
		if r.each == nil {
			if one && !w.answers(ctx) {
				address = ""
			}
			r.whole.address = address
		}
		switch confirmed := (one || r.each == nil) && w.poison.record(l.GroupID, address, r.whole.outageKind(), r.whole.inProgram); {
		case confirmed && r.whole.mayBePoison:
			why := fmt.Errorf("fails again and again, while others are accepted: %s", r.whole.err.Error())
			return result{poison: true, others: true, whole: verdict{kind: rejected, mayBePoison: true, err: why}}
		case confirmed && l.Len() > 1:
			return result{divide: true, whole: verdict{kind: unavailable, err: r.whole.err}}
		}
	} else if r.whole.maybeAccepted {
		w.poison.unknown(l.GroupID)
	}
	if r.hung { // the sink's Check may not return either
		r.whole.address, _ = w.onlyAddress(l)
	}
	deferred := l.Outages > 0
	if r.isOutage() {
		w.breakers.recordFailure(r.whole.address, deferred, r.whole, time.Since(began))
		return r
	}
	if r.each == nil && r.has(rejected) {
		deferred = false // a batch that is refused says only that the sink is there
	}
	// Unavailable addresses are an answer too, but no batch that waits for the sink is
	// made due because of it.
	if w.breakers.recordSuccess("", deferred && (r.has(accepted) || r.has(rejected))) {
		w.config.Log.InfoContext(ctx, "sink recovered")
	}
	if w.addresser != nil && (r.has(unavailable) || deferred || w.breakers.any() || w.poison.any() || w.asked.any()) {
		w.recordAddresses(ctx, l, &r, deferred, time.Since(began))
	}
	if r.has(accepted) {
		w.poison.accepted("")
		w.asked.accepted("")
	}
	if r.has(accepted) || !r.has(unavailable) {
		w.asked.forget(l.GroupID)
		w.poison.forget(l.GroupID) // the rest of it is sent under another group_id
	}
	return r
}

// judge counts what was accepted and refused, and adds to the result whether the sink accepts others.
func (w *Worker) judge(ctx context.Context, l *buffer.Lease, r result, began time.Time) result {
	if w.config.NeverBury {
		r.others = true
		return r
	}
	switch why, all := r.refusal(); {
	case all && why != nil:
		started := false
		if r.others, r.hold, started = w.refusals.refused(l, r.each != nil || r.split != nil, why, began); started {
			const then = ", trying one batch at a time; each refusal counts as one of max_attempts; "
			what, others := w.refusals.refuses()
			check := "check the sink's settings"
			if others {
				check = "if the events are not to blame, " + check
			}
			w.config.Log.ErrorContext(ctx, "sink refuses "+what+then+check, "error", why)
		}
		return r
	case why != nil: // a sink that says so of some events does not refuse everything
		r.others = true
		return r
	case r.split != nil || !r.has(accepted):
		return r
	}
	r.others = true
	ended, release := w.refusals.accepted(l, r.each == nil, began)
	if ended {
		w.config.Log.InfoContext(ctx, "sink accepts events again")
		w.breakers.recovered("") // what was deferred meanwhile
	}
	if release {
		w.config.Observer.Accepts()
	}
	if w.refusals.releaseUnprojected() {
		w.config.Observer.Recovered("")
	}
	return r
}

// recordAddresses counts the result at each address. One is unavailable only if none of its
// events got another answer; an event that was not sent says nothing of its address.
func (w *Worker) recordAddresses(ctx context.Context, l *buffer.Lease, r *result, deferred bool, took time.Duration) {
	type summary struct {
		outage       verdict
		unavailable  bool // no event got another answer
		someAccepted bool
	}
	all := map[string]*summary{}
	for i := range l.Events {
		v := &r.whole
		if r.each != nil {
			v = &r.each[i]
		}
		address := w.addressOf(&l.Events[i])
		if address == "" || v.kind == keyBlocked {
			continue
		}
		one := all[address]
		if one == nil {
			one = &summary{unavailable: true}
			all[address] = one
		}
		one.someAccepted = one.someAccepted || v.kind == accepted
		if v.kind != unavailable {
			one.unavailable = false
		} else if one.outage.err == nil || v.retryAfter > one.outage.retryAfter {
			one.outage = *v
		}
	}
	for address, one := range all {
		switch {
		case one.unavailable:
			w.breakers.recordFailure(address, deferred, one.outage, took)
		case w.breakers.recordSuccess(address, deferred):
			w.config.Log.InfoContext(ctx, "address recovered", "address", address)
		}
		if one.someAccepted {
			w.poison.accepted(address)
			w.asked.accepted(address)
		}
	}
}

// answers reports whether the sink as such is there.
func (w *Worker) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return w.Check(ctx) == nil
}

// addressOf returns the event's address, "" where there is only one or none.
func (w *Worker) addressOf(e *outbox.Event) string {
	if w.addresser == nil {
		return ""
	}
	address, _ := w.addresser.AddressOf(e)
	return address
}

// onlyAddress returns the address of a batch whose events all go to one; one is false when
// there are several, or only one for the whole sink.
func (w *Worker) onlyAddress(l *buffer.Lease) (address string, one bool) {
	if w.addresser == nil || len(l.Events) == 0 { // not projected: the addresses are unknown
		return "", false
	}
	address = w.addressOf(&l.Events[0])
	for i := range l.Events[1:] {
		if w.addressOf(&l.Events[1+i]) != address {
			return "", false
		}
	}
	return address, address != ""
}
