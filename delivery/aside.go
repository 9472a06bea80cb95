package delivery

import (
	"github.com/outboxrelay/relay/outbox/buffer"
)

// setAside looks whether the batch, or a part of it, is for addresses that are
// known to be away. nil: send it. Else what becomes of it without being sent:
//
//   - a batch that was claimed before the sink as a whole was found away is put back
//     whole, and any while the sink asks for a pause;
//   - so is a batch for one address that is away, unless it is the trial;
//   - of a mixed batch the events are parted off that would take up a whole
//     Send's time; the rest goes on at once.
//
// None is an attempt, nor a further outage.
func (w *Worker) setAside(b *buffer.Lease) []buffer.Outcome {
	if pause, err := w.circuits.since(b.ClaimedLocal); err != nil {
		o := w.asideFor(b, nil, "")
		o.Error = aside + err.Error()
		if pause > 0 { // nothing comes sooner
			o.After, o.Address = max(w.config.Backoff.After(o.Outages), pause), nil
		}
		return []buffer.Outcome{o}
	}
	if w.addresser == nil || w.circuits.aways.Load() == 0 {
		return nil
	}
	if address, one := w.only(b); one {
		if w.circuits.try(address, w.config.SendTimeout) {
			return nil
		}
		return []buffer.Outcome{w.asideFor(b, nil, address)}
	}
	if w.config.Ordered {
		return w.asideInOrder(b)
	}
	away := map[string][]int64{}
	var addresses []string
	var rest []int64
	for i := range b.Events {
		id, address := b.Events[i].ID, w.addressOf(&b.Events[i])
		ids, known := away[address]
		if !known && (address == "" || len(addresses) == mostParts || !w.circuits.isAway(address)) {
			rest = append(rest, id)
			continue
		}
		if !known {
			addresses = append(addresses, address)
		}
		away[address] = append(ids, id)
	}
	if len(addresses) == 0 {
		return nil
	}
	parts := make([]buffer.Outcome, 0, len(addresses)+1)
	for _, address := range addresses {
		parts = append(parts, w.asideFor(b, away[address], address))
	}
	if len(rest) > 0 {
		parts = append(parts, buffer.Outcome{
			Verdict: buffer.Retry, IDs: rest, GroupID: buffer.NewGroupID(), Attempts: b.Attempts,
		})
	}
	return parts
}

// mostParts is how many addresses that are away a batch is divided by. Each part is
// a batch of its own from then on; where events have thousands of addresses those
// that are left wait together, for the sink as a whole.
const mostParts = 16

// aside begins the reason of what was not sent.
const aside = "not sent: "

func (w *Worker) asideFor(b *buffer.Lease, ids []int64, address string) buffer.Outcome {
	return buffer.Outcome{
		Verdict: buffer.Retry, IDs: ids, GroupID: groupFor(b, ids), Address: &address,
		// As long as can be: it is woken when the address is back, or for the trial.
		After: Backoff{w.config.Backoff.Max, w.config.Backoff.Max, 1}.After(1), Attempts: b.Attempts, Outages: max(1, b.Outages),
		Error: aside + "its address is away: " + address,
	}
}

// handedBack is what becomes of a batch that gets no turn, or no request, any more: as if it had not
// been claimed, and due at once. One that somebody else may have sent must not look like
// a fresh one.
func handedBack(b *buffer.Lease) []buffer.Outcome {
	outages := b.Outages
	if b.UnfinishedLeases > 1 {
		outages = max(1, outages)
	}
	return []buffer.Outcome{{Verdict: buffer.Retry, GroupID: b.GroupID, Attempts: b.Attempts, Outages: outages}}
}
