package pipeline

import (
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestWeight(t *testing.T) {
	t.Parallel()
	var w weight
	expect := func(what string, limit, least, most int) {
		t.Helper()
		if got := w.fit(limit); got < least || got > most {
			t.Errorf("%s: %d events of %d fit; want %d to %d", what, got, limit, least, most)
		}
	}
	expect("nothing known", 1000, 1000, 1000)
	w.record(1000, 1000*300)
	expect("small events", 1000, 1000, 1000)
	w.record(1000, 1000*200_000)
	expect("large ones follow", 1000, 1, buffer.MaxBytes/200_000*2)
	for range 20 {
		w.record(10, 10*200_000)
	}
	expect("only large ones", 1000, 10, buffer.MaxBytes/200_000)
	w.record(1, 10*buffer.MaxBytes)
	expect("a single one is larger than a batch", 1000, 1, 10)
	for range 20 {
		n := w.fit(1000)
		w.record(n, n*300)
	}
	expect("small ones again", 1000, 1000, 1000)
}

// A batch that was not read may have no events, or not say how many fit.
func TestWeight_OfNothing(t *testing.T) {
	t.Parallel()
	l := &limiter{}
	l.weigh(&buffer.Lease{NotRead: buffer.ErrTooLarge})
	if got := l.fit(1000); got != 1000 {
		t.Errorf("after a batch without events %d fit; want 1000", got)
	}
	l.weigh(&buffer.Lease{NotRead: buffer.ErrTooLarge, Batch: buffer.Batch{Events: make([]outbox.Event, 2)}})
	if got := l.fit(1000); got != 1 {
		t.Errorf("after a batch of which nothing fitted %d fit; want 1", got)
	}
}
