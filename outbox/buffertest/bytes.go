package buffertest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var bytesCases = []testCase{
	{name: "bytes/claim is bounded", run: bytesClaim},
	{name: "bytes/claim in order is bounded", relayTableOnly: true, run: bytesClaimInOrder},
	{name: "bytes/take over is bounded", run: bytesTakeOver},
	{name: "bytes/larger event goes alone", run: bytesLargerEvent},
	{name: "bytes/read after the lease is committed", run: bytesRead},
	{name: "bytes/delivered batch is not read", run: bytesDelivered},
	{name: "bytes/batch that kills its readers is not read", run: bytesKillsReader},
	{name: "bytes/dead letters that kill their readers are not read", run: bytesDeadLettersKillReader},
	{name: "bytes/long topics", run: bytesLongTopics},
	{name: "bytes/long keys in order", relayTableOnly: true, run: bytesLongKeys},
	{name: "bytes/long keys of dead letters", run: bytesLongKeysOfDeadLetters},
	{name: "bytes/peek is bounded", run: bytesPeek},
	{name: "bytes/dead letters are bounded", run: bytesDeadLetters},
	{name: "bytes/replay is bounded", run: bytesReplay},
}

// large returns events of that many bytes, which compress well: a bound on what the database stores would not
// hold.
func large(n, size int) []outbox.Event {
	events := make([]outbox.Event, n)
	for i := range events {
		events[i] = outbox.Event{Topic: "large", Payload: []byte(fmt.Sprintf(`{"n": %d, "text": "%s"}`, i, strings.Repeat("x", size)))}
	}
	return events
}

// drained is every event that was read, by id.
type drained map[int64][]byte

// drainBounded claims and takes over what there is, checks the bound, divides what was not read as delivery does, and
// settles the rest as verdict. It returns how many batches were divided.
func drainBounded(t *testing.T, q buffer.Queue, verdict buffer.Verdict) (all drained, divided int) {
	t.Helper()
	all = drained{}
	for {
		l, err := q.TakeOver(t.Context(), lease, buffer.DueRetry)
		ok(t, "TakeOver", err)
		if l == nil {
			l, err = q.Claim(t.Context(), 1000, lease)
			ok(t, "Claim", err)
		}
		if l == nil {
			return all, divided
		}
		n := 0
		for _, e := range l.Events {
			n += len(e.Topic) + len(e.Payload) + len(e.Headers)
			if e.Key != nil {
				n += len(*e.Key)
			}
		}
		if n > buffer.MaxBytes && len(l.Events) > 1 {
			t.Fatalf("a batch of %d events has %d bytes; want %d at most", len(l.Events), n, buffer.MaxBytes)
		}
		outcomes := []buffer.Outcome{{Verdict: verdict, Error: "bad"}}
		if l.NotRead != nil {
			outcomes = divide(t, l)
			divided++
		}
		for _, e := range l.Events {
			if l.NotRead == nil {
				if all[e.ID] != nil {
					t.Fatalf("event %d is in two batches", e.ID)
				}
				all[e.ID] = e.Payload
			}
		}
		ok(t, "Settle", q.Settle(t.Context(), l, outcomes))
	}
}

// divide returns the outcomes of a batch that was not read.
func divide(t *testing.T, l *buffer.Lease) (outcomes []buffer.Outcome) {
	t.Helper()
	ids := l.IDs()
	if !errors.Is(l.NotRead, buffer.ErrTooLarge) || l.PartSize < 1 || l.PartSize >= len(ids) || l.Bytes() > 1000 {
		t.Fatalf("a batch of %d events and %d bytes was not read: %v, in parts of %d", len(ids), l.Bytes(), l.NotRead, l.PartSize)
	}
	for part := range slices.Chunk(ids, l.PartSize) {
		outcomes = append(outcomes, buffer.Outcome{Verdict: buffer.Retry, IDs: part, GroupID: buffer.NewGroupID()})
	}
	return outcomes
}

// same expects exactly these events.
func (d drained) same(t *testing.T, ids []int64, events []outbox.Event) {
	t.Helper()
	equal(t, "events", len(d), len(ids))
	for i, id := range ids {
		if !bytes.Equal(d[id], events[i].Payload) {
			t.Fatalf("event %d has %d bytes of payload; want %d, as inserted", id, len(d[id]), len(events[i].Payload))
		}
	}
}

func bytesClaim(t *testing.T, h Harness) {
	f := h.Open(t, Options{Bytes: !h.Custom})
	events := large(30, buffer.MaxBytes/10)
	ids := f.Insert(t, events...)
	all, _ := drainBounded(t, f.Buffer, buffer.Delivered)
	all.same(t, ids, events)
	empty(t, f)
}

func bytesClaimInOrder(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	events := large(15, buffer.MaxBytes/5)
	for i := range events {
		events[i].Key = text(fmt.Sprint("k", i%3))
	}
	ids := f.Insert(t, events...)
	all, _ := drainBounded(t, f.Buffer, buffer.Delivered)
	all.same(t, ids, events)
	empty(t, f)
}

func bytesTakeOver(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	events := large(12, buffer.MaxBytes/5)
	ids := f.Insert(t, large(len(events), 10)...)
	waits(t, f)
	for i, id := range ids {
		f.Exec(t, fmt.Sprintf("UPDATE %s SET payload = '%s' WHERE id = %d", f.Table, events[i].Payload, id))
	}
	all, divided := drainBounded(t, f.Buffer, buffer.Delivered)
	equal(t, "divided", divided, 1)
	all.same(t, ids, events)
}

func bytesLargerEvent(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	events := slices.Concat(large(2, 10), large(1, 2*buffer.MaxBytes), large(2, 10))
	ids := f.Insert(t, events...)
	all, _ := drainBounded(t, f.Buffer, buffer.Delivered)
	all.same(t, ids, events)
}

func bytesRead(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	events := large(1, 100)
	ids := f.Insert(t, events...)
	l := claim(t, f.Buffer, 1)
	bare := l.Unread()
	bare.Events = []outbox.Event{{ID: l.Events[0].ID, UUID: l.Events[0].UUID, Topic: l.Events[0].Topic, CreatedAt: l.Events[0].CreatedAt}}
	bare.FailRead(buffer.ErrSlowRead, 0)
	ok(t, "Read", f.Buffer.Read(t.Context(), &bare))
	equal(t, "NotRead", bare.NotRead, error(nil))
	equal(t, "events", bare.IDs(), l.IDs())
	drained{ids[0]: bare.Events[0].Payload}.same(t, ids, events)
	equal(t, "PayloadIsJSON", bare.PayloadIsJSON, l.PayloadIsJSON)
	ok(t, "Settle", f.Buffer.Settle(t.Context(), &bare, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	empty(t, f)
}

func bytesDelivered(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, large(3, 100)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, b.IDs()))
	f.ExpireLease(t, b.GroupID, lease)
	again := takeOver(t, f.Buffer)
	equal(t, "events", again.IDs(), b.IDs())
	for _, e := range again.Events {
		if len(e.Payload) > 0 {
			t.Fatalf("event %d was read although it is only deleted", e.ID)
		}
	}
	ok(t, "Settle", f.Buffer.Settle(t.Context(), again, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	empty(t, f)
}

// killed takes over a batch whose last owners died alone that often.
func killed(t *testing.T, f *Fixture, q buffer.Queue, died int) *buffer.Lease {
	t.Helper()
	f.Exec(t, fmt.Sprintf("UPDATE outbox_batches SET state = 'leased', unfinished_leases = %d", died+buffer.SuspectAfter))
	f.ExpireLease(t, f.Ledger(t)[0].GroupID, lease)
	l, err := q.TakeOver(t.Context(), lease, buffer.DueSuspect)
	ok(t, "TakeOver", err)
	if l == nil {
		t.Fatalf("TakeOver returned nothing; want a batch whose owners died alone %d times", died)
	}
	equal(t, "deaths alone", l.DiedAlone(), died)
	return l
}

// unread expects a batch of these events that was not read because it kills its readers.
func unread(t *testing.T, l *buffer.Lease, ids []int64) {
	t.Helper()
	if !errors.Is(l.NotRead, buffer.ErrKillsReader) || l.Bytes() >= 100 || len(l.Rejected) > 0 {
		t.Fatalf("took over %d events and %d bytes, NotRead: %v; want a list by ids", l.Len(), l.Bytes(), l.NotRead)
	}
	equal(t, "events", l.IDs(), ids)
}

func bytesKillsReader(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, large(2, 100)...)
	ids := claim(t, f.Buffer, 10).IDs()
	equal(t, "NotRead", killed(t, f, f.Buffer, buffer.AloneBeforeHalving-1).NotRead, error(nil))
	two := killed(t, f, f.Buffer, buffer.AloneBeforeHalving)
	unread(t, two, ids)
	ok(t, "Settle", f.Buffer.Settle(t.Context(), two, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:1]},
		{Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID(), UnfinishedLeases: buffer.SuspectAfter},
	}))
	one := killed(t, f, f.Buffer, buffer.AloneBeforeBurial)
	if one.NotRead != nil || one.Bytes() == 0 {
		t.Fatalf("took over %d bytes, NotRead: %v; want the event, because the sink may be asked for it", one.Bytes(), one.NotRead)
	}
	one = killed(t, f, f.Buffer, buffer.AloneBeforeBurial+1)
	unread(t, one, ids[1:])
	if !h.Custom && one.Events[0].Topic != "large" {
		t.Fatalf("the event's topic is %q; want its own, to ask the sink for it", one.Events[0].Topic)
	}
	ok(t, "Settle", f.Buffer.Settle(t.Context(), one, []buffer.Outcome{{Verdict: buffer.Dead, Error: "killed its readers"}}))
	dead := f.Dead(t)
	equal(t, "dead letters", len(dead), 1)
	if !strings.Contains(string(dead[0].Payload), strings.Repeat("x", 100)) {
		t.Fatalf("the dead letter's payload is %s; want that of the event", dead[0].Payload)
	}
	equal(t, "ledger rows", len(f.Ledger(t)), 0)
}

func bytesDeadLettersKillReader(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, large(2, 100)...)
	b := claim(t, f.Buffer, 10)
	ids := b.IDs()
	ok(t, "Settle", f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Dead, Error: "bad"}}))
	q := f.Queue(t)
	claim(t, q, 10)
	equal(t, "NotRead", killed(t, f, q, buffer.AloneBeforeHalving-1).NotRead, error(nil))
	unread(t, killed(t, f, q, buffer.AloneBeforeHalving), ids)
}

// waits makes all events one batch that waits. The application may make them larger then.
func waits(t *testing.T, f *Fixture) {
	t.Helper()
	b := claim(t, f.Buffer, 1000)
	ok(t, "Settle", f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: b.GroupID}}))
}

// longKeys returns events whose keys alone are larger than a batch. The keys come twice.
func longKeys() []outbox.Event {
	events := large(12, 10)
	for i := range events {
		events[i].Key = text(fmt.Sprint(i%6, strings.Repeat("k", buffer.MaxBytes/5)))
	}
	return events
}

func bytesLongTopics(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	events := large(12, 10)
	for i := range events {
		events[i].Topic = fmt.Sprint(i, strings.Repeat("t", buffer.MaxBytes/5))
	}
	ids := f.Insert(t, events...)
	all, _ := drainBounded(t, f.Buffer, buffer.Delivered)
	all.same(t, ids, events)
	empty(t, f)
}

func bytesLongKeys(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	events := longKeys()
	ids := f.Insert(t, events...)
	all, _ := drainBounded(t, f.Buffer, buffer.Delivered)
	all.same(t, ids, events)
	ids = f.Insert(t, large(len(events), 10)...)
	waits(t, f)
	for i, id := range ids {
		f.Exec(t, fmt.Sprintf("UPDATE %s SET key = '%s' WHERE id = %d", f.Table, *events[i].Key, id))
	}
	whole := takeOver(t, f.Buffer)
	equal(t, "events", whole.IDs(), ids)
	divide(t, whole)
	for i := range 6 {
		if *whole.Events[i].Key != *whole.Events[i+6].Key || *whole.Events[i].Key == *whole.Events[(i+1)%6].Key {
			t.Fatal("equal keys differ, or different ones are equal")
		}
	}
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), whole, ids))
	f.ExpireLease(t, whole.GroupID, lease)
	again := takeOver(t, f.Buffer)
	equal(t, "events", again.IDs(), ids)
	ok(t, "Settle", f.Buffer.Settle(t.Context(), again, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	empty(t, f)
}

func bytesLongKeysOfDeadLetters(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, longKeys()...)
	drainBounded(t, f.Buffer, buffer.Dead)
	all, _ := drainBounded(t, f.Queue(t), buffer.Delivered)
	equal(t, "dead letters notified", len(all), len(ids))
	countBacklog(t, f.Queue(t), 100, buffer.Backlog{})
}

func bytesPeek(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	events := large(12, buffer.MaxBytes/5)
	f.Insert(t, events...)
	peeked := peek(t, f, 100)
	if n := peeked.Bytes(); n > buffer.MaxBytes || len(peeked.Events) == 0 || len(peeked.Events) >= len(events) {
		t.Fatalf("Peek returned %d events of %d bytes; want some, of %d bytes at most", len(peeked.Events), n, buffer.MaxBytes)
	}
}

func bytesDeadLetters(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	events := large(12, buffer.MaxBytes/5)
	ids := f.Insert(t, events...)
	drainBounded(t, f.Buffer, buffer.Dead)
	var (
		listed []int64
		after  *buffer.DeadKey
	)
	for {
		page, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, after, 100)
		ok(t, "ListDead", err)
		if len(page) == 0 {
			break
		}
		size := 0
		for i := range page {
			size += buffer.EventBytes(&page[i].Event)
			listed = append(listed, page[i].ID)
			after = &buffer.DeadKey{EventID: page[i].ID, GroupID: page[i].GroupID}
		}
		if size > buffer.MaxBytes {
			t.Fatalf("a page of %d dead letters has %d bytes; want %d at most", len(page), size, buffer.MaxBytes)
		}
	}
	equal(t, "dead letters listed", len(listed), len(ids))
	all, _ := drainBounded(t, f.Queue(t), buffer.Delivered)
	equal(t, "dead letters notified", len(all), len(ids))
	countBacklog(t, f.Queue(t), 100, buffer.Backlog{})
}

func bytesReplay(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	events := slices.Concat(large(6, buffer.MaxBytes/5), large(1, 2*buffer.MaxBytes), large(2, 10), large(5, buffer.MaxBytes/5))
	ids := f.Insert(t, events...)
	drainBounded(t, f.Buffer, buffer.Dead)
	var sizes []int
	for i := range events {
		sizes = append(sizes, buffer.EventBytes(&events[i]))
	}
	slices.Sort(sizes)
	for left := events; len(left) > 0; {
		n, err := f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 100)
		ok(t, "Replay", err)
		if n < 1 || n > len(left) {
			t.Fatalf("Replay returned %d of %d dead letters", n, len(left))
		}
		size := 0 // of the smallest ones: uuid keys come in another order
		for _, bytes := range sizes[:n] {
			size += bytes
		}
		if size > buffer.MaxBytes && n > 1 {
			t.Fatalf("%d dead letters with %d bytes were replayed at once; want %d at most", n, size, buffer.MaxBytes)
		}
		left = left[n:]
	}
	replay(t, f.Buffer, buffer.DeadFilter{}, 100, 0)
	all, divided := drainBounded(t, f.Buffer, buffer.Delivered)
	equal(t, "divided", divided, 0)
	all.same(t, ids, events)
	empty(t, f)
}
