package buffertest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var peekCases = []testCase{
	{name: "peek/returns the next events and claims nothing", run: peekFirst},
	{name: "peek/returns nothing from an empty buffer", run: peekNothing},
}

// peek peeks and expects that it changed nothing.
func peek(t *testing.T, f *Fixture, limit int) *buffer.Lease {
	t.Helper()
	var batch *buffer.Lease
	untouched(t, f, "Peek", func() {
		var err error
		batch, err = f.Buffer.Peek(t.Context(), limit)
		ok(t, "Peek", err)
	})
	return batch
}

func peekFirst(t *testing.T, h Harness) {
	for _, opt := range []Options{{}, {Bytes: true}} {
		f := h.Open(t, opt)
		events := orders(7)
		events[2].Key, events[2].Headers = text("k"), outbox.Headers(`{"a": "b"}`)
		f.Insert(t, events...)
		claim(t, f.Buffer, 2) // Peek skips claimed events
		peeked := peek(t, f, 3)
		if peeked == nil {
			t.Fatalf("Peek: nothing, although there are unclaimed events")
		}
		equal(t, "pipeline", peeked.Pipeline, f.Pipeline)
		equal(t, "PayloadIsJSON", peeked.PayloadIsJSON, !opt.Bytes)
		countBacklog(t, f.Buffer, 100, buffer.Backlog{Unclaimed: 5})
		b := claim(t, f.Buffer, 3)
		if d := cmp.Diff(b.Events, peeked.Events, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("what a claim takes (-) and what Peek showed (+):\n%s", d)
		}
	}
}

func peekNothing(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	if b := peek(t, f, 3); b != nil {
		t.Fatalf("Peek: events %v, want none", b.IDs())
	}
	f.Insert(t, orders(2)...)
	claim(t, f.Buffer, 10)
	if b := peek(t, f, 3); b != nil {
		t.Fatalf("Peek: events %v, which are claimed", b.IDs())
	}
}
