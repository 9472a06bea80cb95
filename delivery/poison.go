package delivery

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// poisonDetector remembers the batches whose sends ended in an outage that they may have caused, a 5xx or a
// time-out, or of which an answer accepted nothing, a 403. Such an outage counts if, since the last one, the address accepted more than twice as many other
// batches as it did not: a server that answers every other request with a 502 is down, and no event must be
// buried for that. Several bad batches would never count so, because their retries outnumber the others' sends: an outage counts as well if the batch has failed so often
// while others were accepted that a batch without fault would have been, by the share of the other sends that failed (see evidence). Then the outage is confirmed as a rejection of that batch, or divides it: after confirmAfter answers in a row,
// or after confirmUnknown outages, if it is not known of each what the sink accepted. Each process counts alone.
//
// The parts of a batch have new group_ids. An API that knows the old one, because it accepted the batch and its
// response was lost, would accept them again. So a send without a response is always repeated under the same group_id. An API that answers
// that it is still at the earlier send (inProgress) gets progressTakes for it.
type poisonDetector struct {
	mu      sync.Mutex
	batches map[uuid.UUID]history
	tallies map[tallyKey]tally // while batches is not empty
}

// tallyKey is what sends are counted by. A program of the configuration that fails before anything is sent has counts of its own: an outage of the
// sink says nothing about it.
type tallyKey struct {
	address   string
	inProgram bool
}

// outageKind is what an outage says of what the sink accepted of the batch.
type outageKind uint8

const (
	answered      outageKind = iota // a 5xx: nothing, but for a server that fails behind its commit
	notAccepted                     // a 403: nothing
	maybeAccepted                   // there is no response, so perhaps all of it
	inProgress                      // a 409: perhaps all of it soon
)

func (v *verdict) outageKind() outageKind {
	switch {
	case v.inProgress:
		return inProgress
	case v.maybeAccepted:
		return maybeAccepted
	case v.mayBePoison:
		return answered
	}
	return notAccepted
}

// history is that of one batch.
type history struct {
	n           int     // outages that counted, since notAccepted changed
	answers     int     // the last of them, in a row, that were answers
	notAccepted bool    // the answers are of this kind
	at          tally   // when the last one counted, included
	seen        tally   // when the last one came, included
	evidence    float64 // against the batch, of those since that did not count
	own         int     // the batch's outages since then that did not count
	since       time.Time
	began       time.Time // when the first outage came, counted or not
}

// tally counts what became of an address's sends.
type tally struct{ accepted, failed int }

const (
	confirmAfter   = 3
	confirmUnknown = 5
	maxBatches     = 10_000 // remembered, as many addresses; more are an outage
	// historyExpires: another process may have sent the batch since.
	historyExpires = time.Hour
	// progressTakes is how long a sink is believed that is still at an earlier send.
	progressTakes = time.Minute
)

// record counts an outage of the batch, which a program may have caused before anything was sent, and reports whether it is confirmed as the batch's own.
func (d *poisonDetector) record(groupID uuid.UUID, address string, kind outageKind, inProgram bool) (confirmed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.remembered(groupID)
	again := !last.since.IsZero()
	key := tallyKey{address, inProgram}
	now := d.tallies[key]
	accepted, others := now.accepted-last.at.accepted, now.failed-last.at.failed-last.own
	before := now
	now.failed++
	d.tallies[key] = now
	unknown := kind == maybeAccepted || kind == inProgress
	if unknown {
		last.answers = 0
	}
	if again && accepted <= 2*others { // all batches meet the outage, or several bad ones do
		last.evidence += evidence(before.accepted-last.seen.accepted, before.failed-last.seen.failed)
		last.seen, last.since = now, time.Now()
		if last.evidence < enoughEvidence {
			last.own++
			d.batches[groupID] = last
			return false
		}
	}
	if last.notAccepted != (kind == notAccepted) {
		last = history{notAccepted: kind == notAccepted, began: last.began}
	}
	last.n++
	if !unknown {
		last.answers++
	}
	last.at, last.seen, last.evidence, last.own, last.since = now, now, 0, 0, time.Now()
	if last.began.IsZero() {
		last.began = last.since
	}
	d.batches[groupID] = last
	if kind == inProgress && last.since.Sub(last.began) < progressTakes {
		return false
	}
	return last.answers >= confirmAfter || last.n >= confirmUnknown && !last.notAccepted
}

// evidence is the logarithm of how unlikely it is that a batch without fault fails, when so many other sends were accepted and failed since it last did. Without an accepted
// one there is none.
func evidence(accepted, failed int) float64 {
	if accepted == 0 {
		return 0
	}
	return -math.Log((float64(failed) + 0.5) / (float64(accepted+failed) + 0.5))
}

// enoughEvidence is that of one outage that counts: of 200 batches without fault one would have failed as often.
var enoughEvidence = math.Log(200)

// remembered returns the history of a batch, and forgets those that have expired.
func (d *poisonDetector) remembered(groupID uuid.UUID) history {
	if d.batches == nil || len(d.batches) >= maxBatches || len(d.tallies) >= maxBatches {
		d.batches, d.tallies = map[uuid.UUID]history{}, map[tallyKey]tally{}
	}
	last, again := d.batches[groupID]
	if !again {
		maps.DeleteFunc(d.batches, func(_ uuid.UUID, one history) bool { return time.Since(one.since) > historyExpires })
	}
	return last
}

// unknown notes an outage that the batch has not caused, after which nobody knows what the sink accepted.
func (d *poisonDetector) unknown(groupID uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if last, ok := d.batches[groupID]; ok {
		last.answers = 0
		d.batches[groupID] = last
	}
}

// inherit confirms the parts of a confirmed batch sooner: halving would take very long otherwise. The next answer suffices, or
// the second outage without one.
func (d *poisonDetector) inherit(from uuid.UUID, parts []buffer.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.batches[from]
	delete(d.batches, from)
	part := history{n: confirmAfter - 1, answers: confirmAfter - 1, notAccepted: last.notAccepted, at: last.at, seen: last.seen, since: last.since, began: last.began}
	if last.answers < confirmAfter {
		part.n, part.answers = confirmUnknown-2, 0
	}
	for i := range parts {
		d.batches[parts[i].GroupID] = part
	}
}

// blames reports whether the last answers were confirmed as the batch's own.
func (d *poisonDetector) blames(groupID uuid.UUID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.batches[groupID]
	return last.answers >= confirmAfter && !last.notAccepted
}

// any reports whether a batch is remembered.
func (d *poisonDetector) any() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.batches) > 0
}

// accepted counts a send at the address, "" for the sink as a whole.
func (d *poisonDetector) accepted(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range []tallyKey{{address, false}, {address, true}} {
		if now, ok := d.tallies[key]; ok { // only those with a failure, to bound the map
			now.accepted++
			d.tallies[key] = now
		}
	}
}

// forget drops a batch that was accepted or rejected.
func (d *poisonDetector) forget(groupID uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.batches, groupID)
	if len(d.batches) == 0 {
		clear(d.tallies)
	}
}
