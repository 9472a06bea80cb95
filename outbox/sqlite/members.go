package sqlite

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// runs are ids as the ledger keeps those of a batch that was claimed by range: first
// and last of each run without a gap, in order. Ids have gaps only where somebody
// deleted events or gave ids by hand, so a batch is mostly one run.
type runs [][2]int64

// largest is more events than any batch has.
const largest = 1 << 24

// runsOf are ids that are in order.
func runsOf(ids []int64) (r runs) {
	for _, id := range ids {
		if n := len(r); n > 0 && r[n-1][1]+1 == id {
			r[n-1][1] = id
			continue
		}
		r = append(r, [2]int64{id, id})
	}
	return r
}

// parseRuns reads what the ledger says. What is no list of runs in order names no event
// for certain, and is an error.
func parseRuns(text string) (r runs, err error) {
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("members %.40q: %w", text, err)
	}
	count := int64(0)
	for i, run := range r {
		if run[1] < run[0] || i > 0 && run[0] <= r[i-1][1] || uint64(run[1])-uint64(run[0]) >= largest { //nolint:gosec // the difference of two in order
			return nil, fmt.Errorf("members %.40q are not in order", text)
		}
		if count += run[1] - run[0] + 1; count > largest {
			return nil, fmt.Errorf("members %.40q are more than a batch has", text)
		}
	}
	return r, nil
}

func (r runs) text() (string, error) {
	text, err := json.Marshal(r)
	return string(text), err
}

// ids are all of them.
func (r runs) ids() (ids []int64) {
	for _, run := range r {
		for n := range run[1] - run[0] + 1 { // the last may be the highest id there is
			ids = append(ids, run[0]+n)
		}
	}
	return ids
}

// among returns those of ids, which may be in any order, that are in r.
func (r runs) among(ids []int64) runs {
	chosen := make([]int64, 0, len(ids))
	for _, id := range ids {
		i, _ := slices.BinarySearchFunc(r, id, func(run [2]int64, id int64) int { return cmp.Compare(run[1], id) })
		if i < len(r) && r[i][0] <= id {
			chosen = append(chosen, id)
		}
	}
	slices.Sort(chosen)
	return runsOf(slices.Compact(chosen))
}

// holding is what the ledger says of how a batch's events are found: by range when
// there are members, else by their stamp.
type holding struct {
	members, newest *string
	oldest          string // created_at of its oldest event
}

// extent is which rows of the buffer a statement means.
type extent struct {
	stamp       any // the group_id they carry; nil: none
	first, last int64
	ids         any // JSON array; nil: all between first and last
	newest      any // created_at of none is later; nil: it may be
	held        runs
}

func (e extent) args() []any { return []any{e.stamp, e.first, e.last, e.ids, e.newest} }

// extent of some of the batch's events, or of all when ids is nil. By range a younger
// event than the batch had is not one of its: it has an id that was handed out again.
func (h holding) extent(batch *buffer.Lease, ids []int64) (e extent, err error) {
	if h.members == nil {
		e = extent{stamp: batch.GroupID.String(), first: batch.FirstID, last: batch.LastID}
		e.ids, err = idsText(ids)
		return e, err
	}
	e = extent{first: 1, newest: h.newest} // nothing yet
	if e.held, err = parseRuns(*h.members); err != nil {
		return e, nil //nolint:nilerr // what cannot be read holds nothing, see free
	}
	if ids != nil {
		e.held = e.held.among(ids)
	}
	if len(e.held) == 0 {
		return e, nil
	}
	which, err := e.held.extent()
	which.newest = e.newest
	return which, err
}

// extent of events that carry no stamp.
func (r runs) extent() (e extent, err error) {
	e = extent{first: r[0][0], last: r[len(r)-1][1], held: r}
	if len(r) > 1 {
		e.ids, err = idsText(r.ids())
	}
	return e, err
}

const heldSQL = `
SELECT members FROM outbox_batches
WHERE buffer = ?1 AND claim = 'range' AND last_id > ?2`

// free are the ids beyond from that no live batch holds by range. A batch whose members
// cannot be read holds nothing: its events are sent again rather than lost.
func (b *Buffer) free(ctx context.Context, tx transaction, from int64) (string, error) {
	all, err := column[string](tx.rows(ctx, heldSQL, b.config.Table, from))
	if err != nil {
		return "", err
	}
	var held runs
	for _, text := range all {
		if r, err := parseRuns(text); err == nil {
			held = append(held, r...)
		}
	}
	slices.SortFunc(held, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	free := make(runs, 0, len(held)+1)
	for _, run := range held {
		if from+1 < run[0] {
			free = append(free, [2]int64{from + 1, run[0] - 1})
		}
		from = max(from, run[1])
	}
	if from < math.MaxInt64 {
		free = append(free, [2]int64{from + 1, math.MaxInt64})
	}
	return free.text()
}
