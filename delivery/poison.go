package delivery

import (
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// poisonDetector remembers the batches whose sends ended in an outage that they may have caused, a 5xx or a
// time-out, or of which an answer accepted nothing, a 403. Such an outage counts if, since the last one, the address accepted more than twice as many other
// batches as it did not: a server that answers every other request with a 502 is down, and no event must be
// buried for that. After confirmAfter of one kind the outage is a rejection of that batch, or divides it. Each process counts alone.
type poisonDetector struct {
	mu      sync.Mutex
	batches map[uuid.UUID]history
	tallies map[string]tally // by address, while batches is not empty
}

// history is that of one batch.
type history struct {
	n           int   // outages that counted, in a row of one kind
	notAccepted bool  // their kind
	at          tally // when the last one counted, included
	own         int   // the batch's outages since then that did not count
	since       time.Time
}

// tally counts what became of an address's sends.
type tally struct{ accepted, failed int }

const (
	confirmAfter = 3
	maxBatches   = 10_000 // remembered; more are an outage
	// historyExpires: another process may have sent the batch since.
	historyExpires = time.Hour
)

// record counts an outage of the batch and reports whether it is confirmed as the batch's own. notAccepted: its answer
// accepted nothing.
func (d *poisonDetector) record(groupID uuid.UUID, address string, notAccepted bool) (confirmed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.batches == nil || len(d.batches) >= maxBatches {
		d.batches, d.tallies = map[uuid.UUID]history{}, map[string]tally{}
	}
	now := d.tallies[address]
	last, again := d.batches[groupID]
	accepted, others := now.accepted-last.at.accepted, now.failed-last.at.failed-last.own
	now.failed++
	d.tallies[address] = now
	if again && accepted <= 2*others { // all batches meet the outage
		last.own++
		d.batches[groupID] = last
		return false
	}
	if !again {
		maps.DeleteFunc(d.batches, func(_ uuid.UUID, one history) bool { return time.Since(one.since) > historyExpires })
	}
	if last.notAccepted != notAccepted {
		last.n = 0
	}
	d.batches[groupID] = history{n: last.n + 1, notAccepted: notAccepted, at: now, since: time.Now()}
	return last.n+1 >= confirmAfter
}

// inherit confirms the parts of a confirmed batch at their next outage: halving would take very
// long otherwise.
func (d *poisonDetector) inherit(from uuid.UUID, parts []buffer.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.batches[from]
	delete(d.batches, from)
	for i := range parts {
		d.batches[parts[i].GroupID] = history{n: confirmAfter - 1, notAccepted: last.notAccepted, at: last.at, since: last.since}
	}
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
	if now, ok := d.tallies[address]; ok { // only those with a failure, to bound the map
		now.accepted++
		d.tallies[address] = now
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
