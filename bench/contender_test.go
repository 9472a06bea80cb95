package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// contender is one way to move a backlog to a sink.
type contender struct {
	name    string
	table   string
	batched bool // its stream takes fast batches
	// fill inserts the backlog into the empty table; nil inserts events like the relay's own.
	fill  func(b *testing.B)
	drain func(b *testing.B, to broker, events int) time.Duration
}

// loops returns the loop with one, two and four workers. The other contenders are
// compared with the best of them.
func (db *database) loops() (all []contender) {
	for _, workers := range []int{1, 2, 4} {
		all = append(all, contender{
			name: fmt.Sprintf("loop%d", workers), table: loopTable,
			drain: func(b *testing.B, to broker, _ int) time.Duration {
				ctx, cancel := bounded(b, 2*time.Minute)
				defer cancel()
				return db.loop(b, ctx, workers, to.loop, func(time.Duration) {})
			},
		})
	}
	return all
}

// relays returns the relay in each claim mode that -only selects.
func (db *database) relays(modes ...buffer.ClaimMode) (all []contender) {
	for _, mode := range modes {
		if !wanted(string(mode)) {
			continue
		}
		all = append(all, contender{
			name: string(mode), table: eventsTable, batched: true,
			drain: func(b *testing.B, to broker, events int) time.Duration {
				took := db.relay(b, mode, to.sink, events)
				db.claimedBy(b, mode)
				return took
			},
		})
	}
	return all
}

// figures of one drain. Times are CPU time per event.
type figures struct {
	rate                  float64 // events/s
	postgres, own, broker float64 // microseconds an event
	wal                   float64 // bytes an event
}

// measure drains one backlog.
func (db *database) measure(b *testing.B, c contender, to broker, events int) figures {
	b.Helper()
	to.empty(b, c)
	db.fillWith(b, c.table, func() {
		if c.fill != nil {
			c.fill(b)
			return
		}
		db.insert(b, c.table, events)
	})
	wal, postgres, own, broker := db.walBytes(b), familyTime(b, db.pid), ownTime(b), cpuTime(b, to.pid)
	took := c.drain(b, to, events)
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(events) }
	f := figures{
		rate:     float64(events) / took.Seconds(),
		postgres: each(familyTime(b, db.pid) - postgres),
		own:      each(ownTime(b) - own),
		broker:   each(cpuTime(b, to.pid) - broker),
		wal:      float64(db.walBytes(b)-wal) / float64(events),
	}
	db.mustBeEmpty(b, c.table)
	if to.count != nil {
		if n := to.count(b); n != events {
			b.Fatalf("%s: %d of %d events arrived", c.name, n, events)
		}
	}
	return f
}

// race drains one backlog per contender, one after the other, in b.N rounds, and
// reports medians. Each round begins with another contender. Ratios to the loop are
// computed round by round.
func (db *database) race(b *testing.B, to broker, contenders []contender, events int) {
	b.Helper()
	results := map[string][]figures{}
	for round := 0; b.Loop(); round++ {
		for i := range contenders {
			c := contenders[(i+round)%len(contenders)]
			results[c.name] = append(results[c.name], db.measure(b, c, to, events))
		}
	}
	best := bestLoop(results)
	t := table{head: []string{"", "events/s", "to loop", "PostgreSQL µs", "to loop", "own µs", "broker µs", "WAL B", "to loop"}}
	for _, c := range contenders {
		mine := results[c.name]
		of := func(get func(figures) float64) float64 { return medianOf(mine, get) }
		to := func(get func(figures) float64) float64 { return ratio(mine, results[best], get) }
		t.add(c.name, of(rate), to(rate), of(postgresTime), to(postgresTime), of(ownWork), of(brokerWork), of(walSize), to(walSize))
		b.ReportMetric(of(rate), c.name+"-events/s")
		b.ReportMetric(of(postgresTime), c.name+"-pg-µs/event")
		b.ReportMetric(of(walSize), c.name+"-walB/event")
		if best != "" && !strings.HasPrefix(c.name, "loop") {
			b.ReportMetric(to(rate), c.name+"/loop")
		}
	}
	b.ReportMetric(0, "ns/op")
	b.Logf("%d events, medians of %d rounds; ratios are to %s, round by round\n%s", events, b.N, best, t)
}

func rate(f figures) float64         { return f.rate }
func postgresTime(f figures) float64 { return f.postgres }
func ownWork(f figures) float64      { return f.own }
func brokerWork(f figures) float64   { return f.broker }
func walSize(f figures) float64      { return f.wal }

// bestLoop returns the number of workers with which the loop is fastest.
func bestLoop(results map[string][]figures) (best string) {
	for name, mine := range results {
		if strings.HasPrefix(name, "loop") && (best == "" || medianOf(mine, rate) > medianOf(results[best], rate)) {
			best = name
		}
	}
	return best
}

// ratio returns the median ratio of a contender to another in the same round; NaN
// without rounds.
func ratio(mine, other []figures, get func(figures) float64) float64 {
	var each []float64
	for i := range min(len(mine), len(other)) {
		each = append(each, get(mine[i])/get(other[i]))
	}
	return median(each)
}

func medianOf(of []figures, get func(figures) float64) float64 {
	values := make([]float64, len(of))
	for i := range of {
		values[i] = get(of[i])
	}
	return median(values)
}
