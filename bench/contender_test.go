package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// contender is one way to move a backlog to a sink.
type contender struct {
	name    string
	table   string
	batched bool   // its stream takes fast batches
	shape   string // storage parameters that suit it better than those of the schema
	// fill inserts the backlog into the empty table; nil inserts events like the relay's own.
	fill func(b *testing.B)
	// start begins to drain. What it needs to begin is part of the drain.
	start func(b *testing.B, to broker, events int) drain
}

// drain is a contender at work.
type drain struct {
	pid  int    // 0 for this process
	done func() // returns when the events are delivered and settled
	stop func()
}

// loops returns the loop with one, two and four workers. The other contenders are
// compared with the best of them.
func (db *database) loops() (all []contender) {
	for _, workers := range []int{1, 2, 4} {
		all = append(all, contender{
			name: fmt.Sprintf("loop%d", workers), table: loopTable,
			start: func(b *testing.B, to broker, events int) drain {
				count := newCountdown(events)
				stop := db.startLoop(b, workers, to.loop, count.add, func(time.Duration) {})
				return drain{done: func() { count.await(b, 2*time.Minute) }, stop: stop}
			},
		})
	}
	return all
}

// stampShape leaves room for stamps on the pages.
const stampShape = "fillfactor = 50"

// relays returns the relay's pipeline in each claim mode that -only selects, in this process.
func (db *database) relays(modes ...buffer.ClaimMode) (all []contender) {
	for _, mode := range modes {
		if !wanted(string(mode)) {
			continue
		}
		c := contender{name: string(mode), table: eventsTable, batched: true, start: func(b *testing.B, to broker, events int) drain {
			d := db.pipeline(b, postgres.Config{Claim: mode}, to.sink, events)
			stop := d.stop
			d.stop = func() {
				stop()
				db.claimedBy(b, mode)
			}
			return d
		}}
		if mode == buffer.ClaimStamp {
			c.shape = stampShape
		}
		all = append(all, c)
	}
	return all
}

// commands returns `relay run` with its defaults, in a process of its own.
func (db *database) commands(relay command) []contender {
	if !wanted("relay run") {
		return nil
	}
	return []contender{{name: "relay run", table: eventsTable, batched: true, start: func(b *testing.B, to broker, events int) drain {
		pid, stop := relay.run(b, settings{sink: to.url, address: to.address})
		return drain{pid: pid, stop: stop, done: func() {
			untilEach(b, 2*time.Millisecond, 2*time.Minute, func() bool { return to.count(b) >= events })
			untilEach(b, 2*time.Millisecond, time.Minute, func() bool { return db.settled(b, eventsTable) })
		}}
	}}}
}

// figures of one drain. Times are CPU time per event.
type figures struct {
	rate                  float64 // events/s
	postgres, own, broker float64 // microseconds an event
	wal                   float64 // bytes an event
}

// start is the state of a contender when events are there to drain.
type start string

const (
	cold start = "cold" // it starts when they are there; the start is part of the drain
	warm start = "warm" // it runs and is idle; then one commit makes them visible
)

// measure drains one backlog.
func (db *database) measure(b *testing.B, c contender, to broker, events int, from start) figures {
	b.Helper()
	to.empty(b, c)
	db.exec(b, "ALTER TABLE "+c.table+" RESET (fillfactor)")
	if c.shape != "" {
		db.exec(b, "ALTER TABLE "+c.table+" SET ("+c.shape+")")
	}
	db.truncate(b, c.table)
	commit := func() {}
	var d drain
	switch {
	case from == warm:
		d = c.start(b, to, events)
		pause(b, idleFor)
		commit = db.prepareCommit(b, c.table, events)
	case c.fill != nil:
		c.fill(b)
	default:
		db.insert(b, c.table, events)
	}
	wal, server, own, broker := db.walBytes(b), familyTime(b, db.pid), timeOf(b, d.pid), cpuTime(b, to.pid)
	began := time.Now()
	if from == cold {
		if d = c.start(b, to, events); d.pid != 0 { // all that the new process uses
			own = 0
		}
	}
	commit()
	d.done()
	took := time.Since(began)
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(events) }
	f := figures{
		rate:     float64(events) / took.Seconds(),
		postgres: each(familyTime(b, db.pid) - server),
		own:      each(timeOf(b, d.pid) - own),
		broker:   each(cpuTime(b, to.pid) - broker),
		wal:      float64(db.walBytes(b)-wal) / float64(events),
	}
	d.stop()
	db.mustBeEmpty(b, c.table)
	if to.count != nil {
		if n := to.count(b); n != events {
			b.Fatalf("%s: %d of %d events arrived", c.name, n, events)
		}
	}
	return f
}

// idleFor lets a contender become idle.
const idleFor = 2 * time.Second

// race drains one backlog per contender, one after the other, in b.N rounds, and
// reports medians. Each round begins with another contender. Ratios to the loop are
// computed round by round.
func (db *database) race(b *testing.B, to broker, contenders []contender, events int, from start) {
	b.Helper()
	results := map[string][]figures{}
	for round := 0; b.Loop(); round++ {
		for i := range contenders {
			c := contenders[(i+round)%len(contenders)]
			results[c.name] = append(results[c.name], db.measure(b, c, to, events, from))
		}
	}
	best, short := bestLoop(results), "loop"
	if best == "" { // without a loop, the first contender
		best, short = contenders[0].name, contenders[0].name
	}
	ratios := "to " + short
	t := table{head: []string{"", "events/s", ratios, "PostgreSQL µs", ratios, "own µs", ratios, "broker µs", "WAL B", ratios}}
	for _, c := range contenders {
		mine := results[c.name]
		of := func(get func(figures) float64) float64 { return medianOf(mine, get) }
		to := func(get func(figures) float64) float64 { return ratio(mine, results[best], get) }
		t.add(c.name, of(rate), to(rate), of(postgresTime), to(postgresTime), of(ownWork), to(ownWork), of(brokerWork), of(walSize), to(walSize))
		name := strings.ReplaceAll(c.name, " ", "-") // a metric's unit has no blanks
		b.ReportMetric(of(rate), name+"-events/s")
		b.ReportMetric(of(postgresTime), name+"-pg-µs/event")
		b.ReportMetric(of(walSize), name+"-walB/event")
		if c.name != best && !strings.HasPrefix(c.name, "loop") {
			b.ReportMetric(to(rate), name+"/"+short)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.Logf("%d events, %s start, medians of %d rounds; ratios are to %s, round by round\n%s", events, from, b.N, best, t)
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
