package delivery

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// deferUnavailable returns what becomes of a batch that is not sent because the sink, or
// addresses of its events, are known to be unavailable; nil: send it.
//
//   - A batch that was claimed before the sink as a whole was found unavailable is deferred,
//     and any batch while the sink asks for a pause. So is one that was claimed before the
//     sink was found to refuse everything.
//   - A batch for one unavailable address is deferred, unless it is the half-open probe.
//   - From a mixed batch the events are split off that would take up a whole Send's time;
//     the rest is due at once.
//
// A deferral is neither an attempt nor a further outage.
func (w *Worker) deferUnavailable(l *buffer.Lease) []buffer.Outcome {
	if pause, err := w.breakers.pausedSince(l.ClaimedLocal); err != nil {
		o := w.deferred(l, nil, "")
		o.Error = "deferred: " + err.Error()
		if pause > 0 { // nothing is sent sooner
			o.After, o.Address = afterAsked(w.policy.backoff.After(o.Outages), pause), nil
		}
		return []buffer.Outcome{o}
	}
	if err := w.refusals.pausedSince(l); err != nil {
		o := w.deferred(l, nil, "")
		o.Error = "deferred: not sent after this refusal: " + err.Error()
		return []buffer.Outcome{o}
	}
	if w.addresser == nil || len(l.Events) == 0 || !w.breakers.any() {
		return nil
	}
	if address, one := w.onlyAddress(l); one {
		return w.deferProbe(l, address)
	}
	return w.deferParts(l)
}

// deferProbe returns what becomes of a batch for an address alone; nil: send it.
func (w *Worker) deferProbe(l *buffer.Lease, address string) []buffer.Outcome {
	ok, wait := w.breakers.allowProbe(address, w.config.SendTimeout)
	if ok {
		return nil
	}
	o := w.deferred(l, nil, address)
	if wait > 0 {
		o.After = wait
	}
	return []buffer.Outcome{o}
}

// passedOver lets a batch wait for a moment as it is, or until the sink accepts events again. The error is read later, and while another relay may have delivered
// events: it does not say that the sink accepts nothing.
func passedOver(l *buffer.Lease, wait time.Duration, why error) buffer.Outcome {
	return buffer.Outcome{
		Verdict: buffer.Retry, GroupID: l.GroupID, Attempts: l.Attempts, Outages: l.Outages, Address: new(string), After: wait,
		Error: "not sent, because another one is tried first after this: " + why.Error(),
	}
}

// tryOne makes a batch of one event, due at once, and lets the others wait like a batch that is passed over. The event is drawn: the bad one may be the first of each batch, or the last.
func tryOne(l *buffer.Lease, wait time.Duration, why error) []buffer.Outcome {
	ids := l.IDs()
	i := rand.IntN(len(ids))
	rest := passedOver(l, wait, why)
	rest.IDs, rest.GroupID = slices.Concat(ids[:i], ids[i+1:]), buffer.NewGroupID()
	return []buffer.Outcome{sendNow(l, ids[i:i+1], ""), rest}
}

// deferParts splits a batch by the unavailable addresses whose sends time out.
func (w *Worker) deferParts(l *buffer.Lease) []buffer.Outcome {
	var (
		addresses []string
		of        = make([]string, len(l.Events)) // "": send it
	)
	for i := range l.Events {
		address := w.addressOf(&l.Events[i])
		switch {
		case address == "":
		case slices.Contains(addresses, address):
			of[i] = address
		case len(addresses) < maxParts && w.breakers.hangs(address):
			addresses = append(addresses, address)
			of[i] = address
		}
	}
	if len(addresses) == 0 {
		return nil
	}
	shares := w.policy.keepOrder(l.Events, func(i int) bool { return of[i] != "" }, func(int, int) bool { return false })
	ids := map[string][]int64{}
	for i := range l.Events {
		address := of[shares(i)]
		ids[address] = append(ids[address], l.Events[i].ID)
	}
	outcomes := make([]buffer.Outcome, 0, len(ids))
	for _, address := range addresses {
		switch {
		case len(ids[address]) == len(l.Events):
			return w.deferProbe(l, address)
		case ids[address] != nil:
			outcomes = append(outcomes, w.deferred(l, ids[address], address))
		}
	}
	if rest := ids[""]; len(rest) > 0 {
		outcomes = append(outcomes, sendNow(l, rest, ""))
	}
	return outcomes
}

// deferred waits as long as possible: the batch is made due when the address recovers, or as a probe.
func (w *Worker) deferred(l *buffer.Lease, ids []int64, address string) buffer.Outcome {
	longest := Backoff{Initial: w.policy.backoff.Max, Max: w.policy.backoff.Max, Multiplier: 1}
	return buffer.Outcome{
		Verdict: buffer.Retry, IDs: ids, GroupID: groupFor(l, ids), Address: &address,
		After: longest.After(1), Attempts: l.Attempts, Outages: max(1, l.Outages),
		Error: deferredFor(address, w.breakers.why(address)),
	}
}

// deferredFor says why a batch is deferred, in the words of the batches that met the outage, so that all of them are counted together.
func deferredFor(address string, why error) string {
	switch {
	case why == nil:
		return "deferred: address unavailable: " + address
	case strings.Contains(why.Error(), address):
		return "deferred: " + why.Error()
	}
	return "deferred: address unavailable: " + address + ": " + why.Error()
}
