package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// TestPlans_Archive: a replay and the deletion of old events read each row of the archive a few times, whatever its statistics are. An archive that has just been filled has none.
func TestPlans_Archive(t *testing.T) {
	t.Parallel()
	for _, statistics := range []string{"none", "empty", "full"} {
		t.Run("statistics "+statistics, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Archive: true})
			f := p.fixture(t, "outbox_events", "orders")
			const rows = 20_000
			f.Exec(t, "ALTER TABLE outbox_archive SET (autovacuum_enabled = false)")
			if statistics == "empty" {
				f.Exec(t, "ANALYZE outbox_archive")
			}
			f.Exec(t, fmt.Sprintf(`INSERT INTO outbox_archive (id, topic, payload, created_at, group_id, archived_at)
				SELECT i, 't', '1', now() - interval '1 day', gen_random_uuid(), now() - interval '1 hour' + i * interval '1 millisecond' FROM generate_series(1, %d) i`, rows))
			if statistics == "full" {
				f.Exec(t, "ANALYZE outbox_archive")
			}
			f.Exec(t, "SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 1000000)")
			replayed, err := f.Buffer.(buffer.Archiver).ReplayArchived(t.Context(), buffer.ArchiveFilter{Since: time.Now().Add(-2 * time.Hour), BatchSize: 500, PageSize: 1000}, false, nil)
			check(t, err)
			var deleted int64
			keeps, from := f.Buffer.(buffer.Retention), time.Time{}
			for more := true; more; {
				done, err := keeps.DeleteArchived(t.Context(), time.Minute, from, 1000)
				check(t, err)
				deleted, from, more = deleted+done.Events, done.Next, done.More
			}
			if replayed.Events != rows || deleted != rows {
				t.Fatalf("%+v were replayed and %d deleted, want %d", replayed, deleted, rows)
			}
			check(t, f.Buffer.Close())
			p.pool.Reset()
			if read := rowsRead(t, p.pool, "outbox_archive", rows); read > 10*rows {
				t.Errorf("%d rows and index entries were read of %d rows", read, rows)
			}
		})
	}
}

// rowsRead returns how many rows and index entries of a table were read, when the statistics have so many deletes.
func rowsRead(t *testing.T, pool *pgxpool.Pool, table string, deletes int64) (read int64) {
	t.Helper()
	testserver.Eventually(t, func() error {
		var deleted int64
		err := pool.QueryRow(t.Context(), `SELECT n_tup_del, seq_tup_read + idx_tup_fetch + (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid)
			FROM pg_stat_user_tables t WHERE relname = $1`, table).Scan(&deleted, &read)
		if err == nil && deleted < deletes {
			err = fmt.Errorf("the statistics know %d deletes of %d", deleted, deletes)
		}
		return err
	})
	return read
}
