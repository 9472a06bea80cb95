package watermark

import (
	"sync"
	"time"
)

// dueMargin is for how long a ledger row that is due is looked for; those due earlier were seen already.
const dueMargin = time.Minute

// DueLine is where the live batches of a sink begin on the ledger's time line, so that no statement walks over the index
// entries of those that were deleted. It is safe for concurrent use. The zero DueLine begins at the beginning.
type DueLine struct {
	mu      sync.Mutex
	floor   time.Time
	allNext time.Time
}

// After returns the time before which no batch is due.
func (d *DueLine) After() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.floor
}

// Next returns the same for a count, which begins at the beginning once a minute.
func (d *DueLine) Next(now time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.allNext) {
		return d.floor
	}
	d.allNext = now.Add(dueMargin)
	return time.Time{}
}

// Counted takes the result of such a count: the database's clock, and when the first batch is due; zero: there is none.
func (d *DueLine) Counted(now, oldest time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.floor = now.Add(-dueMargin)
	if !oldest.IsZero() && oldest.Before(d.floor) {
		d.floor = oldest.Add(-time.Microsecond)
	}
}
