package delivery

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// askedDetector finds out whether the sink asks one batch, or one address, to come back later (a 429), and not everybody. Such an answer is one that any batch may get at any
// time. Each adds the logarithm of how unlikely it was, by the share of the other sends that failed since the last one: see evidence. Each process counts alone.
type askedDetector struct {
	mu   sync.Mutex
	of   map[askedKey]asked
	sent tally // while of is not empty
}

// askedKey is a batch, or an address.
type askedKey struct {
	groupID uuid.UUID
	address string
}

// asked is what a batch or an address has shown.
type asked struct {
	evidence float64
	seen     tally // when the last answer came, included
	since    time.Time
}

// enoughAsked is the evidence for a batch that is asked to come back later. Of 10,000 batches without fault one would have been asked as often in a row. To divide one
// costs requests, which are what such a sink has too many of. For an address enoughEvidence is enough: a pause of its own costs nothing.
var enoughAsked = math.Log(10_000)

// askedExpires is how long an answer is remembered: it may have asked for an hour.
const askedExpires = 4 * time.Hour

// record counts an answer, and reports whether it is about the batch, or its only address, "" if there are several or none, and not about the sink.
func (d *askedDetector) record(groupID uuid.UUID, address string) (batch, atAddress bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil || len(d.of) >= maxBatches {
		d.of, d.sent = map[askedKey]asked{}, tally{}
	}
	maps.DeleteFunc(d.of, func(_ askedKey, one asked) bool { return time.Since(one.since) > askedExpires })
	before := d.sent
	d.sent.failed++
	count := func(key askedKey, enough float64) bool {
		last, again := d.of[key]
		if again {
			last.evidence += evidence(before.accepted-last.seen.accepted, before.failed-last.seen.failed)
		}
		last.seen, last.since = d.sent, time.Now()
		d.of[key] = last
		return last.evidence >= enough
	}
	batch = count(askedKey{groupID: groupID}, enoughAsked)
	return batch, address != "" && count(askedKey{address: address}, enoughEvidence)
}

// knows reports whether the sink asks the batch alone, or its only address.
func (d *askedDetector) knows(groupID uuid.UUID, address string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of[askedKey{groupID: groupID}].evidence >= enoughAsked || address != "" && d.of[askedKey{address: address}].evidence >= enoughEvidence
}

// any reports whether an answer is remembered.
func (d *askedDetector) any() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.of) > 0
}

// failed counts a send with another failure.
func (d *askedDetector) failed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.of) > 0 {
		d.sent.failed++
	}
}

// accepted counts a send at the address, "" for the sink as a whole. An address that accepts events is not asked to come back.
func (d *askedDetector) accepted(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case address != "":
		delete(d.of, askedKey{address: address})
	case len(d.of) > 0:
		d.sent.accepted++
	}
}

// forget drops a batch that was accepted or rejected.
func (d *askedDetector) forget(groupID uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, askedKey{groupID: groupID})
}

// inherit has one more such answer suffice for a part of a batch, or two.
func (d *askedDetector) inherit(from uuid.UUID, parts []buffer.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, ok := d.of[askedKey{groupID: from}]
	if !ok || last.evidence < enoughAsked {
		return
	}
	delete(d.of, askedKey{groupID: from})
	last.evidence = enoughAsked - enoughEvidence
	for i := range parts {
		d.of[askedKey{groupID: parts[i].GroupID}] = last
	}
}
