package postgres

import (
	"math"
	"testing"

	"github.com/outboxrelay/relay/outbox"
)

// Two claims overlap; the one that read the sequence first ends last. What it read
// is below the cursor by then, which must not send everybody back to the
// beginning, where the dead rows are.
func TestAnOldLastValueDoesNotSetTheCursorBack(t *testing.T) {
	t.Parallel()
	var m marks
	m.startAt(100)
	fresh := claimRange{after: 100, upTo: math.MaxInt64}
	m.claimed(fresh, &outbox.Batch{LastID: 190}, 200)
	m.claimed(fresh, &outbox.Batch{LastID: 150}, 160)
	if m.cursor != 190 || m.floor != 100 {
		t.Errorf("cursor %d, floor %d; want 190, 100", m.cursor, m.floor)
	}
}

func TestASequenceThatWasSetBackDoes(t *testing.T) {
	t.Parallel()
	var m marks
	m.startAt(100)
	r := lookRange{cursor: 100, lateAfter: 100, sweep: true, limit: 10}
	m.claimed(claimRange{after: 100, upTo: math.MaxInt64}, nil, 7)
	if m.cursor != 0 || m.floor != 0 {
		t.Errorf("cursor %d, floor %d; want 0, 0", m.cursor, m.floor)
	}
	// A look that began before, and read the sequence before.
	m.saw(r, looked{lastValue: 100}, r.dueAfter)
	if m.cursor != 0 || m.watched != 0 {
		t.Errorf("cursor %d, watched %d; want 0, 0", m.cursor, m.watched)
	}
}
