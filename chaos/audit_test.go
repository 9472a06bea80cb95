//go:build unix

package chaos

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// leftSQL counts undelivered events.
const leftSQL = `
SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_events2) +
  (SELECT count(*) FROM outbox_events3), (SELECT count(*) FROM outbox_batches)`

// drain waits until everything is delivered, with healthy servers.
func (r *run) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.postgres.URL)
	r.check(err)
	defer conn.Close(context.WithoutCancel(ctx))
	var events, batches, least int64
	since := time.Now()
	for tick := 0; ; tick++ {
		r.check(conn.QueryRow(ctx, leftSQL).Scan(&events, &batches))
		if events+batches == 0 {
			return
		}
		if tick == 0 || events+batches < least {
			least, since = events+batches, time.Now()
		}
		if tick%10 == 0 {
			r.t.Logf("draining: %d events and %d batches are left", events, batches)
		}
		if time.Since(since) > stuck || !pause(ctx, 500*time.Millisecond) {
			r.violation("%d events and %d batches are left and get no fewer\n%s", events, batches,
				rows(ctx, conn, `SELECT * FROM outbox_batches ORDER BY due_at LIMIT 20`))
			return
		}
	}
}

// audited has the findings of the audit of one sink.
type audited struct {
	name                                       string
	committed, rolledBack, delivered, dead     int64
	waiting, duplicates, lost, wrong, resolved int64
	excused                                    int64 // duplicates of batches that were halved because their owners died
	late                                       int64 // duplicates that came after the stream's window
}

const takeOversSQL = `
SELECT count(*), coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY late), '0') FROM chaos_take_overs`

const moreThanOnce = "delivered more than once"

func (r *run) audit(ctx context.Context) []audited {
	conn, err := pgx.Connect(ctx, r.postgres.URL)
	r.check(err)
	defer conn.Close(context.WithoutCancel(ctx))
	r.check(conn.QueryRow(ctx, takeOversSQL).Scan(&r.takeOvers, &r.takeOverMedian))
	var early int64
	r.check(conn.QueryRow(ctx, "SELECT count(*) FROM chaos_early").Scan(&early))
	if early > 0 {
		r.violation("%d delayed events were sent before they were available", early)
	}
	var all []audited
	for _, a := range r.accounts() {
		all = append(all, r.auditOne(ctx, conn, a))
	}
	return all
}

// What the database knows about an id.
const (
	there uint8 = 1 << iota // committed
	bad                     // and refused by the sink
	dead                    // a dead letter of the sink
	waits                   // in the buffer
	owed                    // matched by the sink
)

// auditOne compares the database, the replies to producers and the arrivals, id by
// id.
func (r *run) auditOne(ctx context.Context, conn *pgx.Conn, a *account) audited {
	truth := r.truth(ctx, conn, a)
	a.feed.mu.Lock()
	said := a.said
	a.feed.mu.Unlock()
	a.mu.Lock()
	seen := a.seen
	a.mu.Unlock()
	result := audited{name: a.name()}
	found := map[string][]int64{}
	fault := func(id int64, what string) { found[what] = append(found[what], id) }
	for id := range int64(max(len(truth), len(said), len(seen))) {
		is, replied, arrived := at(truth, id), at(said, id), at(seen, id)
		if is&owed != 0 {
			result.committed++
		}
		if replied&rolledBack != 0 {
			result.rolledBack++
		}
		if replied&unknown != 0 && is&there != 0 {
			result.resolved++
		}
		if is&dead != 0 {
			result.dead++
		}
		if is&waits != 0 && is&owed != 0 {
			result.waiting++
		}
		if arrived > 0 {
			result.delivered++
		}
		switch {
		case is&there == 0 && arrived > 0:
			fault(id, "never committed, but delivered")
		case is&there == 0 && is&(dead|waits) != 0:
			fault(id, "never committed, but dead or waiting")
		case is&there != 0 && is&owed == 0 && (arrived > 0 || is&dead != 0):
			fault(id, "delivered or dead, though the sink does not match it")
		case is&owed != 0 && arrived == 0 && is&(dead|waits) == 0:
			result.lost++
			fault(id, "lost")
		case is&there != 0 && is&bad == 0 && is&dead != 0 && arrived == 0:
			fault(id, "buried, though nothing is wrong with it")
		}
		if arrived > 1 {
			result.duplicates += int64(arrived) - 1
			fault(id, moreThanOnce)
		}
		if arrived > 0 && is&dead != 0 {
			fault(id, "both delivered and dead")
		}
		if arrived > 0 && is&bad != 0 {
			fault(id, "delivered, though the sink should refuse it")
		}
		if replied&committed != 0 && is&there == 0 {
			fault(id, "committed for the producer and not for the database")
		}
		// After a crash PostgreSQL may reuse ids of transactions that never committed.
		// Then another producer got a reply for the same id.
		if replied == rolledBack && is&there != 0 {
			fault(id, "rolled back for the producer and committed for the database")
		}
	}
	if result.waiting > 0 {
		r.violation("%s: %d events still wait", a.name(), result.waiting)
	}
	found[moreThanOnce], result.excused = r.excuse(ctx, conn, a, found[moreThanOnce])
	found[moreThanOnce], result.late = r.excuseLate(a, found[moreThanOnce])
	for what, ids := range found {
		if len(ids) == 0 {
			continue
		}
		result.wrong += int64(len(ids))
		r.violation("%s: %d events %s: %v", a.name(), len(ids), what, ids[:min(20, len(ids))])
		r.t.Log(r.history(ctx, conn, a, ids[:min(20, len(ids))]))
	}
	if want := result.delivered + result.dead + result.waiting; result.committed != want {
		r.violation("%s: %d committed, but %d delivered, dead or waiting", a.name(), result.committed, want)
	}
	return result
}

// truth returns the state of each id in the database.
func (r *run) truth(ctx context.Context, conn *pgx.Conn, a *account) []uint8 {
	var truth []uint8
	mark := func(what uint8, sql string, args ...any) {
		rows, err := conn.Query(ctx, sql, args...)
		r.check(err)
		var id int64
		var bits int32
		_, err = pgx.ForEachRow(rows, []any{&id, &bits}, func() error {
			if id <= 0 || id > maxID {
				return fmt.Errorf("there is no event %d", id)
			}
			truth = extend(truth, id)
			truth[id] |= what | uint8(bits)
			return nil
		})
		r.check(err)
	}
	mark(there, `SELECT id, CASE WHEN owed & $2 = 0 THEN 0 WHEN good & $2 = 0 THEN $3::int + $4::int ELSE $4::int END
		FROM chaos_committed WHERE pipeline = $1`, a.pipeline, a.bit, int32(bad), int32(owed))
	mark(dead, `SELECT event_id, 0 FROM outbox_dead_letters WHERE pipeline = $1 AND sink = $2`, a.pipeline, cmp.Or(a.sink, "default"))
	mark(waits, `SELECT id, 0 FROM `+a.table)
	// An event that was refused max_attempts times is buried, also by an API that refused everything for that long: it answers 400 then, and only
	// then. The retries of the run are short.
	mark(bad, `SELECT event_id, 0 FROM outbox_dead_letters WHERE pipeline = $1 AND sink = $2 AND attempts >= 10 AND error LIKE '%: 400 Bad Request'`,
		a.pipeline, cmp.Or(a.sink, "default"))
	return truth
}
