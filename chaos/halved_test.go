//go:build unix

package chaos

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// halvedSQL records the group_ids of batches that were halved because their owners died. The halves have other
// Idempotency-Keys, so the API accepts their events once more if it had accepted the batch before its owners died.
const halvedSQL = `
CREATE TABLE chaos_halved (sink text NOT NULL, group_id uuid NOT NULL);
CREATE FUNCTION chaos_halved() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.chaos_halved SELECT NEW.sink, unnest(NEW.origins); RETURN NULL; END $$;
CREATE TRIGGER chaos_halved AFTER INSERT ON outbox_batches FOR EACH ROW
  WHEN (NEW.error LIKE '%owners in a row did not finish this batch%') EXECUTE FUNCTION chaos_halved()`

// notHalved returns those of the ids that arrived more than once under group_ids that were not halved, and how many
// more arrivals the others had.
func notHalved(ids []int64, arrivals []arrival, halved map[uuid.UUID]bool) (left []int64, excused int64) {
	whole, all := map[int64]int{}, map[int64]int64{}
	for _, v := range arrivals {
		all[v.ID]++
		if !halved[v.GroupID] {
			whole[v.ID]++
		}
	}
	for _, id := range ids {
		if whole[id] > 1 || all[id] == 0 {
			left = append(left, id)
		} else {
			excused += all[id] - 1
		}
	}
	return left, excused
}

// excuse takes the events away that the API got twice because their batch was halved, and counts their arrivals.
// Only the API recognises events by the batch: for the other sinks all ids are left.
func (r *run) excuse(ctx context.Context, conn *pgx.Conn, a *account, ids []int64) (left []int64, excused int64) {
	if a != r.crm || len(ids) == 0 {
		return ids, 0
	}
	rows, err := conn.Query(ctx, "SELECT DISTINCT group_id FROM chaos_halved WHERE sink = $1", a.sink)
	r.check(err)
	groups, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	r.check(err)
	halved, wanted := map[uuid.UUID]bool{}, map[int64]bool{}
	for _, g := range groups {
		halved[g] = true
	}
	for _, id := range ids {
		wanted[id] = true
	}
	arrivals, err := a.history(wanted)
	r.check(err)
	return notHalved(ids, arrivals, halved)
}

func TestNotHalved(t *testing.T) {
	t.Parallel()
	batch, half, other := uuid.New(), uuid.New(), uuid.New()
	arrivals := []arrival{
		{ID: 1, GroupID: batch},
		{ID: 1, GroupID: half},
		{ID: 2, GroupID: other},
		{ID: 2, GroupID: half},
		{ID: 3, GroupID: batch},
		{ID: 3, GroupID: half},
		{ID: 3, GroupID: other},
	}
	left, excused := notHalved([]int64{1, 2, 3, 4}, arrivals, map[uuid.UUID]bool{batch: true})
	if want := []int64{2, 3, 4}; !slices.Equal(left, want) || excused != 1 {
		t.Errorf("%d are left and %d are excused, want %d and 1", left, excused, want)
	}
	if left, excused = notHalved([]int64{1}, arrivals, nil); len(left) != 1 || excused != 0 {
		t.Errorf("nothing was halved: %d are left and %d are excused", left, excused)
	}
}

// afterWindow takes the events away of which no two arrivals lie within the window, and counts their duplicates: a stream promises nothing beyond it.
func afterWindow(ids []int64, arrivals []arrival, window time.Duration) (left []int64, late int64) {
	at := map[int64][]int64{}
	for _, v := range arrivals {
		at[v.ID] = append(at[v.ID], v.At)
	}
	for _, id := range ids {
		times := at[id]
		slices.Sort(times)
		within := len(times) < 2
		for i := range times[min(1, len(times)):] {
			within = within || times[i+1]-times[i] <= window.Milliseconds()
		}
		if within {
			left = append(left, id)
		} else {
			late += int64(len(times)) - 1
		}
	}
	return left, late
}

// excuseLate takes the events away that JetStream got twice because a batch waited for longer than its duplicate window, as on a machine that has too
// much else to do.
func (r *run) excuseLate(a *account, ids []int64) (left []int64, late int64) {
	if a != r.toJetStream && a != r.bus || len(ids) == 0 {
		return ids, 0
	}
	wanted := map[int64]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	arrivals, err := a.history(wanted)
	r.check(err)
	return afterWindow(ids, arrivals, duplicateWindow)
}

func TestAfterWindow(t *testing.T) {
	t.Parallel()
	arrivals := []arrival{{ID: 1, At: 0}, {ID: 2, At: 0}, {ID: 2, At: 1001}, {ID: 3, At: 5000}, {ID: 3, At: 4000}, {ID: 2, At: 2500}, {ID: 4, At: 0}, {ID: 4, At: 1001}, {ID: 4, At: 1002}}
	left, late := afterWindow([]int64{1, 2, 3, 4, 5}, arrivals, time.Second)
	if want := []int64{1, 3, 4, 5}; !slices.Equal(left, want) || late != 2 {
		t.Errorf("%d are left and %d came late, want %d and 2", left, late, want)
	}
}
