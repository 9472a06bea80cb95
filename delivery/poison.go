package delivery

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// poisonDetector remembers the batches whose sends ended in an outage that may be their
// own doing, a 5xx or a time-out. Such an outage is a strike if, since the last one, the
// address accepted more than twice as many other batches as it did not: a server
// that answers every other request with a 502 is down, and no event must die of that.
// After maxStrikes the outage is taken for a refusal of that batch.
//
// Each process counts for itself: a batch that goes from one to the other takes longer.
type poisonDetector struct {
	mu      sync.Mutex
	batches map[uuid.UUID]strikes
	tallies map[string]tally // by address, since there are strikes
}

// strikes are those of one batch.
type strikes struct {
	n     int
	at    tally // when the last was counted, itself included
	own   int   // the batch's sends since then that were not counted
	since time.Time
}

// tally counts what became of an address's sends.
type tally struct{ accepted, suspect int }

const (
	maxStrikes = 3
	maxBatches = 10_000 // remembered; more of them are no exception but an outage
	// strikesExpire is when strikes are forgotten: another process may have sent the batch.
	strikesExpire = time.Hour
)

// record counts an outage of the batch and reports whether it is confirmed as poison.
func (d *poisonDetector) record(groupID uuid.UUID, address string) (confirmed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.batches == nil || len(d.batches) >= maxBatches {
		d.batches, d.tallies = map[uuid.UUID]strikes{}, map[string]tally{}
	}
	now := d.tallies[address]
	last, again := d.batches[groupID]
	accepted, others := now.accepted-last.at.accepted, now.suspect-last.at.suspect-last.own
	now.suspect++
	d.tallies[address] = now
	if again && accepted <= 2*others { // all batches meet the outage
		last.own++
		d.batches[groupID] = last
		return false
	}
	if !again {
		d.expire()
	}
	d.batches[groupID] = strikes{n: last.n + 1, at: now, since: time.Now()}
	return last.n+1 >= maxStrikes
}

func (d *poisonDetector) expire() {
	for groupID, one := range d.batches {
		if time.Since(one.since) > strikesExpire {
			delete(d.batches, groupID)
		}
	}
}

// inherit makes the parts of a confirmed batch need no second strike: halving would take
// very long otherwise.
func (d *poisonDetector) inherit(from uuid.UUID, parts []buffer.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.batches[from]
	delete(d.batches, from)
	for i := range parts {
		d.batches[parts[i].GroupID] = strikes{n: maxStrikes - 1, at: last.at, since: last.since}
	}
}

// any reports whether a batch has strikes.
func (d *poisonDetector) any() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.batches) > 0
}

// accepted counts a send at the address, "" for the sink as a whole.
func (d *poisonDetector) accepted(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now, ok := d.tallies[address]; ok { // addresses are without number, so no others
		now.accepted++
		d.tallies[address] = now
	}
}

// forget drops a batch that was accepted, or refused.
func (d *poisonDetector) forget(groupID uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.batches, groupID)
	if len(d.batches) == 0 {
		d.tallies = nil
	}
}
