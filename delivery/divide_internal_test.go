package delivery

import (
	"testing"

	"github.com/google/uuid"
)

// TestFailedReads: reads in a row are counted for each batch, and a batch that another process settles is not remembered for ever.
func TestFailedReads(t *testing.T) {
	t.Parallel()
	var f failedReads
	count := func(batch uuid.UUID, want int) {
		t.Helper()
		if got := f.failed(batch); got != want {
			t.Fatalf("%d failed reads in a row, want %d", got, want)
		}
	}
	first, second := uuid.New(), uuid.New()
	count(first, 1)
	count(first, 2)
	count(second, 1)
	f.forget(first)
	count(first, 1)
	count(second, 2)
	f.forget(first)
	f.forget(second)
	for range 2 * maxBatches {
		one := uuid.New()
		count(one, 1)
		count(one, 2) // the newest is not the one that is forgotten
		if len(f.batches) > maxBatches {
			t.Fatalf("%d batches are remembered, want at most %d", len(f.batches), maxBatches)
		}
	}
	for batch := range f.batches {
		count(batch, 3) // none of them makes another one forgotten
	}
	if len(f.batches) != maxBatches {
		t.Errorf("%d batches are remembered, want %d", len(f.batches), maxBatches)
	}
}
