package buffertest

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The model's actions on what waits, is dead, or has lost its ledger row.

// wake wakes the batches of one address, and looks first which are away.
func (w *world) wake(t *rapid.T) {
	buffer, hook := w.either(t)
	var (
		addresses []string
		asleep    []uuid.UUID
		awake     int
	)
	address := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "address")
	for _, g := range w.groupIDs() {
		l := w.live[g]
		if l.hook != hook || l.state != "waiting" || l.address == nil {
			continue
		}
		if !slices.Contains(addresses, *l.address) {
			addresses = append(addresses, *l.address)
		}
		switch {
		case *l.address != address:
		case l.due == now:
			awake++
		default:
			asleep = append(asleep, g)
		}
	}
	got, err := buffer.DeferredAddresses(t.Context())
	ok(t, "Away", err)
	slices.Sort(got)
	slices.Sort(addresses)
	equal(t, "addresses that are away", got, addresses)

	limit, want := rapid.IntRange(0, 2).Draw(t, "limit"), len(asleep)
	if limit > 0 { // what is due already is among them
		want = min(max(0, limit-awake), want)
	}
	n, err := buffer.RetryNow(t.Context(), address, limit)
	ok(t, "Wake", err)
	equal(t, "batches woken", n, want)
	for _, row := range w.f.Ledger(t) {
		if slices.Contains(asleep, row.GroupID) && row.DueIn <= 0 {
			w.live[row.GroupID].due = now
			n--
		}
	}
	equal(t, "batches that Wake counted and did not wake", n, 0)
}

// lettersThat returns the keys of letters in order.
func (w *world) lettersThat(is func(*letter) bool) (keys []buffer.DeadKey) {
	for key, l := range w.letters {
		if is(l) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b buffer.DeadKey) int {
		return cmp.Or(cmp.Compare(a.EventID, b.EventID), compareUUID(a.GroupID, b.GroupID))
	})
	return keys
}

// letterIn is the event's letter in a batch of a hook's.
func (w *world) letterIn(t *rapid.T, hookGroup uuid.UUID, id int64) *letter {
	for key, l := range w.letters {
		if key.EventID == id && l.hookGroup == hookGroup {
			return l
		}
	}
	t.Fatalf("event %d has no letter in batch %s", id, hookGroup)
	return nil
}

func (w *world) claimLetters(t *rapid.T) {
	w.claimLettersWith(t, rapid.SampledFrom(w.hooks).Draw(t, "hook's buffer"), rapid.IntRange(1, 8).Draw(t, "limit"))
}

func (w *world) claimLettersWith(t *rapid.T, hook Hook, limit int) {
	unclaimed := w.lettersThat(func(l *letter) bool { return !l.closed && !l.told && l.hookGroup == uuid.Nil })
	want := unclaimed[:min(limit, len(unclaimed))] // of one event no two are open
	b, err := hook.Claim(t.Context(), limit, lease)
	ok(t, "Claim", err)
	if b == nil {
		equal(t, "letters that a claim did not see", want, []buffer.DeadKey(nil))
		return
	}
	var got []buffer.DeadKey
	for _, e := range b.Events {
		got = append(got, buffer.DeadKey{EventID: e.ID, GroupID: e.DeadLetter.GroupID})
	}
	equal(t, "letters claimed", got, want)
	if w.members[b.GroupID] != nil {
		t.Fatalf("group_id %s was used before", b.GroupID)
	}
	w.members[b.GroupID] = b.IDs()
	w.live[b.GroupID] = &liveBatch{hook: true, state: "leased", leaseNo: 1, starts: 1}
	for _, key := range got {
		w.letters[key].hookGroup = b.GroupID
	}
	w.sameBatch(t, b)
	w.owners = append(w.owners, &owner{hook, true, b})
}

func (w *world) filter(t *rapid.T) (f buffer.DeadFilter, limit int, keys []buffer.DeadKey) {
	f.Notified = rapid.Bool().Draw(t, "told")
	return f, rapid.IntRange(1, 4).Draw(t, "limit"), w.lettersThat(func(l *letter) bool { return !l.closed && (l.told || !f.Notified) })
}

func (w *world) replay(t *rapid.T) {
	f, limit, keys := w.filter(t)
	n, err := rapid.SampledFrom(w.buffers).Draw(t, "buffer").Replay(t.Context(), f, limit)
	ok(t, "Replay", err)
	equal(t, "letters replayed", n, min(limit, len(keys)))
	var (
		group uuid.UUID
		ids   []int64
	)
	for _, row := range w.f.Rows(t) {
		if _, was := w.rows[row.ID]; was {
			continue
		}
		at := slices.IndexFunc(keys, func(k buffer.DeadKey) bool { return k.EventID == row.ID })
		if at < 0 || w.members[row.GroupID] != nil || group != uuid.Nil && row.GroupID != group {
			t.Fatalf("event %d is back under group_id %s, letters open were %v", row.ID, row.GroupID, keys)
		}
		group, ids = row.GroupID, append(ids, row.ID)
		w.letters[keys[at]].closed = true
		w.rows[row.ID] = row.GroupID
		delete(w.fate, row.ID)
	}
	equal(t, "events that came back", len(ids), n)
	if n > 0 {
		w.members[group] = ids
		w.live[group] = &liveBatch{state: "waiting", due: now}
	}
}

func (w *world) discard(t *rapid.T) {
	f, limit, keys := w.filter(t)
	n, err := rapid.SampledFrom(w.buffers).Draw(t, "buffer").Discard(t.Context(), f, limit)
	ok(t, "Discard", err)
	equal(t, "letters discarded", n, min(limit, len(keys)))
	for _, d := range w.f.Dead(t) {
		key := buffer.DeadKey{EventID: d.EventID, GroupID: d.GroupID}
		if slices.Contains(keys, key) && isClosed(&d) {
			w.letters[key].closed = true
			w.fate[key.EventID] = "discarded"
			n--
		}
	}
	equal(t, "letters that were counted and not discarded", n, 0)
}

// repair loses the ledger row of a batch and has it mended: the events are due
// under the group_id that they have, and no owner of before has a say.
func (w *world) repair(t *rapid.T) {
	lost := slices.DeleteFunc(slices.Collect(maps.Keys(w.live)), func(g uuid.UUID) bool { return w.live[g].hook })
	if len(lost) == 0 {
		t.Skip("no batch is live")
	}
	slices.SortFunc(lost, compareUUID)
	g := rapid.SampledFrom(lost).Draw(t, "batch")
	orphan(t, w.f, g, w.members[g])
	r, err := rapid.SampledFrom(w.buffers).Draw(t, "buffer").Repair(t.Context())
	ok(t, "Repair", err)
	equal(t, "repaired", r, buffer.Repair{Adopted: buffer.Count{Batches: 1, Events: int64(len(w.members[g]))}})
	leaseNo := ledgerOf(t, w.f, g).LeaseNo
	for _, o := range w.owners {
		if o.batch.GroupID == g && o.batch.LeaseNo >= leaseNo {
			t.Fatalf("lease_no of batch %s is %d after the repair, an owner has %d", g, leaseNo, o.batch.LeaseNo)
		}
	}
	w.live[g] = &liveBatch{state: "waiting", due: now, leaseNo: leaseNo}
}
