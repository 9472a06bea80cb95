package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// BenchmarkPinned drains twenty rounds of 50,000 events while another session holds a
// snapshot, so that vacuum can remove nothing. It reports the rate of the last round
// relative to the second (the first has no dead rows yet), the CPU time of PostgreSQL by event, and the time of claims.
// There is no sink, because its cost would hide the cost of claims.
func BenchmarkPinned(b *testing.B) {
	const rounds = 20
	events := scaled(50_000)
	db := newDatabase(b)
	contenders := []struct {
		name      string
		mode      buffer.ClaimMode
		restarted bool
	}{{"range", buffer.ClaimRange, false}, {"range, restarted", buffer.ClaimRange, true}, {"stamp", buffer.ClaimStamp, false}}
	for b.Loop() {
		t := table{head: []string{"", "events/s of round 2", "of the last", "last to second", "median of rounds 16-20 to 2-6", "PostgreSQL µs, rounds 2-6", "16-20", "claim p50 ms, rounds 2-6", "16-20", "p99 ms, rounds 2-6", "16-20"}}
		var chart strings.Builder
		for _, c := range contenders {
			if !wanted(c.name) {
				continue
			}
			shape := "RESET (fillfactor)"
			if c.mode == buffer.ClaimStamp {
				shape = "SET (" + stampShape + ")"
			}
			db.exec(b, "ALTER TABLE outbox_events "+shape)
			db.truncate(b, eventsTable)
			unpin := db.pin(b, eventsTable)
			series := db.rounds(b, c.mode, c.restarted, rounds, events)
			unpin()
			series.report(b, &t, &chart, c.name)
		}
		if wanted("loop") {
			db.truncate(b, loopTable)
			unpin := db.pin(b, loopTable)
			series := db.loopRounds(b, rounds, events)
			unpin()
			series.report(b, &t, &chart, "loop")
		}
		b.Logf("%d rounds of %d events under a pinned snapshot\n%s\nthousand events/s by round:\n%s", rounds, events, t, &chart)
	}
	b.ReportMetric(0, "ns/op")
}

// pin holds a snapshot of the current table until unpin is called.
func (db *database) pin(b *testing.B, table string) (unpin func()) {
	b.Helper()
	tx, err := db.pool.BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	testkit.NoError(b, err)
	_, err = tx.Exec(b.Context(), "SELECT count(*) FROM "+table)
	testkit.NoError(b, err)
	return func() { testkit.NoError(b, tx.Rollback(b.Context())) }
}

// series has the results of the rounds in order.
type series struct {
	speeds   []float64   // events/s
	postgres []float64   // microseconds of CPU time an event
	claims   [][]float64 // milliseconds each took
}

// measure begins a round. The result ends it.
func (s *series) measure(b *testing.B, db *database, events int) (end func(claims []time.Duration)) {
	b.Helper()
	began, postgres := time.Now(), familyTime(b, db.pid)
	return func(claims []time.Duration) {
		b.Helper()
		took := time.Since(began)
		s.postgres = append(s.postgres, (familyTime(b, db.pid)-postgres).Seconds()*1e6/float64(events))
		s.speeds = append(s.speeds, float64(events)/took.Seconds())
		var ms []float64
		for _, d := range claims {
			ms = append(ms, milliseconds(d))
		}
		s.claims = append(s.claims, ms)
	}
}

// rounds drains one round after the other with a relay in one claim mode. A relay that is restarted starts when the events of
// a round are there; its start is part of the round.
func (db *database) rounds(b *testing.B, mode buffer.ClaimMode, restarted bool, rounds, events int) (s series) {
	b.Helper()
	if restarted {
		for range rounds {
			db.insert(b, eventsTable, events)
			round := newCountdown(events)
			end := s.measure(b, db, events)
			stop := db.start(b, postgres.Config{Claim: mode}, nothing{}, round)
			round.await(b, 2*time.Minute)
			end(round.claims)
			stop()
		}
		db.claimedBy(b, mode)
		db.mustBeEmpty(b, eventsTable)
		return s
	}
	observer := &rotating{}
	observer.next(newCountdown(events))
	stop := db.start(b, postgres.Config{Claim: mode}, nothing{}, observer)
	for range rounds {
		round := newCountdown(events)
		observer.next(round)
		commit := db.prepareCommit(b, eventsTable, events)
		end := s.measure(b, db, events)
		commit()
		round.await(b, 2*time.Minute)
		end(round.claims)
	}
	stop()
	db.claimedBy(b, mode)
	db.mustBeEmpty(b, eventsTable)
	return s
}

// loopFor is the time after which the loop is stopped.
const loopFor = time.Minute

// loopRounds does the same with the loop, for a minute.
func (db *database) loopRounds(b *testing.B, rounds, events int) (s series) {
	b.Helper()
	end := time.After(loopFor)
	for i := range rounds {
		round := newCountdown(events)
		commit := db.prepareCommit(b, loopTable, events)
		var picks picks
		stop := db.startLoop(b, 2, nowhere().loop, round.add, picks.add)
		measured := s.measure(b, db, events)
		commit()
		select {
		case <-round.done:
			measured(picks.took)
			stop()
		case <-end:
			b.Logf("the loop was stopped after %v, in round %d", loopFor, i+1)
			stop()
			return s
		}
	}
	db.mustBeEmpty(b, loopTable)
	return s
}

// window returns the values of rounds from..to, counted from 1, as far as they exist.
func window[T any](of []T, from, to int) []T { return of[min(from-1, len(of)):min(to, len(of))] }

func (s *series) report(b *testing.B, t *table, chart *strings.Builder, name string) {
	b.Helper()
	n := len(s.speeds)
	if n < 2 {
		b.Fatalf("%s: %d rounds are too few to say anything", name, n)
	}
	early, late := window(s.speeds, 2, 6), s.speeds[max(1, n-5):]
	claims := func(of [][]float64, q float64) float64 {
		var all []float64
		for _, c := range of {
			all = append(all, c...)
		}
		return quantile(all, q)
	}
	earlyClaims, lateClaims := window(s.claims, 2, 6), s.claims[max(1, n-5):]
	last, steady := s.speeds[n-1]/s.speeds[1], median(late)/median(early)
	t.add(name, s.speeds[1], s.speeds[n-1], last, steady, median(window(s.postgres, 2, 6)), median(s.postgres[max(1, n-5):]),
		claims(earlyClaims, .5), claims(lateClaims, .5), claims(earlyClaims, .99), claims(lateClaims, .99))
	if name = strings.ReplaceAll(name, ", ", "-"); name != "loop" {
		b.ReportMetric(claims(lateClaims, .99)/claims(earlyClaims, .99), name+"-p99-late/early")
	}
	b.ReportMetric(last, name+"-last/second")
	b.ReportMetric(steady, name+"-late/early")
	fmt.Fprintf(chart, "%s: [", name)
	for i, v := range s.speeds {
		if i > 0 {
			chart.WriteString(", ")
		}
		fmt.Fprintf(chart, "%.1f", v/1000)
	}
	chart.WriteString("]\n")
}
