package buffertest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var retentionCases = []testCase{
	{name: "retention/archived events of before", integerKeysOnly: true, run: retentionArchive},
	{name: "retention/archived events once, by several processes", integerKeysOnly: true, run: retentionShared},
	{name: "retention/closed dead letters", integerKeysOnly: true, run: retentionDead},
	{name: "retention/dead letters of a hook", integerKeysOnly: true, run: retentionHook},
	{name: "retention/size of the archive", integerKeysOnly: true, run: retentionSize},
	{name: "retention/without an archive", integerKeysOnly: true, run: retentionNoArchive},
	{name: "retention/a replay meanwhile", relayTableOnly: true, run: retentionReplay},
}

// retention is the buffer of a fixture.
func retention(b buffer.Buffer) buffer.Retention { return b.(buffer.Retention) }

// archive delivers n events, and returns their ids. They were archived that long ago, each a second after the one before.
func archive(t *testing.T, f *Fixture, n int, ago time.Duration) []int64 {
	t.Helper()
	ids := f.Insert(t, orders(n)...)
	settle(t, f.Buffer, claim(t, f.Buffer, n), delivered())
	at := time.Now().Add(-ago)
	for i, id := range ids {
		f.Exec(t, fmt.Sprintf("UPDATE outbox_archive SET archived_at = '%s' WHERE id = %d", at.Add(time.Duration(i)*time.Second).UTC().Format("2006-01-02T15:04:05.000Z"), id))
	}
	return ids
}

// archivedIDs returns the ids in the archive.
func archivedIDs(t *testing.T, f *Fixture) (ids []int64) {
	t.Helper()
	for _, row := range archived(t, f) {
		ids = append(ids, row.ID)
	}
	return ids
}

func retentionArchive(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	old := archive(t, f, 7, 3*time.Hour)
	fresh := archive(t, f, 2, time.Hour)
	b := retention(f.Buffer)
	var from time.Time
	for i, want := range []struct {
		events int64
		more   bool
	}{{3, true}, {3, true}, {1, false}, {0, false}} {
		done, err := b.DeleteArchived(t.Context(), 2*time.Hour, from, 3)
		ok(t, "DeleteArchived", err)
		equal(t, fmt.Sprintf("piece %d", i), []any{done.Events, done.More}, []any{want.events, want.more})
		if done.Next.Before(from) {
			t.Fatalf("piece %d continues at %v, before %v", i, done.Next, from)
		}
		from = done.Next
		equal(t, "the oldest go first", archivedIDs(t, f), append(append([]int64(nil), old[min(len(old), 3*(i+1)):]...), fresh...))
	}
	// Where it continues, nothing from before is looked at.
	older := archive(t, f, 1, 5*time.Hour)
	done, err := b.DeleteArchived(t.Context(), 2*time.Hour, from, 3)
	ok(t, "DeleteArchived", err)
	equal(t, "events from where it ended", int(done.Events), 0)
	done, err = b.DeleteArchived(t.Context(), 2*time.Hour, time.Time{}, 3)
	ok(t, "DeleteArchived", err)
	equal(t, "events from the oldest", int(done.Events), 1)
	equal(t, "archive", archivedIDs(t, f), fresh)
	if len(older) != 1 || len(f.Rows(t)) != 0 {
		t.Fatalf("the buffer has %v", f.Rows(t))
	}
}

func retentionShared(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	archive(t, f, 60, 3*time.Hour)
	var (
		wait    sync.WaitGroup
		deleted atomic.Int64
	)
	for _, b := range []buffer.Retention{retention(f.Buffer), retention(f.Second(t)), retention(f.Second(t))} {
		wait.Go(func() {
			for range 1000 {
				done, err := b.DeleteArchived(t.Context(), time.Hour, time.Time{}, 7)
				if err != nil {
					t.Errorf("DeleteArchived: %v", err)
					return
				}
				if deleted.Add(done.Events) >= 60 {
					return
				}
			}
		})
	}
	wait.Wait()
	equal(t, "events deleted by all together", int(deleted.Load()), 60)
	equal(t, "archive", archivedIDs(t, f), []int64(nil))
}

// closedAgo moves closed_at of dead letters into the past.
func closedAgo(t *testing.T, f *Fixture, ago time.Duration, ids ...int64) {
	t.Helper()
	at := time.Now().Add(-ago).UTC().Format("2006-01-02T15:04:05.000Z")
	for _, id := range ids {
		f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET closed_at = '%s' WHERE event_id = %d AND closed_at IS NOT NULL", at, id))
	}
}

// deleteClosed goes through all dead letters in pages.
func deleteClosed(t *testing.T, b buffer.Retention, f buffer.DeadFilter, keep time.Duration, page int) (deleted int) {
	t.Helper()
	var after *buffer.DeadKey
	for range 100 {
		done, err := b.DeleteClosed(t.Context(), f, keep, after, page)
		ok(t, "DeleteClosed", err)
		deleted += int(done.DeadLetters)
		if after = done.Next; after == nil {
			return deleted
		}
	}
	t.Fatal("DeleteClosed has no end")
	return 0
}

func retentionDead(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(9)...).IDs()
	other := f.Neighbour(t)
	others := bury(t, other, "refused", orders(2)...).IDs()
	discard(t, other.Buffer, buffer.DeadFilter{}, 10, 2)
	closedAgo(t, other, 5*time.Hour, others...)
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[:5]}, 10, 5)
	replay(t, f.Buffer, buffer.DeadFilter{IDs: ids[5:6]}, 10, 1)
	closedAgo(t, f, 3*time.Hour, ids[0], ids[1], ids[3], ids[5])
	equal(t, "deleted", deleteClosed(t, retention(f.Buffer), buffer.DeadFilter{}, 4*time.Hour, 2), 0)
	equal(t, "deleted", deleteClosed(t, retention(f.Buffer), buffer.DeadFilter{}, 2*time.Hour, 2), 4)
	left := map[int64]bool{}
	for _, d := range f.Dead(t) {
		if d.Pipeline == f.Pipeline {
			left[d.EventID] = true
		}
	}
	equal(t, "dead letters left: young ones, and open ones", left, map[int64]bool{ids[2]: true, ids[4]: true, ids[6]: true, ids[7]: true, ids[8]: true})
	equal(t, "dead letters of another pipeline", len(f.Dead(t))-len(left), 2)
	equal(t, "replayed event", takeOver(t, f.Buffer).IDs(), ids[5:6])
	equal(t, "deleted again", deleteClosed(t, retention(f.Buffer), buffer.DeadFilter{}, 2*time.Hour, 2), 0)
	equal(t, "a page as large as the table", deleteClosed(t, retention(f.Buffer), buffer.DeadFilter{}, time.Nanosecond, 5), 2)
}

func retentionHook(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	q := f.Queue(t)
	ids := bury(t, f, "refused", orders(4)...).IDs()
	notifying, err := q.Claim(t.Context(), 2, time.Minute)
	ok(t, "Claim", err)
	discard(t, f.Buffer, buffer.DeadFilter{}, 10, 4) // also those that no hook was notified of
	closedAgo(t, f, 3*time.Hour, ids...)
	hook := buffer.DeadFilter{Notified: true}
	equal(t, "deleted with a hook that was notified of none", deleteClosed(t, retention(f.Buffer), hook, time.Hour, 10), 0)
	equal(t, "deleted without a hook, but for those that one is notified of", deleteClosed(t, retention(f.Buffer), buffer.DeadFilter{}, time.Hour, 10), 2)
	equal(t, "left", deadIDs(t, f, func(*DeadLetter) bool { return true }), ids[:2])
	settle(t, q, notifying, delivered())
	equal(t, "deleted after the hook was notified", deleteClosed(t, retention(f.Buffer), hook, time.Hour, 10), 2)
}

func retentionSize(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	b := retention(f.Buffer)
	s, err := b.ArchiveSize(t.Context())
	ok(t, "ArchiveSize", err)
	equal(t, "oldest age of an empty archive", s.OldestAge(), time.Duration(0))
	about(t, "now", time.Since(s.Now), 0)
	archive(t, f, 100, 3*time.Hour)
	empty := s.Bytes
	s, err = b.ArchiveSize(t.Context())
	ok(t, "ArchiveSize", err)
	about(t, "oldest age", s.OldestAge(), 3*time.Hour)
	if s.Bytes <= empty || s.Bytes > 1<<20 || s.Events != -1 && s.Events != 100 || s.Table == "" {
		t.Fatalf("a hundred small events: %+v, empty it took %d", s, empty)
	}
}

func retentionNoArchive(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	_, err := retention(f.Buffer).ArchiveSize(t.Context())
	fails(t, "ArchiveSize", err, buffer.ErrNoArchive)
	_, err = retention(f.Buffer).DeleteArchived(t.Context(), time.Hour, time.Time{}, 10)
	fails(t, "DeleteArchived", err, buffer.ErrNoArchive)
}

// retentionReplay deletes events between the pages of a replay, which leaves them out and goes on.
func retentionReplay(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	archive(t, f, 10, 3*time.Hour)
	other := retention(f.Second(t))
	first := true
	got, err := archiver(f).ReplayArchived(t.Context(), buffer.ArchiveFilter{BatchSize: 3, PageSize: 4}, false, func(buffer.Replayed) {
		if first {
			first = false
			_, err := other.DeleteArchived(t.Context(), time.Hour, time.Time{}, 6)
			ok(t, "DeleteArchived", err)
		}
	})
	ok(t, "ReplayArchived", err)
	equal(t, "events of a replay", int(got.Events), 8) // 4, then 4 of the 4 that are left
	equal(t, "delivered once more", len(deliverAll(t, f.Buffer)), 8)
	empty(t, f)
	audited, err := f.Buffer.(buffer.Auditor).Audit(t.Context())
	ok(t, "Audit", err)
	if !audited.Agrees() {
		t.Errorf("after it, the audit is %+v", audited)
	}
}
