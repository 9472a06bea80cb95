package buffer_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestGroupIDsGrow(t *testing.T) {
	t.Parallel()
	last := buffer.NewGroupID()
	for range 1000 {
		next := buffer.NewGroupID()
		if next.Version() != 7 {
			t.Fatalf("%s is of version %d, want 7", next, next.Version())
		}
		if slices.Compare(next[:], last[:]) <= 0 {
			t.Fatalf("%s was drawn after %s and sorts before it", next, last)
		}
		last = next
	}
}

func TestBatchIDs(t *testing.T) {
	t.Parallel()
	b := buffer.Lease{Batch: buffer.Batch{Events: []outbox.Event{{ID: 3}, {ID: 5}}}}
	ids := b.IDs()
	if !slices.Equal(ids, []int64{3, 5}) {
		t.Fatalf("ids are %v, want 3 and 5", ids)
	}
	ids[0] = 99
	if b.Events[0].ID != 3 {
		t.Fatal("the ids are not the caller's own")
	}
	if b.DeliveryRecorded() {
		t.Fatal("a batch of which nothing was delivered is marked")
	}
	b.Delivered = []int64{5}
	if !b.DeliveryRecorded() {
		t.Fatal("a batch of which a part was delivered is not marked")
	}
}

// TestAge: the two clocks may differ by hours; an event's age does not.
func TestAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		database := time.Now().Add(-5 * time.Hour) // how far its clock is behind
		b := buffer.Lease{ClaimedAt: database, ClaimedLocal: time.Now()}
		e := outbox.Event{CreatedAt: database.Add(-3 * time.Second)}
		<-time.After(2 * time.Second)
		if age := b.Age(&e); age != 5*time.Second {
			t.Fatalf("the event is %v old, want 5s", age)
		}
	})
}

func TestVerdictNames(t *testing.T) {
	t.Parallel()
	for v, want := range map[buffer.Verdict]string{
		buffer.Delivered: "delivered", buffer.Retry: "retry", buffer.Dead: "dead", 7: "Verdict(7)",
	} {
		if got := fmt.Sprint(v); got != want {
			t.Errorf("verdict %d is called %q, want %q", uint8(v), got, want)
		}
	}
}

func TestLease_RejectedEvents(t *testing.T) {
	t.Parallel()
	l := &buffer.Lease{Batch: buffer.Batch{Events: []outbox.Event{{ID: 1}, {ID: 4}}}}
	l.Rejected = []buffer.Rejection{{Event: outbox.Event{ID: 2}, Err: buffer.ErrNotProjected}}
	expect := func(sent int, want ...int64) {
		t.Helper()
		var all []int64
		for _, e := range l.AllEvents() {
			all = append(all, e.ID)
		}
		if !slices.Equal(l.IDs(), want) || !slices.Equal(all, want) || l.Len() != len(want) || len(l.Batch.IDs()) != sent {
			t.Errorf("got ids %v, events %v, length %d, to be sent %v; want %v", l.IDs(), all, l.Len(), l.Batch.IDs(), want)
		}
	}
	expect(2, 1, 2, 4)
	l.FailProjection(buffer.ErrEventData)
	expect(0, 1, 2, 4)
}

func TestBatch_Part(t *testing.T) {
	t.Parallel()
	b := &buffer.Batch{
		GroupID: buffer.NewGroupID(), Events: []outbox.Event{{ID: 1}, {ID: 2}, {ID: 3}},
		DeadLetters: []*buffer.DeadLetter{{Attempts: 1}, {Attempts: 2}, {Attempts: 3}},
	}
	part := b.Part([]int{0, 2})
	if !slices.Equal(part.IDs(), []int64{1, 3}) || part.GroupID != b.GroupID || part.DeadLetter(1).Attempts != 3 || len(b.Events) != 3 {
		t.Errorf("part is %+v of %+v", part, b)
	}
	if b.DeadLetters = nil; b.Part([]int{1}).DeadLetter(0) != nil {
		t.Error("a part of an ordinary batch has dead letters")
	}
}

// Origins are bounded: the first and the latest are kept.
func TestBatch_PartOrigins(t *testing.T) {
	t.Parallel()
	b := &buffer.Batch{GroupID: buffer.NewGroupID()}
	first := b.GroupID
	var all []uuid.UUID
	for range 200 {
		all = append(all, b.GroupID)
		origins := b.PartOrigins()
		n := len(origins)
		if n != min(len(all), 64) || origins[0] != first || !slices.Equal(origins[1:], all[len(all)-n+1:]) {
			t.Fatalf("%d of %d origins; want the first and the latest, at most 64", n, len(all))
		}
		b = &buffer.Batch{GroupID: buffer.NewGroupID(), Origins: origins}
	}
}

// An event with a uuid is logged by it.
func TestLease_LogID(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	l := buffer.Lease{FirstID: 7}
	l.Events = []outbox.Event{{ID: 7, UUID: id}, {ID: 8}}
	l.Rejected = []buffer.Rejection{{Event: outbox.Event{ID: 9, UUID: id}}}
	for of, want := range map[int64]any{0: id.String(), 7: id.String(), 8: int64(8), 9: id.String(), 10: int64(10)} {
		if got := l.LogID(of); got != want {
			t.Errorf("%d is logged as %v, want %v", of, got, want)
		}
	}
}
