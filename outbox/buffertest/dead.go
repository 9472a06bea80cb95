package buffertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var deadCases = []testCase{
	{name: "dead/lists all fields", run: deadFields},
	{name: "dead/lists opaque bytes", run: deadFieldsBytes},
	{name: "dead/applies filters", run: deadFilters},
	{name: "dead/lists page by page", run: deadPages},
	{name: "dead/counts by time", run: deadByTime},
	{name: "dead/lists the newest first", run: deadNewest},
	{name: "dead/lists the newest with short texts", run: deadNewestShort},
	{name: "dead/separates pipelines", run: deadNeighbours},
}

// dead lists the event ids of the dead letters that match.
func dead(t *testing.T, b buffer.Buffer, f buffer.DeadFilter) []int64 {
	t.Helper()
	events, err := b.ListDead(t.Context(), f, nil, 1000)
	ok(t, "Dead", err)
	ids := []int64{}
	for i := range events {
		ids = append(ids, events[i].ID)
	}
	return ids
}

func deadFields(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	sameDeadLetters(t, f, []outbox.Event{
		{Topic: "orders.größe", Key: text("customer-7"), Payload: []byte(`{"a": "Ü"}`), Headers: outbox.Headers(`{"trace": "00-ab"}`)},
		{Topic: "t", Key: text(""), Payload: []byte(`null`), Headers: outbox.Headers(`{}`)},
		{Topic: "t", Payload: []byte(`1`)},
		asWritten,
	})
}

func deadFieldsBytes(t *testing.T, h Harness) {
	f := h.Open(t, Options{Bytes: true})
	sameDeadLetters(t, f, []outbox.Event{
		{Topic: "t", Payload: []byte{0, 1, 0xff, '\'', '\\'}},
		{Topic: "t", Payload: []byte{}},
	})
}

func sameDeadLetters(t *testing.T, f *Fixture, events []outbox.Event) {
	equal(t, "dead letters", dead(t, f.Buffer, buffer.DeadFilter{}), []int64(nil))
	const reason = "422 refused: \"größe\" is not 'a' size\nline two"
	b := bury(t, f, reason, events...)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET notified_at = died_at WHERE event_id = %d", b.LastID))
	got, err := f.Second(t).ListDead(t.Context(), buffer.DeadFilter{}, nil, 100)
	ok(t, "Dead", err)
	var want []buffer.DeadEvent
	for i, d := range f.Dead(t) {
		one := buffer.DeadEvent{
			Event:      b.Events[i],
			DeadLetter: buffer.DeadLetter{Pipeline: f.Pipeline, GroupID: b.GroupID, Attempts: 3, Error: reason, DiedAt: d.DiedAt.UTC()},
			NotifiedAt: d.NotifiedAt, ClosedAt: d.ClosedAt, ClosedAs: d.ClosedAs, ClosedBy: d.ClosedBy, ClosedReason: d.ClosedReason,
		}
		about(t, "died_at", time.Since(d.DiedAt), 0)
		if i < len(got) { // a custom table keeps the whole row
			one.Row = got[i].Row
		}
		want = append(want, one)
	}
	sameDead(t, got, want)
}

// sameDead compares events with their dead letters; times are compared as instants.
func sameDead(t *testing.T, got, want []buffer.DeadEvent) {
	t.Helper()
	equal(t, "dead letters", len(got), len(want))
	for i := range want {
		g, w := got[i], want[i]
		if !g.DiedAt.Equal(w.DiedAt) || !g.NotifiedAt.Equal(w.NotifiedAt) || !g.ClosedAt.Equal(w.ClosedAt) {
			t.Fatalf("times of the dead letter of event %d: got %+v, want %+v", g.ID, g, w)
		}
		if g.DiedAt.Location() != time.UTC {
			t.Fatalf("died_at of event %d is in %v, want UTC", g.ID, g.DiedAt.Location())
		}
		g.DiedAt, g.NotifiedAt, g.ClosedAt = w.DiedAt, w.NotifiedAt, w.ClosedAt
		equal(t, "dead letter", g, w)
		if (g.Headers == nil) != (w.Headers == nil) {
			t.Fatalf("headers of event %d are %q, want %q", g.ID, g.Headers, w.Headers)
		}
	}
}

func deadFilters(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	var ids []int64
	for _, d := range []struct{ topic, err string }{
		{"orders.created", "422 Bad Size"},
		{"orders.created", "100% of 5_000 is too much"},
		{"orders.paid", "100 of 5000 is too much"},
		{"Orders.created", "größe 422 bad SIZE"},
		{"orders.paid", `a\b and a'b`},
	} {
		b := bury(t, f, d.err, outbox.Event{Topic: d.topic, Payload: []byte("1")})
		ids = append(ids, b.LastID)
	}
	var died []time.Time
	for i, ago := range []time.Duration{5 * lease, 4 * lease, 3 * lease, 2 * lease, 0} {
		died = append(died, time.Now().Add(-ago).UTC().Truncate(time.Millisecond))
		f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET died_at = '%s' WHERE event_id = %d", died[i].Format("2006-01-02T15:04:05.000Z"), ids[i]))
	}
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET closed_at = died_at WHERE event_id = %d", ids[2]))
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET notified_at = died_at WHERE event_id IN (%d, %d)", ids[2], ids[3]))

	at := func(places ...int) []int64 {
		some := []int64{}
		for _, i := range places {
			some = append(some, ids[i])
		}
		return some
	}
	for _, c := range []struct {
		filter     buffer.DeadFilter
		open       []int64
		unnotified int64
		closed     []int64 // as well, when Closed is set
	}{
		{buffer.DeadFilter{}, at(0, 1, 3, 4), 3, at(2)},
		{buffer.DeadFilter{IDs: at(4, 2, 0)}, at(0, 4), 2, at(2)},
		{buffer.DeadFilter{IDs: []int64{ids[4] + 1}}, nil, 0, nil},
		{buffer.DeadFilter{IDs: []int64{}}, nil, 0, nil}, // an empty list matches nothing
		{buffer.DeadFilter{Topic: "orders.created"}, at(0, 1), 2, nil},
		{buffer.DeadFilter{Topic: "orders"}, nil, 0, nil},
		{buffer.DeadFilter{Topic: "orders%"}, nil, 0, nil},
		{buffer.DeadFilter{Error: "bad size"}, at(0, 3), 1, nil},
		{buffer.DeadFilter{Error: "BAD SIZE"}, at(0, 3), 1, nil},
		{buffer.DeadFilter{Error: "größe"}, at(3), 0, nil},
		{buffer.DeadFilter{Error: "100%"}, at(1), 1, nil},
		{buffer.DeadFilter{Error: "5_0"}, at(1), 1, nil},
		{buffer.DeadFilter{Error: "of%too"}, nil, 0, nil},
		{buffer.DeadFilter{Error: "too much"}, at(1), 1, at(2)},
		{buffer.DeadFilter{Error: `A\B`}, at(4), 1, nil},
		{buffer.DeadFilter{Error: `a'b`}, at(4), 1, nil},
		{buffer.DeadFilter{OlderThan: 3*lease + lease/2}, at(0, 1), 2, nil},
		{buffer.DeadFilter{NewerThan: 3*lease + lease/2}, at(3, 4), 1, at(2)},
		{buffer.DeadFilter{OlderThan: lease, NewerThan: 4*lease + lease/2}, at(1, 3), 1, at(2)},
		{buffer.DeadFilter{Before: died[2]}, at(0, 1), 2, nil},
		{buffer.DeadFilter{From: died[2]}, at(3, 4), 1, at(2)},
		{buffer.DeadFilter{From: died[1], Before: died[3]}, at(1), 1, at(2)},
		{buffer.DeadFilter{From: died[0], OlderThan: 3*lease + lease/2, NewerThan: 4*lease + lease/2, Before: died[3].Add(-time.Millisecond)}, at(1), 1, nil},
		{buffer.DeadFilter{Notified: true}, at(3), 0, at(2)},
		{buffer.DeadFilter{Topic: "orders.created", Error: "bad"}, at(0), 1, nil},
		{buffer.DeadFilter{Topic: "orders.paid", Error: "100", Notified: true, IDs: ids, OlderThan: time.Minute, NewerThan: 9 * lease}, nil, 0, at(2)},
	} {
		what := fmt.Sprintf("%+v", c.filter)
		for _, closed := range []bool{false, true} {
			c.filter.Closed = closed
			want := c.open
			if closed {
				want = slices.Sorted(slices.Values(slices.Concat(c.open, c.closed)))
			}
			equal(t, fmt.Sprintf("dead letters, closed %t, of %s", closed, what), dead(t, f.Buffer, c.filter), want)
			n, err := f.Buffer.CountDead(t.Context(), c.filter)
			ok(t, "CountDead", err)
			equal(t, fmt.Sprintf("count, closed %t, of %s", closed, what), n,
				buffer.DeadCount{Open: int64(len(c.open)), Unnotified: c.unnotified, Closed: int64(len(c.closed))})
		}
	}
}

func deadByTime(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	at := func(text string) time.Time {
		one, err := time.Parse(time.RFC3339Nano, text)
		ok(t, "time.Parse", err)
		return one
	}
	all := []string{"2026-03-01T23:59:59.999Z", "2026-03-02T00:00:00.000Z", "2026-03-02T05:00:00.000Z", "2026-03-02T05:59:59.999Z", "2026-03-02T06:30:00.000Z"}
	for i, died := range all {
		b := bury(t, f, fmt.Sprintf("refused %d", i), orders(1)...)
		f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET died_at = '%s' WHERE event_id = %d", died, b.LastID))
		if i == 3 {
			f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET closed_at = died_at, closed_as = 'discarded' WHERE event_id = %d", b.LastID))
		}
	}
	hour := func(begin string, n int64, first, last string) buffer.DeadPeriod {
		return buffer.DeadPeriod{Begin: at(begin), Count: n, First: at(first), Last: at(last)}
	}
	hours := []buffer.DeadPeriod{
		hour("2026-03-02T06:00:00Z", 1, all[4], all[4]), hour("2026-03-02T05:00:00Z", 1, all[2], all[2]), hour("2026-03-02T00:00:00Z", 1, all[1], all[1]), hour("2026-03-01T23:00:00Z", 1, all[0], all[0]),
	}
	both := slices.Clone(hours)
	both[1] = hour("2026-03-02T05:00:00Z", 2, all[2], all[3])
	for name, c := range map[string]struct {
		f      buffer.DeadFilter
		period time.Duration
		limit  int
		want   []buffer.DeadPeriod
	}{
		"hours":             {buffer.DeadFilter{}, time.Hour, 100, hours},
		"the latest":        {buffer.DeadFilter{}, time.Hour, 2, hours[:2]},
		"closed ones":       {buffer.DeadFilter{Closed: true}, time.Hour, 100, both},
		"days":              {buffer.DeadFilter{}, 24 * time.Hour, 100, []buffer.DeadPeriod{hour("2026-03-02T00:00:00Z", 3, all[1], all[4]), hour("2026-03-01T00:00:00Z", 1, all[0], all[0])}},
		"those of an error": {buffer.DeadFilter{Error: "refused 0"}, time.Hour, 100, hours[3:]},
		"those of a period": {buffer.DeadFilter{From: hours[1].Begin, Before: hours[0].Begin}, time.Hour, 100, hours[1:2]},
		"none":              {buffer.DeadFilter{Topic: "nothing"}, time.Hour, 100, nil},
	} {
		got, err := f.Buffer.CountDeadByTime(t.Context(), c.f, c.period, c.limit)
		ok(t, "CountDeadByTime", err)
		equal(t, name, fmt.Sprintf("%v", got), fmt.Sprintf("%v", c.want))
	}
}

func deadPages(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	var want []buffer.DeadKey
	for range 7 {
		b := bury(t, f, "refused", orders(1)...)
		want = append(want, buffer.DeadKey{EventID: b.LastID, GroupID: b.GroupID})
	}
	// The third, fourth and fifth are of one event; the ids of their groups rise.
	for i := range want[3:5] {
		f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET event_id = %d WHERE event_id = %d", want[2].EventID, want[3+i].EventID))
		want[3+i].EventID = want[2].EventID
	}
	for _, limit := range []int{1, 2, 3, 7, 100} {
		var (
			got   []buffer.DeadKey
			after *buffer.DeadKey
		)
		for {
			page, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, after, limit)
			ok(t, "Dead", err)
			if len(page) == 0 {
				break
			}
			if len(page) > limit {
				t.Fatalf("a page of %d dead letters, the limit was %d", len(page), limit)
			}
			for _, e := range page {
				got = append(got, buffer.DeadKey{EventID: e.ID, GroupID: e.GroupID})
			}
			after = &got[len(got)-1]
		}
		equal(t, fmt.Sprintf("dead letters in pages of %d", limit), got, want)
	}
}

// A list for people has no more of a long text than they read, or 1000 dead letters would take gigabytes.
func deadNewestShort(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	const most = 4096
	long := strings.Repeat("ü", most+1)
	bury(t, f, long, outbox.Event{Topic: long, Key: &long, Payload: []byte("1")})
	got, err := f.Buffer.ListNewestDead(t.Context(), buffer.DeadFilter{Topic: long}, 100)
	ok(t, "ListNewestDead", err)
	equal(t, "dead letters", len(got), 1)
	for name, text := range map[string]string{"topic": got[0].Topic, "key": *got[0].Key, "error": got[0].Error} {
		equal(t, "characters of the "+name, utf8.RuneCountInString(text), most)
	}
	all, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 100)
	ok(t, "ListDead", err)
	if all[0].Topic != long || *all[0].Key != long || !strings.HasPrefix(all[0].Error, long) {
		t.Error("ListDead cuts what it lists")
	}
}

func deadNewest(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	var want []buffer.DeadEvent
	for i, ago := range []time.Duration{2 * lease, 4 * lease, lease, 3 * lease} {
		b := bury(t, f, fmt.Sprintf("refused %d", i), outbox.Event{Topic: "t", Key: text("k"), Payload: []byte("1"), Headers: outbox.Headers("{}")})
		died := time.Now().Add(-ago).UTC().Truncate(time.Millisecond)
		f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET died_at = '%s' WHERE event_id = %d", died.Format("2006-01-02T15:04:05.000Z"), b.LastID))
		all, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{IDs: []int64{b.LastID}}, nil, 1)
		ok(t, "ListDead", err)
		all[0].Payload, all[0].Headers, all[0].Row = nil, nil, nil
		want = append(want, all[0])
	}
	for _, c := range []struct {
		f     buffer.DeadFilter
		limit int
		want  []int
	}{
		{buffer.DeadFilter{}, 100, []int{2, 0, 3, 1}},
		{buffer.DeadFilter{}, 2, []int{2, 0}},
		{buffer.DeadFilter{OlderThan: 2*lease - lease/2}, 100, []int{0, 3, 1}},
	} {
		got, err := f.Buffer.ListNewestDead(t.Context(), c.f, c.limit)
		ok(t, "ListNewestDead", err)
		var newest []buffer.DeadEvent
		for _, i := range c.want {
			newest = append(newest, want[i])
		}
		sameDead(t, got, newest)
	}
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET closed_at = died_at, closed_as = 'discarded', closed_by = 'somebody', closed_reason = 'some reason' WHERE event_id = %d", want[2].ID))
	for closed, n := range map[bool]int{false: 3, true: 4} {
		got, err := f.Buffer.ListNewestDead(t.Context(), buffer.DeadFilter{Closed: closed}, 100)
		ok(t, "ListNewestDead", err)
		equal(t, "dead letters", len(got), n)
		if closed {
			equal(t, "the newest", []string{got[0].ClosedAs, got[0].ClosedBy, got[0].ClosedReason}, []string{"discarded", "somebody", "some reason"})
		}
	}
}

func deadNeighbours(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	mine := bury(t, f, "refused", orders(2)...)
	bury(t, n, "refused", orders(3)...)
	equal(t, "dead letters", dead(t, f.Buffer, buffer.DeadFilter{}), mine.IDs())
	count, err := f.Buffer.CountDead(t.Context(), buffer.DeadFilter{})
	ok(t, "CountDead", err)
	equal(t, "count", count, buffer.DeadCount{Open: 2, Unnotified: 2})
}
