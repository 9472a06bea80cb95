package buffertest

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The model's actions on waiting batches, dead letters and lost ledger rows.

// retryNow makes the batches of one address due, after it listed the deferred addresses.
func (m *model) retryNow(t *rapid.T) {
	buffer, queue := m.either(t)
	var (
		addresses []string
		notDue    []uuid.UUID
		dueBefore int
	)
	address := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "address")
	for _, g := range m.groupIDs() {
		l := m.live[g]
		if l.queue != queue || l.state != "waiting" || l.address == nil {
			continue
		}
		if !slices.Contains(addresses, *l.address) {
			addresses = append(addresses, *l.address)
		}
		switch {
		case *l.address != address:
		case l.due == now:
			dueBefore++
		default:
			notDue = append(notDue, g)
		}
	}
	got, err := buffer.DeferredAddresses(t.Context())
	ok(t, "DeferredAddresses", err)
	slices.Sort(got)
	slices.Sort(addresses)
	equal(t, "deferred addresses", got, addresses)

	limit, want := rapid.IntRange(0, 2).Draw(t, "limit"), len(notDue)
	if limit > 0 { // the limit includes those that are due already
		want = min(max(0, limit-dueBefore), want)
	}
	n, err := buffer.RetryNow(t.Context(), address, limit)
	ok(t, "RetryNow", err)
	equal(t, "batches made due", n, want)
	for _, row := range m.f.Ledger(t) {
		if slices.Contains(notDue, row.GroupID) && row.DueIn <= 0 {
			m.live[row.GroupID].due = now
			n--
		}
	}
	equal(t, "batches that RetryNow counted and did not make due", n, 0)
}

// retryBatch makes a batch due if it waits, and none else.
func (m *model) retryBatch(t *rapid.T) {
	if len(m.live) == 0 {
		t.Skip("no batch is live")
	}
	g := rapid.SampledFrom(m.groupIDs()).Draw(t, "batch")
	err := rapid.SampledFrom(m.buffers).Draw(t, "buffer").RetryBatch(t.Context(), g, buffer.NewRetryRequest())
	if m.live[g].state != "waiting" {
		fails(t, "RetryBatch", err, buffer.ErrNotWaiting)
		return
	}
	ok(t, "RetryBatch", err)
	m.live[g].due = now
}

// divide divides a batch, if an operator may. The parts have the batch's events in the order of their ids.
func (m *model) divide(t *rapid.T) {
	if len(m.live) == 0 {
		t.Skip("no batch is live")
	}
	g, doubled := rapid.SampledFrom(m.groupIDs()).Draw(t, "batch"), rapid.Bool().Draw(t, "may arrive twice")
	l, ids := m.live[g], m.members[g]
	err := rapid.SampledFrom(m.buffers).Draw(t, "buffer").DivideBatch(t.Context(), g, doubled)
	maybeSent := l.outages > 0 || l.unfinished > 0
	switch {
	case l.state != "waiting":
		fails(t, "DivideBatch", err, buffer.ErrNotWaiting)
		return
	case l.queue, len(ids) < 2, l.leaseNo == 0 && l.origins == nil:
		if err == nil || errors.Is(err, buffer.ErrNotWaiting) || errors.Is(err, buffer.ErrMaybeSent) {
			t.Fatalf("DivideBatch of batch %s: %v", g, err)
		}
		return
	case maybeSent && !doubled:
		fails(t, "DivideBatch", err, buffer.ErrMaybeSent)
		return
	}
	ok(t, "DivideBatch", err)
	middle := (len(ids) + 1) / 2
	delete(m.live, g)
	var found int
	for _, row := range m.f.Ledger(t) {
		if m.live[row.GroupID] != nil {
			continue
		}
		part := ids[:middle]
		if row.FirstID == ids[middle] {
			part = ids[middle:]
		}
		half := &liveBatch{
			state: "waiting", due: now, origins: append(slices.Clone(l.origins), g), attempts: l.attempts, outages: l.outages, unfinished: min(l.unfinished, buffer.SuspectAfter),
		}
		if len(part) == 1 {
			half.attempts = 0
		}
		if maybeSent {
			half.outages = max(1, l.outages)
		}
		m.live[row.GroupID], m.members[row.GroupID] = half, part
		for _, id := range part {
			m.rows[id] = row.GroupID
		}
		found += len(part)
	}
	equal(t, "events of the halves", found, len(ids))
}

// deadThat returns the keys of dead letters in order.
func (m *model) deadThat(is func(*deadLetter) bool) (keys []buffer.DeadKey) {
	for key, l := range m.dead {
		if is(l) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b buffer.DeadKey) int {
		return cmp.Or(cmp.Compare(a.EventID, b.EventID), compareUUID(a.GroupID, b.GroupID))
	})
	return keys
}

// deadIn is the event's dead letter in a batch of a hook's.
func (m *model) deadIn(t *rapid.T, queueGroup uuid.UUID, id int64) *deadLetter {
	for key, l := range m.dead {
		if key.EventID == id && l.queueGroup == queueGroup {
			return l
		}
	}
	t.Fatalf("event %d has no dead letter in batch %s", id, queueGroup)
	return nil
}

func (m *model) claimDead(t *rapid.T) {
	m.claimDeadWith(t, rapid.SampledFrom(m.queues).Draw(t, "queue"), rapid.IntRange(1, 8).Draw(t, "limit"))
}

func (m *model) claimDeadWith(t *rapid.T, queue buffer.Queue, limit int) {
	unclaimed := m.deadThat(func(l *deadLetter) bool { return !l.closed && !l.notified && l.queueGroup == uuid.Nil })
	want := unclaimed[:min(limit, len(unclaimed))] // of one event no two are open
	b, err := queue.Claim(t.Context(), limit, lease)
	ok(t, "Claim", err)
	if b == nil {
		equal(t, "dead letters that a claim did not see", want, []buffer.DeadKey(nil))
		return
	}
	var got []buffer.DeadKey
	for i, e := range b.Events {
		got = append(got, buffer.DeadKey{EventID: e.ID, GroupID: b.DeadLetters[i].GroupID})
	}
	if m.anyOrder { // but as many, and each once
		rest := slices.Clone(unclaimed)
		for _, key := range got {
			at := slices.Index(rest, key)
			if at < 0 || len(got) != len(want) {
				t.Fatalf("Claim(%d) returned dead letters %v; unclaimed were %v", limit, got, unclaimed)
			}
			rest = slices.Delete(rest, at, at+1)
		}
		want = got
	}
	equal(t, "dead letters claimed", got, want)
	if m.members[b.GroupID] != nil {
		t.Fatalf("group_id %s was used before", b.GroupID)
	}
	m.members[b.GroupID] = b.IDs()
	m.live[b.GroupID] = &liveBatch{queue: true, state: "leased", leaseNo: 1, unfinished: 1}
	for _, key := range got {
		m.dead[key].queueGroup = b.GroupID
	}
	m.sameBatch(t, b)
	m.owners = append(m.owners, &owner{queue, true, b})
}

func (m *model) filter(t *rapid.T) (f buffer.DeadFilter, limit int, keys []buffer.DeadKey) {
	f.Notified = rapid.Bool().Draw(t, "notified")
	return f, rapid.IntRange(1, 4).Draw(t, "limit"), m.deadThat(func(l *deadLetter) bool { return !l.closed && (l.notified || !f.Notified) })
}

func (m *model) replay(t *rapid.T) {
	f, limit, keys := m.filter(t)
	n, err := rapid.SampledFrom(m.buffers).Draw(t, "buffer").Replay(t.Context(), f, limit)
	ok(t, "Replay", err)
	equal(t, "dead letters replayed", n, min(limit, len(keys)))
	var (
		group uuid.UUID
		ids   []int64
	)
	for _, row := range m.f.Rows(t) {
		if _, was := m.rows[row.ID]; was {
			continue
		}
		at := slices.IndexFunc(keys, func(k buffer.DeadKey) bool { return k.EventID == row.ID })
		if at < 0 || m.members[row.GroupID] != nil || group != uuid.Nil && row.GroupID != group {
			t.Fatalf("event %d is back under group_id %s, dead letters open were %v", row.ID, row.GroupID, keys)
		}
		group, ids = row.GroupID, append(ids, row.ID)
		m.dead[keys[at]].closed = true
		m.rows[row.ID] = row.GroupID
		delete(m.fate, row.ID)
	}
	equal(t, "events that came back", len(ids), n)
	if n > 0 {
		m.members[group] = ids
		m.live[group] = &liveBatch{state: "waiting", due: now}
	}
}

func (m *model) discard(t *rapid.T) {
	f, limit, keys := m.filter(t)
	n, err := rapid.SampledFrom(m.buffers).Draw(t, "buffer").Discard(t.Context(), f, limit)
	ok(t, "Discard", err)
	equal(t, "dead letters discarded", n, min(limit, len(keys)))
	for _, d := range m.f.Dead(t) {
		key := buffer.DeadKey{EventID: d.EventID, GroupID: d.GroupID}
		if slices.Contains(keys, key) && isClosed(&d) {
			m.dead[key].closed = true
			m.fate[key.EventID] = "discarded"
			n--
		}
	}
	equal(t, "dead letters that were counted and not discarded", n, 0)
}

// repair removes the ledger row of a batch and calls Repair: the events are due under a new group_id, and the earlier
// owners have lost their leases.
func (m *model) repair(t *rapid.T) {
	lost := slices.DeleteFunc(slices.Collect(maps.Keys(m.live)), func(g uuid.UUID) bool { return m.live[g].queue })
	if len(lost) == 0 {
		t.Skip("no batch is live")
	}
	slices.SortFunc(lost, compareUUID)
	g := rapid.SampledFrom(lost).Draw(t, "batch")
	orphan(t, m.f, g, m.members[g])
	r, err := rapid.SampledFrom(m.buffers).Draw(t, "buffer").Repair(t.Context())
	ok(t, "Repair", err)
	equal(t, "repaired", r, buffer.Repair{Adopted: buffer.Count{Batches: 1, Events: int64(len(m.members[g]))}})
	adopted := groupOf(t, m.f, m.members[g][0])
	if m.members[adopted] != nil {
		t.Fatalf("group_id %v of an orphan was used before", adopted)
	}
	m.members[adopted] = m.members[g]
	for _, id := range m.members[g] {
		m.rows[id] = adopted
	}
	delete(m.live, g)
	m.live[adopted] = &liveBatch{state: "waiting", due: now}
}
