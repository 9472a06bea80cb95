package redissink_test

import (
	"errors"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// Fence reports whether the events are present. If they are not, no Send can add them any
// more under their group_id or its origins.
func TestFence(t *testing.T) {
	t.Parallel()
	url := testserver.SharedRedis(t)
	s, err := redissink.New(redissink.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	batch := func(origins ...*buffer.Batch) *buffer.Batch {
		b := &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "p", PayloadIsJSON: true, Events: []outbox.Event{
			{ID: 1, Topic: "a", Payload: []byte("{}")}, {ID: 2, Topic: "b", Payload: []byte("{}")},
		}}
		for _, o := range origins {
			b.Origins = append(b.Origins, o.GroupID)
		}
		return b
	}
	fence := func(b *buffer.Batch, want bool) {
		t.Helper()
		delivered, err := s.Fence(t.Context(), b)
		if err != nil || delivered != want {
			t.Errorf("Fence: %v, %v; want %v", delivered, err, want)
		}
	}
	send := func(b *buffer.Batch, want error) {
		t.Helper()
		if err := s.Send(t.Context(), b); !errors.Is(err, want) {
			t.Errorf("Send: %v, want %v", err, want)
		}
	}
	sent := batch()
	send(sent, nil)
	fence(sent, true)
	fence(batch(sent), true) // a part
	fence(sent, true)

	before := batch()
	unsent := batch(before)
	fence(unsent, false)
	fence(unsent, false)
	send(unsent, sink.ErrFenced)
	send(before, sink.ErrFenced)
	send(batch(before), nil) // another part can still be sent

	half := batch()
	half.Events = half.Events[:1]
	send(half, nil)
	half = &buffer.Batch{GroupID: half.GroupID, Pipeline: "p", PayloadIsJSON: true, Events: batch().Events}
	fence(half, false) // the other stream has no event

	list, err := redissink.New(redissink.Config{URL: url, Mode: redissink.List})
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	if delivered, err := list.Fence(t.Context(), batch()); delivered || err != nil {
		t.Errorf("Fence of a list: %v, %v", delivered, err)
	}
}
