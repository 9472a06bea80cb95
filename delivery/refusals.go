package delivery

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// refusals knows whether the sink accepts events at all. An event that was refused alone for good is to blame only if
// the sink accepted another one in a send that began after that. A sink that refuses everything is probably set up
// wrong: a wrong key that is answered with 400, a wrong path. What was accepted before a refusal proves nothing: the key
// may just have expired.
//
// The search: of the first batch that is refused as a whole, one half after the other is halved, down to an event
// alone (the path). The other halves are sent once and not halved. So a sink that refuses everything is found out
// with 2*ceil(log2(batch))+1 requests, and an event alone is among them. What is refused meanwhile is held: it
// counts an attempt and waits. After a success everything held is decided on, without another request, unless the
// sink refused events of several batches meanwhile: then it may have been wrong, and is asked again.
//
// All of the sink counts, not each address: with {key} in a URL, an event may be the only one of its address.
// Each process counts alone.
type refusals struct {
	mu         sync.Mutex
	tries      tries
	acceptedAt time.Time // when the last send began of which an event was accepted
	row        int       // refusals since then that no success explains
	rowSince   time.Time // when the first of them came
	rowOf      uuid.UUID // the batch that the first of them was a part of
	several    bool      // not all of them were
	events     eventSet  // those refused
	saidEvery  bool      // began was reported of every event
	doubtedAt  time.Time // when the sink last accepted an event after it had refused several batches
	batches    map[uuid.UUID]refusal
	search     search
	path       uuid.UUID // the batch to be halved; zero: none
	pathAt     time.Time // when it was last refused or divided
	pathSent   bool      // its send is under way
	alone      bool      // an event alone is among those refused
	afterAlone bool      // and something else was refused after it
	enough     int       // so many refusals in a row make it clear
	refusing   bool
	since      time.Time
	held       bool      // batches are held since the last success
	waitsAt    time.Time // when a refused batch was last put back to wait
	last       error

	projectedAt time.Time // when the last batch was leased of which an event was accepted: its projection worked then
	// unprojected are the batches of which the projection rejected each event, and when it first did; unprojectedHeld: some wait that no
	// success has made due since.
	unprojected     map[uuid.UUID]time.Time
	unprojectedHeld bool
}

// refusal is that of a batch, or of the batch that it was a part of.
type refusal struct {
	at time.Time
	// otherAt is when it was known that the sink had accepted another batch, in a send that began after this refusal; zero: not known.
	otherAt time.Time
	root    uuid.UUID // the batch that it was a part of at first
	held    bool
	// alone: its event was, or each of its events was named.
	alone bool
	// sibling is the other half of the batch that was halved; lastLeft: it was accepted, so the bad event is in this one.
	sibling  uuid.UUID
	lastLeft bool
	// answer is what the sink said of this batch, which is held; nil: it is asked again. sum is that of the contents of which it said so.
	answer *result
	sum    uint64
}

const (
	// pathLost is how long the search waits for the batch to be halved, which an outage or another process may keep.
	pathLost = 15 * time.Second
	// acceptedLately: a sink that accepted an event since then is not said to refuse every event. That its key expired is not excluded.
	acceptedLately = time.Minute
)

// accepted counts a send that began then and of which an event was accepted, or all of the batch. ended reports whether the sink
// refused everything until now; release: batches are held that can be decided on. A batch that may have been sent before proves nothing of the others.
func (d *refusals) accepted(l *buffer.Lease, all bool, began time.Time) (ended, release bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.batches[l.GroupID]; !known && l.Attempts == 0 {
		d.search.accepted()
	}
	changedMind := false // the sink refused exactly these events, and no bad one was among them
	if half, ok := d.batches[l.GroupID]; ok && all {
		changedMind = half.held && !half.lastLeft
		delete(d.batches, l.GroupID)
		if other, ok := d.batches[half.sibling]; ok && !changedMind {
			other.lastLeft, release = true, other.held
			d.batches[half.sibling] = other
		}
	}
	if l.ClaimedLocal.After(d.projectedAt) {
		d.projectedAt = l.ClaimedLocal
	}
	if l.MaybeSent { // the next try may be another
		d.tries.now()
		return false, release
	}
	if began.After(d.acceptedAt) {
		d.acceptedAt = began
	}
	for id, one := range d.batches {
		if one.otherAt.IsZero() && !began.Before(one.at) {
			one.otherAt = time.Now()
			d.batches[id] = one
		}
	}
	if d.row > 0 && began.Before(d.rowSince) { // the sink may have changed its mind since
		return false, release
	}
	ended, release = d.refusing, d.held || release
	doubted := ended || d.several || d.afterAlone || changedMind // what it refused it may accept now
	if doubted {
		d.doubtedAt = time.Now()
	}
	d.held = false
	for id, one := range d.batches {
		d.held = d.held || release && one.held && !one.lastLeft && one.at.After(began)
		if doubted {
			one.answer = nil
			d.batches[id] = one
		}
	}
	d.row, d.several, d.path, d.pathSent, d.alone, d.afterAlone, d.enough, d.refusing = 0, false, uuid.Nil, false, false, false, 0, false
	d.tries.end()
	d.events, d.saidEvery = eventSet{}, false
	return ended, release
}

// refused counts a batch of which nothing was accepted and something was refused for good. others reports whether
// the sink accepts others, so that the events are to blame; hold: the batch must not be halved; began: from
// now on the sink refuses everything, or it is clear from now on that these are not a few events.
func (d *refusals) refused(l *buffer.Lease, named bool, why error, sent time.Time) (others, hold, began bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, n := time.Now(), l.Len()
	before, known := d.batches[l.GroupID]
	alone := n == 1 || named
	d.search.refused(known, n)
	// Not the sibling of a bad event: the sink may have changed its mind while the batch was halved.
	// Nor one whose send, begun at sent, was under way when the other one was accepted.
	if before.lastLeft || known && !before.otherAt.IsZero() && !sent.Before(before.otherAt) && (!alone || before.alone) {
		return true, false, false
	}
	if d.row++; d.row == 1 {
		d.rowSince, d.rowOf = now, before.rootOf(l)
	}
	d.afterAlone = d.alone
	d.several = d.several || d.rowOf != before.rootOf(l)
	d.events.add(l)
	d.last = why
	switch {
	case alone:
		d.alone, d.enough, hold = true, max(d.enough, openAfter), true
		if l.Searched {
			d.enough = max(d.enough, d.search.requests(n))
		}
	case maybeSent(l):
		hold = true
	case l.Searched: // all that is refused is halved
		d.path, d.pathAt, d.enough = l.GroupID, now, max(d.enough, d.search.requests(n))
	case d.path == uuid.Nil, d.path != l.GroupID && !d.alone && !d.pathSent && now.Sub(d.pathAt) > pathLost:
		d.path, d.pathAt, d.enough = l.GroupID, now, max(d.enough, requestsFor(n))
	default:
		hold = d.path != l.GroupID
	}
	if d.path == l.GroupID {
		d.pathAt = now
	}
	// One that was held and is refused again had time enough to see a success.
	if !d.refusing && (before.held && d.row > 1 || d.alone && d.row >= d.enough) {
		d.refusing, d.since, began = true, now, true
	}
	if every := d.several && d.events.many(); d.refusing && every && !d.saidEvery {
		d.saidEvery, began = true, true
	}
	switch {
	case !d.paused():
	case !alone && d.onPath(l.GroupID, before.rootOf(l)): // the other parts are the next tries, at once: they are few
		d.tries.now()
	default:
		d.tries.refused(now)
	}
	return false, hold, began
}

// paused reports whether one batch at a time is tried: the sink refuses everything, or so it seems and the
// search has not come to an event alone.
func (d *refusals) paused() bool { return d.refusing || d.enough > 0 && d.row >= d.enough }

// requestsFor is how many find a single event of a batch of n, with one for each half beside the path.
func requestsFor(n int) int { return 2*bits.Len(uint(n-1)) + 1 } //nolint:gosec // n is positive

// searching reports whether the search goes on: it is not clear yet that the sink refuses everything. first: no other batch is sent meanwhile.
func (d *refusals) searching() (goesOn, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.refusing, !d.refusing && d.paused()
}

// takesAll reports whether the sink may get any number of batches; atOnce: at the same time, because they are not sent and searched one by one.
func (d *refusals) takesAll() (all, atOnce bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all = !d.paused()
	return all, all && !d.search.oneByOne()
}

// rootOf returns the batch that this one was a part of at first.
func (one refusal) rootOf(l *buffer.Lease) uuid.UUID {
	if one.root == uuid.Nil {
		return l.GroupID
	}
	return one.root
}

// onPath reports whether a batch is to be halved, or was the other half of such a one while the search for an event alone goes on.
func (d *refusals) onPath(id, root uuid.UUID) bool {
	return id == d.path || !d.alone && d.path != uuid.Nil && d.batches[d.path].root == root
}

// remember keeps, before a settle, which batches the refused one becomes. Its send began then.
//
// halved is the batch if it was; otherwise nil.
func (d *refusals) remember(l *buffer.Lease, r *result, outcomes []buffer.Outcome, began time.Time) (halved *Halved) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.batches == nil || len(d.batches) >= maxBatches {
		d.batches = map[uuid.UUID]refusal{}
	}
	now := time.Now()
	was := d.batches[l.GroupID]
	root := was.rootOf(l)
	delete(d.batches, l.GroupID)
	for i := range outcomes {
		o := &outcomes[i]
		if o.Verdict == buffer.Retry && o.Outages == 0 && o.After > 0 {
			d.waitsAt = now
		}
		switch {
		case o.Verdict != buffer.Retry:
		case isHeld(o):
			part := refusal{at: now, root: root, held: true, alone: l.Len() == 1 || r.each != nil || r.split != nil}
			if o.GroupID != l.GroupID && !began.Before(d.doubtedAt) {
				part.answer, part.sum = r.of(l, o.IDs), sumOf(l, o.IDs)
			}
			if other, ok := d.batches[was.sibling]; ok && len(outcomes) == 1 {
				other.sibling = o.GroupID
				d.batches[was.sibling] = other
				part.sibling = was.sibling
			}
			part.lastLeft = was.lastLeft
			d.batches[o.GroupID], d.held = part, true
		case r.each == nil:
			half := refusal{at: now, root: root}
			if r.split == nil && len(outcomes) == 2 {
				half.sibling, halved = outcomes[1-i].GroupID, &Halved{l.Len()}
			}
			d.batches[o.GroupID] = half
			if i == 0 && d.path == l.GroupID {
				d.path, d.pathAt = o.GroupID, now
			}
		}
	}
	return halved
}

// heldSince reports whether a batch was refused and put back to wait since then. One that is refused again and again is so at least
// every maximal backoff.
func (d *refusals) heldSince(t time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waitsAt.After(t)
}

// isHeld reports whether the events wait because the sink refuses everything.
func isHeld(o *buffer.Outcome) bool {
	return o.Verdict == buffer.Retry && o.Outages == 0 && o.Address != nil
}

// decided returns what the sink said of a held batch, if it is clear by now that the sink accepts others.
// Then it need not be asked again. Otherwise nil.
func (d *refusals) decided(l *buffer.Lease) *result {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.batches[l.GroupID]
	switch {
	case one.answer == nil, one.answer.each != nil && len(one.answer.each) != len(l.Events):
		return nil
	case one.sum != sumOf(l, nil): // somebody has repaired a row
		return nil
	case one.lastLeft, !d.acceptedAt.Before(one.at):
		r := *one.answer
		r.others = true
		return &r
	}
	return nil
}

var sumSeed = maphash.MakeSeed()

// sumOf returns a hash of what is sent of events of a batch, nil for all: a custom table is projected again at each attempt.
func sumOf(l *buffer.Lease, ids []int64) uint64 {
	var h maphash.Hash
	h.SetSeed(sumSeed)
	part := func(text []byte) {
		maphash.WriteComparable(&h, len(text))
		_, _ = h.Write(text) // never fails
	}
	for i := range l.Events {
		e := &l.Events[i]
		if ids != nil && !slices.Contains(ids, e.ID) {
			continue
		}
		maphash.WriteComparable(&h, e.ID)
		maphash.WriteComparable(&h, e.Key == nil)
		if e.Key != nil {
			part([]byte(*e.Key))
		}
		part([]byte(e.Topic))
		part(e.Payload)
		part(e.Headers)
	}
	return h.Sum64()
}

// onlyAsWhole reports whether each refusal of the batch was one of the whole batch, as far as this process knows. None of its events was
// named then, so none has an attempt of its own.
func (d *refusals) onlyAsWhole(groupID uuid.UUID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	one, known := d.batches[groupID]
	return known && !one.alone
}

// overdue reports whether the sink accepted events while the batch that is held by one of the outcomes was settled.
func (d *refusals) overdue(outcomes []buffer.Outcome) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range outcomes {
		if isHeld(&outcomes[i]) {
			if one, ok := d.batches[outcomes[i].GroupID]; ok && (one.lastLeft || !d.acceptedAt.Before(one.at)) {
				return true
			}
		}
	}
	return false
}

// allow returns how many batches may be claimed: any number, 1 as a try or to be passed over, or 0.
func (d *refusals) allow() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.paused() {
		return d.search.allow(time.Now())
	}
	return d.tries.allow(time.Now())
}

// pausedSince returns why a batch should not be sent now; nil: send it. The search goes on: its batch is sent.
func (d *refusals) pausedSince(l *buffer.Lease) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refusing && l.ClaimedLocal.Before(d.since) && !l.ClaimedLocal.IsZero() && l.GroupID != d.path {
		return d.last
	}
	return nil
}

// passesOver returns why a batch is not sent although the pause allows a claim, and for how long it waits: it stands before the one that is tried. nil: send it.
func (d *refusals) passesOver(l *buffer.Lease) (wait time.Duration, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.refusing || !d.tries.passesOver(l.More && l.GroupID != d.path) { // the search comes first
		return 0, nil
	}
	return d.tries.pause(), d.last
}

// triesOne returns why only one event of the batch is sent, and for how long the others wait: the sink seems to refuse everything, and a batch of many may have a
// bad event, however well the sink is. A batch that was refused, or that may have been sent, stays as it is, and so does every batch after maxOnes tries. nil: send it.
func (d *refusals) triesOne(l *buffer.Lease) (wait time.Duration, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.refusing || d.tries.n > maxOnes || l.Len() < 2 || l.Attempts > 0 || l.Outages > 0 || maybeSent(l) || l.GroupID == d.path {
		return 0, nil
	}
	return d.tries.pause(), d.last
}

// sending tells when the send of a batch begins and ends.
func (d *refusals) sending(id uuid.UUID, begins bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id == d.path {
		d.pathSent = begins
	}
}

// tryNow ends the wait for the next try.
func (d *refusals) tryNow() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tries.now()
}

// err is why nothing is delivered, while the sink refuses everything; otherwise nil.
func (d *refusals) err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.refusing {
		return nil
	}
	return fmt.Errorf("the sink refuses %s, %d refusals in a row, the last: %w", d.what(), d.row, d.last)
}

// acceptedOthers reports whether the sink accepted an event in the last minute.
func (d *refusals) acceptedOthers() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.acceptedAt) < acceptedLately
}

// refuses says what the sink refuses, and whether that may be the fault of these events alone: nobody knows whether it accepts others.
func (d *refusals) refuses() (what string, others bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.what(), !d.several || !d.events.many() || time.Since(d.acceptedAt) < acceptedLately
}

func (d *refusals) what() string {
	const noOther = " and has accepted no other since"
	switch {
	case !d.events.many():
		return d.events.String() + noOther
	case !d.several: // as after the replay of bad events
		return "the events of one batch" + noOther
	}
	if time.Since(d.acceptedAt) < acceptedLately {
		return "many events, and accepted others less than a minute ago"
	}
	return "every event"
}

// projectionFailed notes that the projection rejects each event of a batch. It may be wrong for all events.
func (d *refusals) projectionFailed(groupID uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unprojected == nil || len(d.unprojected) >= maxBatches {
		d.unprojected = map[uuid.UUID]time.Time{}
	}
	if _, again := d.unprojected[groupID]; !again {
		d.unprojected[groupID] = time.Now()
	}
	d.unprojectedHeld = true
}

// acceptedSinceProjection reports whether the sink accepted another event, of a batch that was leased, and so projected, after the projection had failed for
// this one. So the projection is not wrong for all events. When the send began says nothing: a batch may wait for a rate limit while the projection breaks.
func (d *refusals) acceptedSinceProjection(groupID uuid.UUID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, known := d.unprojected[groupID]
	return known && d.projectedAt.After(at)
}

// holdsUnprojected reports whether batches wait that the projection rejects, so that nobody knows whether it is wrong for all events.
func (d *refusals) holdsUnprojected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unprojectedHeld
}

// releaseUnprojected reports, once, whether batches wait that can be decided on.
func (d *refusals) releaseUnprojected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.unprojectedHeld {
		return false
	}
	for _, at := range d.unprojected {
		if d.projectedAt.After(at) {
			d.unprojectedHeld = false
			return true
		}
	}
	return false
}

// forgetProjection drops a batch of which the events are buried.
func (d *refusals) forgetProjection(groupID uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.unprojected, groupID)
}
