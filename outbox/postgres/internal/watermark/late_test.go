package watermark

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// world is a sequence, transactions that draw ids from it, and a buffer of one process that claims and counts.
type world struct {
	now       time.Time
	lastValue int64
	step      int64              // between ids; so far apart that claims leave late commits to sweeps, if it is large
	open      map[string][]int64 // the ids of each transaction that holds a lock on the sequence
	prepared  map[string]bool    // those that are prepared
	began     int
	visible   map[int64]bool // committed and unclaimed
	w         *Watermarks
}

func newWorld() *world {
	return &world{now: time.Now(), open: map[string][]int64{}, prepared: map[string]bool{}, visible: map[int64]bool{}, w: New(false)}
}

func (w *world) begin() {
	w.began++
	w.open[fmt.Sprint(w.began)] = nil
}

func (w *world) holders() (all []string) {
	for h, ids := range w.open {
		if len(ids) > 0 {
			all = append(all, h)
		}
	}
	slices.Sort(all)
	return all
}

func (w *world) draw(h string) {
	w.lastValue += max(1, w.step)
	w.open[h] = append(w.open[h], w.lastValue)
}

func (w *world) end(h string, commit bool) {
	for _, id := range w.open[h] {
		if commit {
			w.visible[id] = true
		}
	}
	delete(w.open, h)
}

func (w *world) within(after, upTo int64) (ids []int64) {
	for id := range w.visible {
		if id > after && id <= upTo {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// crash is that of a backend: the server goes on, without the transactions that are not prepared. The others hold their locks under
// another name.
func (w *world) crash() {
	open, prepared := map[string][]int64{}, map[string]bool{}
	for h, ids := range w.open {
		if w.prepared[h] {
			h = recoveredPrefix + strings.TrimPrefix(h, recoveredPrefix)
			open[h], prepared[h] = ids, true
		}
	}
	w.open, w.prepared = open, prepared
}

// act is something that transactions do, which may happen between two statements of the relay.
func (w *world) act(t *rapid.T) {
	open := slices.Sorted(func(yield func(string) bool) {
		for h := range w.open {
			if !yield(h) {
				return
			}
		}
	})
	what := rapid.IntRange(0, 6).Draw(t, "what")
	switch {
	case what == 0 && len(open) < 6:
		w.begin()
	case len(open) == 0:
	case what <= 3:
		if h := rapid.SampledFrom(open).Draw(t, "draws"); !w.prepared[h] {
			w.draw(h)
		}
	case what == 6:
		w.prepared[rapid.SampledFrom(open).Draw(t, "prepares")] = true
	case what == 4:
		w.end(rapid.SampledFrom(open).Draw(t, "commits"), true)
	default:
		w.end(rapid.SampledFrom(open).Draw(t, "ends"), rapid.Bool().Draw(t, "commits"))
	}
}

// claim claims up to limit events. between runs between the statements.
func (w *world) claim(limit int, between func()) {
	for _, r := range w.w.Ranges() {
		seen := Sequence{LastValue: w.lastValue}
		between()
		ids := w.within(r.After, r.UpTo)
		if len(ids) == 0 {
			w.w.Claimed(r, nil, seen)
			continue
		}
		b := &buffer.Lease{}
		for _, id := range ids[:min(limit, len(ids))] {
			b.Events = append(b.Events, outbox.Event{ID: id})
			delete(w.visible, id)
		}
		b.FirstID, b.LastID = b.Events[0].ID, b.Events[len(b.Events)-1].ID
		between()
		w.w.Claimed(r, b, seen)
		return
	}
}

// count counts, with a sweep if one is due. between runs between reading M, the snapshot and the locks.
func (w *world) count(between func()) {
	r := w.w.NextCount(w.now, 1000)
	c := Count{Sequence: Sequence{LastValue: w.lastValue}, Now: w.now}
	between()
	c.Fresh, c.Late = len(w.within(r.Cursor, math.MaxInt64)), len(w.within(r.LateAfter, r.LateUpTo))
	between()
	if r.Sweep {
		c.LockHolders = w.holders()
	}
	w.w.Counted(r, c, w.now)
	w.now = w.now.Add(sweepInterval)
}

// TestSweeps_FindLateCommits: whatever transactions do between the statements of claims and counts, what has committed is claimed three
// sweeps later.
func TestSweeps_FindLateCommits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.step = rapid.SampledFrom([]int64{1, 2 * lateSpan}).Draw(t, "step")
		between := func() {
			for range rapid.IntRange(0, 2).Draw(t, "steps between") {
				w.act(t)
			}
		}
		for range rapid.IntRange(10, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "next") {
			case 6:
				w.crash()
			case 0:
				w.claim(rapid.IntRange(1, 5).Draw(t, "limit"), between)
			case 1:
				w.count(between)
			default:
				w.act(t)
			}
		}
		// Whatever is open stays open. Sweeps follow each other, and what they find is claimed.
		nothing := func() {}
		for range 3 {
			w.count(nothing)
			for range len(w.visible) + 2 {
				w.claim(1000, nothing)
			}
		}
		if len(w.visible) > 0 {
			t.Fatalf("%v wait for nobody; cursor %d, floor %d, next sweep from %d", w.within(0, math.MaxInt64), w.w.cursor, w.w.floor, w.w.sweepFrom)
		}
	})
}

// TestSweeps_LeaveOpenTransactionsOut: a sweep does not read what a transaction that is open has inserted, and finds it when the
// transaction has committed.
func TestSweeps_LeaveOpenTransactionsOut(t *testing.T) {
	t.Parallel()
	w := newWorld()
	nothing := func() {}
	short := func() {
		w.open["short"] = nil
		w.draw("short")
		w.end("short", true)
		w.claim(1000, nothing)
		w.count(nothing)
	}
	short()
	w.open["large"] = nil
	for range 1_000_000 {
		w.draw("large")
	}
	for range 4 {
		short()
	}
	for range 10 {
		if r := w.w.NextCount(w.now, 1000); !r.Sweep || r.LateUpTo-r.LateAfter > 10 {
			t.Fatalf("the sweep reads (%d, %d]", r.LateAfter, r.LateUpTo)
		}
		for _, r := range w.w.Ranges() {
			if r.Late && r.UpTo-r.After > 10 && r.UpTo < math.MaxInt64 || r.After == w.w.floor {
				t.Fatalf("the claim reads (%d, %d]", r.After, r.UpTo)
			}
		}
		short()
	}
	w.end("large", true)
	w.count(nothing)
	w.count(nothing)
	w.claim(1000, nothing)
	if len(w.visible) != 999_000 {
		t.Errorf("%d events of the large transaction wait, want 999,000 after a claim", len(w.visible))
	}
}

// TestFloor_WaitsForRecovered: neither the floor nor a sweep passes what a prepared transaction inserted before a backend crashed.
// It holds its lock under another name from then on.
func TestFloor_WaitsForRecovered(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.step = 2 * lateSpan // only sweeps find late commits
	nothing := func() {}
	w.open["prepared"], w.prepared["prepared"] = nil, true
	w.draw("prepared")
	insert := func() {
		w.open["short"] = nil
		w.draw("short")
		w.end("short", true)
		w.claim(1000, nothing)
		w.count(nothing)
	}
	for range 5 {
		insert()
	}
	w.crash()
	for range 5 {
		insert()
	}
	if w.w.floor > 0 {
		t.Errorf("floor %d", w.w.floor)
	}
	w.end(recoveredPrefix+"prepared", true)
	for range 3 {
		w.count(nothing)
		w.claim(1000, nothing)
	}
	if len(w.visible) > 0 {
		t.Errorf("%v waits; floor %d, next sweep from %d", w.within(0, math.MaxInt64), w.w.floor, w.w.sweepFrom)
	}
}
