package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestCustomSinks_Replay: an event that is dead at one sink while another has it joins its claim; one that is gone goes back once, for every sink
// that has a dead letter of it.
func TestCustomSinks_Replay(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivitySinks(t, key, "")
		o.activity(t, 1, "a.odd", "1")
		o.activity(t, 2, "b.odd", "1")
		routeAll(t, o.Buffer, "[all odd]")
		bury := func(sink string, batch *buffer.Lease, n int) {
			t.Helper()
			outcomes := []buffer.Outcome{{Verdict: buffer.Dead, IDs: batch.IDs()[:n], Error: "refused"}}
			if rest := batch.IDs()[n:]; len(rest) > 0 {
				outcomes = append(outcomes, buffer.Outcome{Verdict: buffer.Delivered, IDs: rest})
			}
			check(t, o.Sink(sink).Settle(t.Context(), batch, outcomes))
		}
		replay := func(want int) {
			t.Helper()
			if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != want || err != nil {
				t.Fatalf("replayed %d, %v; want %d", n, err, want)
			}
		}
		odd := takeOverOf(t, o.Sink("odd"), "a.odd", "b.odd")
		bury("odd", odd, 1)
		replay(1)
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd", "b.odd"))
		o.expect(t, "SELECT activity::text FROM things", "1")
		bury("odd", takeOverOf(t, o.Sink("odd"), "a.odd"), 1)
		o.expect(t, nothingLeft, "0/0")
		replay(1)
		bury("odd", takeOverOf(t, o.Sink("odd"), "a.odd"), 1)

		o.activity(t, 3, "c.odd", "1")
		routeAll(t, o.Buffer, "[all odd]")
		bury("all", takeOverOf(t, o.Sink("all"), "c.odd"), 1)
		bury("odd", takeOverOf(t, o.Sink("odd"), "c.odd"), 1)
		replay(3)
		o.expect(t, "SELECT string_agg(activity::text, ',' ORDER BY id) FROM things", "1,3")
		o.wantAgreement(t, "a replay")
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "c.odd"))
		o.expect(t, "SELECT string_agg(activity::text, ',' ORDER BY id) FROM things", "1,3")
		deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "a.odd", "c.odd"))
		o.expect(t, nothingLeft, "0/0")
	})
}

// TestCustomSinks_ReplayTwice: the dead letters of a second sink are replayed while an event that was put back for a first one still waits there.
func TestCustomSinks_ReplayTwice(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivitySinks(t, key, "")
		o.activity(t, 1, "a.odd", "1")
		o.activity(t, 2, "b.odd", "1")
		o.activity(t, 3, "c.odd", "1")
		routeAll(t, o.Buffer, "[all odd]")
		for _, sink := range []string{"all", "odd"} {
			q := o.Sink(sink)
			batch := takeOverOf(t, q, "a.odd", "b.odd", "c.odd")
			check(t, q.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, IDs: batch.IDs(), Error: "refused"}}))
		}
		o.expect(t, nothingLeft, "0/0")
		for _, sink := range []string{"all", "odd"} {
			if n, err := o.Replay(t.Context(), buffer.DeadFilter{Sink: sink}, 10); n != 3 || err != nil {
				t.Fatalf("replayed %d of sink %s, %v; want 3", n, sink, err)
			}
		}
		o.wantAgreement(t, "two replays")
		odd := o.Sink("odd")
		batch := takeOverOf(t, odd, "a.odd", "b.odd", "c.odd")
		check(t, odd.Settle(t.Context(), batch, []buffer.Outcome{
			{Verdict: buffer.Delivered, IDs: batch.IDs()[:2]}, {Verdict: buffer.Dead, IDs: batch.IDs()[2:], Error: "refused"},
		}))
		if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v; want the one that was refused again", n, err)
		}
		o.wantAgreement(t, "a third replay")
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd", "b.odd", "c.odd"))
		deliverAll(t, odd, takeOverOf(t, odd, "c.odd"))
		o.expect(t, nothingLeft, "0/0")
	})
}

// TestCustomSinks_Repair: a repair removes batches whose events are gone, and no other.
func TestCustomSinks_Repair(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivitySinks(t, key, "")
		o.activity(t, 1, "a", "1")
		routeAll(t, o.Buffer, "[all]")
		o.activity(t, 2, "b.odd", "1")
		o.activity(t, 3, "c.odd", "1")
		routeAll(t, o.Buffer, "[all odd]")
		o.wantAgreement(t, "two routes")
		o.exec(t, "DELETE FROM things WHERE activity IN (1, 2)")
		repaired, err := o.Repair(t.Context())
		check(t, err)
		if repaired.Removed != 1 || repaired.Corrected != 2 || repaired.Adopted.Events != 0 {
			t.Errorf("repaired %+v, want one batch removed and two corrected", repaired)
		}
		if a := o.wantAgreement(t, "the repair"); a.Waiting != (buffer.Count{Batches: 2, Events: 2}) {
			t.Errorf("left: %+v", a)
		}
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "c.odd"))
		deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "c.odd"))
		o.expect(t, nothingLeft, "0/0")
	})
}

// TestCustomSinks_Unmatched: an event that no sink takes is a dead letter, or waits until one does.
func TestCustomSinks_Unmatched(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivitySinks(t, key, "")
		o.config.Sinks = o.config.Sinks[1:]
		for _, unmatched := range []buffer.Unmatched{buffer.UnmatchedError, buffer.UnmatchedKeep} {
			o.config.Unmatched = unmatched
			o.Buffer = o.open(t, o.config)
			id := len(unmatched)
			o.activity(t, id, "a.even", "1")
			o.activity(t, id+10, "a.odd", "1")
			routeAll(t, o.Buffer, "[odd]")
			if unmatched == buffer.UnmatchedError {
				o.exec(t, "UPDATE relay.outbox_batches SET due_at = clock_timestamp() WHERE sink = '*'")
				if routed, err := o.RouteDue(t.Context(), lease); err != nil || routed == nil || routed.Events != 1 {
					t.Fatalf("deleted %+v, %v; want one event", routed, err)
				}
				o.expect(t, "SELECT sink || ' ' || error FROM relay.outbox_dead_letters", "* no sink takes topic a.even")
				o.exec(t, "UPDATE activities SET topic = 'b.odd' WHERE id = "+fmt.Sprint(id))
				if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
					t.Fatalf("replayed %d, %v; want 1", n, err)
				}
			} else {
				o.exec(t, "UPDATE activities SET topic = 'b.odd' WHERE id = "+fmt.Sprint(id))
				o.exec(t, "UPDATE relay.outbox_batches SET due_at = clock_timestamp() WHERE sink = '*'")
			}
			if routed, err := o.RouteDue(t.Context(), lease); err != nil || routed == nil || routed.Events != 1 {
				t.Fatalf("routed %+v, %v; want one event", routed, err)
			}
			deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "a.odd"))
			deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "b.odd"))
			o.expect(t, nothingLeft, "0/0")
		}
	})
}

// TestCustomSinks_WasSingle: batches of the single sink that a uuid table had are taken over by the sink that takes its place.
func TestCustomSinks_WasSingle(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivitySinks(t, key, "")
		sinks := o.config.Sinks
		o.exec(t, "DELETE FROM relay.outbox_sinks; UPDATE relay.outbox_buffers SET routed = false")
		o.config.Sinks = nil
		single := o.open(t, o.config)
		for i := range 3 {
			o.activity(t, i+1, "a.odd", "1")
		}
		batch, err := single.Claim(t.Context(), 10, lease)
		check(t, err)
		check(t, single.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Outages: 1}}))
		o.config.Sinks = append([]buffer.Route{{Sink: "all", Was: "default", BatchSize: 100}}, sinks[1:]...)
		o.Buffer = o.open(t, o.config)
		check(t, o.RegisterSinks(t.Context()))
		o.exec(t, "UPDATE relay.outbox_batches SET due_at = clock_timestamp()")
		all := o.Sink("all")
		batch = takeOverOf(t, all, "a.odd", "a.odd", "a.odd")
		check(t, all.Settle(t.Context(), batch, []buffer.Outcome{
			{Verdict: buffer.Delivered, IDs: batch.IDs()[:1]}, {Verdict: buffer.Retry, IDs: batch.IDs()[1:], GroupID: buffer.NewGroupID()},
		}))
		o.expect(t, "SELECT sink || ' ' || events FROM relay.outbox_batches", "all 2")
		deliverAll(t, all, takeOverOf(t, all, "a.odd", "a.odd"))
		o.expect(t, nothingLeft, "0/0")
	})
}

// TestCustomSinks_Edit: a row is edited once no sink waits for its event, and only the sink where it is dead gets it again.
func TestCustomSinks_Edit(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivitySinks(t, key, "")
		o.activity(t, 1, "a.odd", "1")
		o.exec(t, "INSERT INTO activities VALUES (2, 'b.odd', '1')")
		routeAll(t, o.Buffer, "[all odd]")
		odd := takeOverOf(t, o.Sink("odd"), "a.odd")
		check(t, o.Sink("odd").Settle(t.Context(), odd, []buffer.Outcome{{Verdict: buffer.Dead, Error: "refused"}}))
		letters, err := o.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
		check(t, err)
		old := letters[0].Row
		e := buffer.DeadEdit{
			ID: letters[0].ID, UUID: letters[0].UUID, Row: true,
			Old: old, New: bytes.Replace(old, []byte(`"activity":1`), []byte(`"activity":2`), 1),
		}
		if err := o.EditDead(t.Context(), e); !errors.Is(err, buffer.ErrEventWaits) {
			t.Errorf("while a sink waits: %v", err)
		}
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd"))
		check(t, o.EditDead(t.Context(), e))
		if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v; want 1", n, err)
		}
		takeOverOf(t, o.Sink("all"))
		deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "b.odd"))
		o.expect(t, nothingLeft, "0/0")
	})
}

// TestCustomSinks_ReplayReusedID: an event whose id was used before is not that of the dead letter, which waits until it is gone.
func TestCustomSinks_ReplayReusedID(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "Integer", "")
	all, odd := o.Sink("all"), o.Sink("odd")
	replay := func(want int) {
		t.Helper()
		if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != want || err != nil {
			t.Fatalf("replayed %d, %v; want %d", n, err, want)
		}
	}
	o.activity(t, 1, "a.odd", "1")
	routeAll(t, o.Buffer, "[all odd]")
	batch := takeOverOf(t, odd, "a.odd")
	check(t, odd.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Error: "refused"}}))
	deliverAll(t, all, takeOverOf(t, all, "a.odd"))
	o.expect(t, nothingLeft, "0/0")

	o.exec(t, "TRUNCATE things RESTART IDENTITY")
	o.activity(t, 2, "b.odd", "1")
	routeAll(t, o.Buffer, "[all odd]")
	deliverAll(t, odd, takeOverOf(t, odd, "b.odd"))
	replay(0)
	takeOverOf(t, odd)
	deliverAll(t, all, takeOverOf(t, all, "b.odd"))
	replay(1)
	deliverAll(t, odd, takeOverOf(t, odd, "a.odd"))
	o.expect(t, nothingLeft, "0/0")
}
